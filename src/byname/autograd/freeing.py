"""Marks: what a walk leaves on some nodes of a graph, so that a deep graph is freed without deep recursion.

A node that Python has seen frees the nodes behind it inside of its own freeing, and the stack ends after some ten
thousand of them. Behind a marked node Python frees them instead, one after the other.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from itertools import chain, cycle
from typing import Any, TypeAlias

__all__ = ["Edges", "gaps", "mark"]

Edges: TypeAlias = tuple[tuple[Any, int], ...]

_KEY = "byname: freed after this node"
_DEEP = (3, 13) <= sys.version_info < (3, 14)
"""Python defers freeing a tuple inside of other tuples: from 50 of them on until 3.12, near the end of the stack since
3.14. In 3.13 it is from 10,000 on, whatever the stack, and the nodes between them take 16 MB by then."""
_UNMARKED = 500
"""So many nodes are freed by recursion on any stack. Only Python 3.13 spares them the marks, which run Python code
there: an interrupt that comes in this code is lost, as in any ``__del__``."""


def _drawn_gaps(share: int, period: int) -> list[int]:
    """Draw which nodes of a period are marked, one in so many; from each to the next, how many nodes."""
    drawn = random.Random(0).choices((True, False), (1, share - 1), k=period)
    marked = [at for at, one in enumerate(drawn) if one]
    return [later - earlier for earlier, later in zip([marked[-1] - period, *marked], marked, strict=False)]


_GAPS = _drawn_gaps(16, period=10_007)
"""Of one node in 16, chains of any length were freed on a stack of 128 KB, of one in 32 not (PyTorch 2.13). By chance,
so that no shape of a graph can have its unmarked nodes in one line."""


def gaps() -> Iterator[int]:
    """Return how many nodes a walk passes to the next that it marks, again and again. There is no end of gaps."""
    return chain([_UNMARKED] if _DEEP else [], cycle(_GAPS))


def mark(node: Any, edges: Edges) -> None:
    """Let what lies behind a node be freed after the node, and not inside of its freeing."""
    node.metadata[_KEY] = _Deferred(edges) if _DEEP else edges


class _Queue(threading.local):
    """The edges that a thread has still to free, and whether it is about to."""

    def __init__(self) -> None:
        self.edges: list[Edges] = []
        self.running = False


class _Deferred:
    """Edges that are freed one mark after the other, by the first mark of them all."""

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
            except KeyboardInterrupt:  # lost in a ``__del__`` in any case; the rest is not
                continue
        queue.running = False
