"""Freeing: marks that a walk leaves on some nodes of a graph, so that a deep graph is freed without deep recursion.

A node that has a Python object frees the nodes behind it recursively, which overflows the stack after some ten
thousand of them. A marked node hands them to Python, which frees them one after the other.
"""

from __future__ import annotations

import math
import random
import sys
import threading
from collections.abc import Iterator
from itertools import chain, cycle
from typing import Any, TypeAlias

Edges: TypeAlias = tuple[tuple[Any, int], ...]

_KEY = "byname: freed after this node"
_DEEP = (3, 13) <= sys.version_info < (3, 14)
"""Whether this is Python 3.13. Python defers the freeing of nested tuples: beyond a depth of 50 until 3.12, and near
the end of the stack since 3.14. Only 3.13 waits for a depth of 10,000, by which the nodes have used 16 MB of stack."""
_UNMARKED = 500
"""Number of nodes that any stack can free by recursion. On Python 3.13 the first nodes get no mark, because marks run
Python code there, in which an interrupt is lost, as in any ``__del__``."""


def _drawn_gaps(share: int, count: int) -> list[int]:
    """Draw the distances from each marked node to the next, where one node in `share` is marked."""
    draw, missed = random.Random(0).random, math.log(1 - 1 / share)
    return [1 + int(math.log(1 - draw()) / missed) for _ in range(count)]


_GAPS = _drawn_gaps(16, count=601)
"""With one node in 16 marked, a stack of 128 KB freed chains of any length; with one in 32 it did not (PyTorch 2.13).
The marks are random, so that no shape of a graph can have all its unmarked nodes in one line."""


def gaps() -> Iterator[int]:
    """Return an endless iterator over the number of nodes from one mark to the next."""
    return chain([_UNMARKED] if _DEEP else [], cycle(_GAPS))


def mark(node: Any, edges: Edges) -> None:
    """Mark a node: the nodes behind it are then freed after it, and not recursively within its own freeing."""
    node.metadata[_KEY] = _Deferred(edges) if _DEEP else edges


class _Queue(threading.local):
    """The edges that a thread has still to free, and whether it is freeing them now."""

    def __init__(self) -> None:
        self.edges: list[Edges] = []
        self.running = False


class _Deferred:
    """Edges whose freeing is queued: the first mark that is freed frees the edges of all later ones, one by one."""

    __slots__ = ("edges",)

    def __init__(self, edges: Edges) -> None:
        self.edges = edges

    def __del__(self, queue: _Queue = _Queue()) -> None:  # noqa: B008 - one for all, and there until the very end
        waiting = queue.edges
        waiting.append(self.edges)
        del self.edges
        if queue.running:
            return
        queue.running = True
        while waiting:
            try:
                waiting.pop()
            except KeyboardInterrupt:  # a ``__del__`` loses it in any case; the other edges must still be freed
                continue
        queue.running = False
