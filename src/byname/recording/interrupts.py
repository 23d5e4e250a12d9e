"""How does Ctrl-C not tear what is being stored? It is passed on when that is done, a moment later."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["interrupts_wait"]

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupts_wait() -> Iterator[None]:
    """Context in which the program's handlers for Ctrl-C and termination are not called: they are at its end.

    Else one that comes at the wrong moment is lost, in a callback of a weak reference as h5py has many, or loses values
    that are on their way from the open window to the file. A second one goes through at once: the disk may hang.
    Only the main thread is interrupted.

    >>> with interrupts_wait():
    ...     pass
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    theirs: dict[int, Callable[[int, FrameType | None], Any]] = {}
    came: list[tuple[int, FrameType | None]] = []

    def wait(number: int, frame: FrameType | None) -> None:
        came.append((number, frame))
        if len(came) > 1:
            theirs[number](number, frame)

    try:
        for one in _SIGNALS:
            handler = signal.getsignal(one)
            if callable(handler):
                theirs[one] = handler
                signal.signal(one, wait)
        yield
    finally:
        for number, handler in theirs.items():
            if signal.getsignal(number) is wait:
                signal.signal(number, handler)
        if len(came) == 1:  # also where an error ends it
            number, frame = came[0]
            theirs[number](number, frame)
