"""Muted: runs that attachments do not observe: example runs by nobody, an evaluation's passes only by its analyser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any


class _OfThread(threading.local):
    """The runs, modes and callbacks of byname in one thread.

    Attributes:
        examples: the number of nested example runs.
        readers: the read-only callbacks that observe this pass; None for all.
        modes: byname's function modes on this thread's stack.
        busy: what runs callbacks or predicates now, each with a `model`, outermost first.
        eager: the number of blocks of `nothing_compiled`.
    """

    def __init__(self) -> None:
        self.examples = self.eager = 0
        self.readers: tuple[object, ...] | None = None
        self.modes: list[Any] = []
        self.busy: list[Any] = []


of_thread = _OfThread()
UNDER_WAY: list[tuple[object, ...] | None] = []
"""The runs under way in any thread that not everyone observes: None for an example run, its readers for a pass.

While it is empty, nothing is muted. The backward of a GPU runs in a thread of PyTorch's own."""


def is_muted(reader: object | None = None) -> bool:
    """Return whether attachments are muted in this thread.

    >>> with example_running():
    ...     is_muted()
    True
    >>> is_muted()
    False

    `reader` is the identity of a read-only callback, see `reported_only_to`; None if the callback may replace values.
    """
    if of_thread.examples:
        return True
    if reader is None:
        return False
    readers = of_thread.readers
    if readers is None and UNDER_WAY and isinstance(threading.current_thread(), threading._DummyThread):
        readers = next((readers for readers in reversed(UNDER_WAY) if readers is not None), None)
    return readers is not None and not any(reader is one for one in readers)


def example_running() -> AbstractContextManager[None]:
    """Mute every attachment in this thread inside the block."""
    return _run_with("examples", of_thread.examples + 1, None)


def reported_only_to(*readers: object) -> AbstractContextManager[None]:
    """Mute all read-only callbacks but these in this thread inside the block; others run as usual.

    >>> with reported_only_to("mine"):
    ...     is_muted("mine"), is_muted("another"), is_muted()
    (False, True, False)
    """
    return _run_with("readers", readers, readers)


@contextmanager
def _run_with(name: str, value: Any, run: tuple[object, ...] | None) -> Iterator[None]:
    """Set a part of this thread's state inside the block, and note the run that is under way."""
    before = getattr(of_thread, name)
    try:
        setattr(of_thread, name, value)
        UNDER_WAY.append(run)
        yield
    finally:
        setattr(of_thread, name, before)
        with suppress(ValueError):  # an interrupt came before it was there
            UNDER_WAY.remove(run)


@contextmanager
def nothing_compiled() -> Iterator[None]:
    """Have PyTorch not compile functions of its own in this thread inside the block, as while modes are active."""
    of_thread.eager += 1
    try:
        yield
    finally:
        of_thread.eager -= 1


class muting:
    """Mute byname's function modes in this thread inside the block: PyTorch calls do not count as operations.

    Nor do the modules count that the callback of a model calls.
    """

    __slots__ = ("model",)

    def __init__(self, model: object | None = None) -> None:
        self.model = model

    def __enter__(self) -> None:
        of_thread.busy.append(self)

    def __exit__(self, *_: object) -> None:
        busy = of_thread.busy
        if busy and busy[-1] is self:  # an interrupt may have come before it was appended
            busy.pop()
