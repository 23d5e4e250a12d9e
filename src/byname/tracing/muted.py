"""Muted: runs that attachments do not observe: example runs by nobody, an evaluation's passes only by its analyser."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any


class _ThreadState(threading.local):
    """The runs, modes and callbacks of byname in one thread.

    Attributes:
        examples: the number of nested example runs.
        readers: the read-only callbacks that observe this pass; None for all.
        modes: byname's function modes on this thread's stack.
        active_callbacks: what runs callbacks or predicates now, each with a `model`, outermost first.
        eager: the number of blocks of `compilation_disabled`.
    """

    def __init__(self) -> None:
        self.examples = self.eager = 0
        self.readers: tuple[object, ...] | None = None
        self.modes: list[Any] = []
        self.active_callbacks: list[Any] = []


thread_state = _ThreadState()
MUTED_RUNS: list[tuple[object, ...] | None] = []
"""The runs under way in any thread that not everyone observes: None for an example run, its readers for a pass.

While it is empty, nothing is muted. The backward of a GPU runs in a thread of PyTorch's own."""


def is_muted(reader: object | None = None) -> bool:
    """Return whether attachments are muted in this thread.

    >>> with mute_all():
    ...     is_muted()
    True
    >>> is_muted()
    False

    `reader` is the identity of a read-only callback, see `mute_others`; None if the callback may replace values.
    """
    if thread_state.examples:
        return True
    if reader is None:
        return False
    readers = thread_state.readers
    if readers is None and MUTED_RUNS and isinstance(threading.current_thread(), threading._DummyThread):
        readers = next((readers for readers in reversed(MUTED_RUNS) if readers is not None), None)
    return readers is not None and not any(reader is one for one in readers)


def mute_all() -> AbstractContextManager[None]:
    """Mute every attachment in this thread inside the block."""
    return _run_with("examples", thread_state.examples + 1, None)


def mute_others(*readers: object) -> AbstractContextManager[None]:
    """Mute all read-only callbacks but these in this thread inside the block; others run as usual.

    >>> with mute_others("mine"):
    ...     is_muted("mine"), is_muted("another"), is_muted()
    (False, True, False)
    """
    return _run_with("readers", readers, readers)


@contextmanager
def _run_with(name: str, value: Any, run: tuple[object, ...] | None) -> Iterator[None]:
    """Set a part of this thread's state inside the block, and note the run that is under way."""
    before = getattr(thread_state, name)
    try:
        setattr(thread_state, name, value)
        MUTED_RUNS.append(run)
        yield
    finally:
        setattr(thread_state, name, before)
        with suppress(ValueError):  # an interrupt came before it was there
            MUTED_RUNS.remove(run)


@contextmanager
def compilation_disabled() -> Iterator[None]:
    """Have PyTorch not compile functions of its own in this thread inside the block, as while modes are active."""
    thread_state.eager += 1
    try:
        yield
    finally:
        thread_state.eager -= 1


class muting:
    """Mute byname's function modes in this thread inside the block: PyTorch calls do not count as operations.

    Nor do the modules count that the callback of a model calls.
    """

    __slots__ = ("model",)

    def __init__(self, model: object | None = None) -> None:
        self.model = model

    def __enter__(self) -> None:
        thread_state.active_callbacks.append(self)

    def __exit__(self, *_: object) -> None:
        active_callbacks = thread_state.active_callbacks
        if active_callbacks and active_callbacks[-1] is self:  # an interrupt may have come before it was appended
            active_callbacks.pop()
