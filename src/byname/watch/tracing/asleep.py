"""Which runs are not told to everyone? Example runs to nobody, passes of an evaluation only to its own analyser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

__all__ = ["asleep", "example_running", "told_only_to"]


class _Here(threading.local):
    """What one thread is in. A model does not say whose call it is in.

    Attributes:
        depth: how many example runs are on, one inside the other.
        told: the readers that are told of this pass; None for all.
    """

    depth = 0
    told: tuple[object, ...] | None = None


_here = _Here()
_passes: list[tuple[object, ...]] = []
"""The readers of the passes under way in any thread: the backward of a GPU runs in a thread of PyTorch's own."""


def asleep(reader: object | None = None) -> bool:
    """Whether what is attached to the model sees nothing of what runs in this thread.

    >>> with example_running():
    ...     asleep()
    True
    >>> asleep()
    False

    Args:
        reader: who only looks; None for one that takes part, as an interjection does.
    """
    if _here.depth > 0:
        return True
    if reader is None:
        return False
    told = _here.told
    if told is None and _passes and isinstance(threading.current_thread(), threading._DummyThread):
        told = _passes[-1]
    return told is not None and not any(reader is one for one in told)


@contextmanager
def example_running() -> Iterator[None]:
    """Marks what this thread runs inside as an example run."""
    before = _here.depth
    try:
        _here.depth = before + 1
        yield
    finally:
        _here.depth = before


@contextmanager
def told_only_to(*readers: object) -> Iterator[None]:
    """Has what this thread runs inside told to these readers, and to no other; what takes part does so as ever.

    >>> with told_only_to("mine"):
    ...     asleep("mine"), asleep("another"), asleep()
    (False, True, False)

    Args:
        readers: the callbacks that are attached.
    """
    before = _here.told
    try:
        _here.told = readers
        _passes.append(readers)
        yield
    finally:
        _here.told = before
        with suppress(ValueError):  # an interrupt came before it was there
            _passes.remove(readers)
