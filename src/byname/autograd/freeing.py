"""Freeing: marks on the nodes of a walked graph that let it be freed without deep recursion.

Looking at a node leaves a Python object on it, and nodes with such objects are freed by recursion: a chain of 50,000
overflows the C stack (PyTorch 2.10 to 2.15). So one node in eight keeps its edges in its ``metadata`` too, in something
that Python frees without going deeper. The edges hold only what their node holds anyway, and an interrupted walk is as
safe as a whole one. Which nodes is drawn by lot, the same lot each time: drawn by number they could miss a way of
regular steps. The probability of a thousand nodes in a row without a mark is 1e-58.
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Iterator
from itertools import chain, cycle, repeat
from typing import Any, TypeAlias

__all__ = ["lots", "mark"]

Edges: TypeAlias = tuple[tuple[Any, int], ...]

_KEY = "byname: freed after this node"
_LOTS = random.Random(0).choices((True, False), (1, 7), k=10_007)
_DEEP = (3, 13) <= sys.version_info < (3, 14)
"""Python defers freeing a tuple inside of other tuples: from 50 of them on until 3.12, near the end of the stack since
3.14. In 3.13 it is from 10,000 on, whatever the stack, and the nodes between them take 16 MB by then."""
_UNMARKED = 500
"""So many nodes are freed by recursion on any stack. Only Python 3.13 spares them the marks, which run Python code
there: an interrupt that comes in this code is lost, as in any ``__del__``."""


def lots() -> Iterator[bool]:
    """Draw for each node of a walk, in its order, whether it is to be marked. There is no end of lots."""
    return chain(repeat(False, _UNMARKED), cycle(_LOTS)) if _DEEP else cycle(_LOTS)


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
