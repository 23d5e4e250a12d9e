"""How does Ctrl-C not tear what is being stored or put back? It is passed on when that is done, a moment later."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any

__all__ = ["interrupts_wait"]

Handler = Callable[[int, FrameType | None], Any]
NAMES = ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCHLD")
"""Signals that programs handle in Python: Ctrl-C, time limits, the notices of a cluster's scheduler, and the death of a
``DataLoader`` worker, of which PyTorch's handler raises an error."""


@contextmanager
def interrupts_wait(*, also_repeated: bool = False) -> Iterator[None]:
    """Holds back the signals that Python functions handle until the context ends, which then raises what they raise.

    Else one that comes at the wrong moment is lost, in a callback of a weak reference as h5py has many, or loses values
    that are on their way from the open window to the file. Only the main thread runs such functions; in another thread
    there is nothing to do.

    Args:
        also_repeated: whether a signal that comes again waits as well. Inside of HDF5 it has to: HDF5 calls back into
            Python to write, takes what a handler raises there for a failed write, and its state is broken from then on.

    Examples:
        >>> import signal
        >>> try:
        ...     with interrupts_wait():
        ...         signal.raise_signal(signal.SIGINT)
        ...         print("written")
        ... except KeyboardInterrupt:
        ...     print("and then interrupted")
        written
        and then interrupted
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    handlers: dict[int, Handler] = {}

    def later(number: int, frame: FrameType | None) -> None:
        if number in came and not also_repeated:
            came.remove(number)
            handlers[number](number, frame)
        else:
            came.append(number)

    try:
        for number in (getattr(signal, name) for name in NAMES if hasattr(signal, name)):
            handler = signal.getsignal(number)
            if callable(handler):
                handlers[number] = handler
                signal.signal(number, later)
        yield
    finally:
        raised = _put_back(handlers, later)
        with ExitStack() as stack:  # all that came, whatever the others raise
            if raised is not None:
                stack.callback(_raise, raised)
            for number in reversed(came):
                stack.callback(signal.raise_signal, number)


def _put_back(handlers: dict[int, Handler], ours: Handler) -> BaseException | None:
    """Puts all handlers back that nobody has replaced meanwhile; returns what one of them raised."""
    raised = None
    while handlers:
        try:
            for number in list(handlers):
                if signal.getsignal(number) is ours:
                    signal.signal(number, handlers[number])
                del handlers[number]
        except BaseException as error:  # noqa: BLE001 - of a handler that is back already; its caller raises it
            raised = error
    return raised


def _raise(error: BaseException) -> None:
    raise error
