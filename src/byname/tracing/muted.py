"""Muted: runs that attachments do not observe: example runs by nobody, an evaluation's passes only by its analyser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any


class _MutedHere(threading.local):
    """The state of one thread.

    Attributes:
        depth: the number of nested example runs.
        told: the readers that observe this pass; None for all.
    """

    depth = 0
    told: tuple[object, ...] | None = None


_here = _MutedHere()
UNDER_WAY: list[tuple[object, ...] | None] = []
"""The runs under way in any thread that not everyone is told of: None for an example run, its readers for a pass.

While it is empty, nothing is muted. The backward of a GPU runs in a thread of PyTorch's own."""


def asleep(reader: object | None = None) -> bool:
    """Return whether attachments are muted in this thread.

    >>> with example_running():
    ...     asleep()
    True
    >>> asleep()
    False

    Args:
        reader: the identity of a read-only callback, see `told_only_to`; None if the callback may replace values.
    """
    if _here.depth > 0:
        return True
    if reader is None:
        return False
    told = _here.told
    if told is None and UNDER_WAY and isinstance(threading.current_thread(), threading._DummyThread):
        told = next((readers for readers in reversed(UNDER_WAY) if readers is not None), None)
    return told is not None and not any(reader is one for one in told)


@contextmanager
def example_running() -> Iterator[None]:
    """Mute every attachment in this thread inside the block."""
    before = _here.depth
    try:
        _here.depth = before + 1
        UNDER_WAY.append(None)
        yield
    finally:
        _here.depth = before
        _no_more_under_way(None)


@contextmanager
def told_only_to(*readers: object) -> Iterator[None]:
    """Mute all read-only callbacks but these in this thread inside the block; others run as usual.

    >>> with told_only_to("mine"):
    ...     asleep("mine"), asleep("another"), asleep()
    (False, True, False)

    Args:
        readers: the identities of the callbacks that stay on.
    """
    before = _here.told
    try:
        _here.told = readers
        UNDER_WAY.append(readers)
        yield
    finally:
        _here.told = before
        _no_more_under_way(readers)


def _no_more_under_way(readers: tuple[object, ...] | None) -> None:
    with suppress(ValueError):  # an interrupt came before it was there
        UNDER_WAY.remove(readers)


class _Modes(threading.local):
    """The modes and callbacks of one thread.

    Attributes:
        modes: byname's function modes on this thread's stack.
        busy: the attachments whose callbacks are running, outermost first.
        eager: the number of blocks of `nothing_compiled`.
    """

    def __init__(self) -> None:
        self.modes: list[Any] = []
        self.busy: list[Any] = []
        self.eager = 0


of_thread = _Modes()
"""The function modes and running callbacks of the current thread."""


def active_modes() -> list[Any]:
    """Return byname's function modes on this thread's stack, outermost first."""
    return of_thread.modes


@contextmanager
def nothing_compiled() -> Iterator[None]:
    """Have PyTorch not compile functions of its own in this thread inside the block, as while modes are active."""
    of_thread.eager += 1
    try:
        yield
    finally:
        of_thread.eager -= 1


def unheard(running: object | None = None) -> _Unheard:
    """Pause byname's function modes in this thread inside the block: PyTorch calls do not count as operations.

    Args:
        running: the attachment whose callback runs; modules that the callback calls do not count for it either.
    """
    return _Unheard(of_thread.modes, running)


class _Unheard:
    """The context manager of `unheard`. A class, because every observed value enters one and a generator is slower."""

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
    """Remove an attachment whose callback ended from `busy`; after an interrupt it may not be there yet."""
    if busy and busy[-1] is running:
        busy.pop()
