"""Which runs are not told to everyone? Example runs to nobody, passes of an evaluation only to its own analyser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

__all__ = ["active_modes", "asleep", "example_running", "of_thread", "no_more", "told_only_to", "unheard"]


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


class _Modes(threading.local):
    """What belongs to one thread.

    Attributes:
        modes: the function modes of ours that are on its stack.
        busy: the attachments whose callbacks run, one inside the other.
    """

    def __init__(self) -> None:
        self.modes: list[Any] = []
        self.busy: list[Any] = []


of_thread = _Modes()
"""The function modes and the callbacks of the thread that asks."""


def active_modes() -> list[Any]:
    """The function modes of ours that are on this thread's stack, in order."""
    return of_thread.modes


def unheard(running: object | None = None) -> _Unheard:
    """While inside, PyTorch functions that this thread calls are not taken for operations of the running modules.

    Args:
        running: the attachment of which a callback runs: modules that it calls are no part of the forward either.
    """
    return _Unheard(of_thread.modes, running)


class _Unheard:
    """A class of its own because every value that is told pays for it."""

    __slots__ = ("_paused", "_running")

    def __init__(self, modes: list[Any], running: object | None) -> None:
        self._paused = [(mode, mode.frame) for mode in modes]
        self._running = running

    def __enter__(self) -> None:
        if self._running is not None:
            of_thread.busy.append(self._running)
        for mode, _ in self._paused:
            mode.frame = None

    def __exit__(self, *_: object) -> None:
        if self._running is not None:
            no_more(self._running, of_thread.busy)
        for mode, frame in self._paused:
            if not mode.gone:
                mode.frame = frame


def no_more(running: object, busy: list[Any]) -> None:
    """The callback of an attachment has ended; an interrupt may have come before it was known to begin."""
    if busy and busy[-1] is running:
        busy.pop()
