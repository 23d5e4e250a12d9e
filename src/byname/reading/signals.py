"""How does Ctrl-C not tear what is being stored or put back? It is passed on when that is done, a moment later."""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from importlib import import_module
from types import FrameType
from typing import Any

__all__ = ["interrupts_wait"]

Handler = Callable[[int, FrameType | None], Any]
NAMES = ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCHLD")
"""Signals that programs handle in Python: Ctrl-C, time limits, the notices of a cluster's scheduler, and the death of a
``DataLoader`` worker, of which PyTorch's handler raises an error."""

_NUMBERS = tuple(int(getattr(signal, name)) for name in NAMES if hasattr(signal, name))
_handler_of: Callable[[int], Any] = import_module("_signal").getsignal
_set_handler: Callable[[int, Any], Any] = import_module("_signal").signal
"""Those of `signal` without its enums, on which it spends ten times as long: a handler that is no enum is an error."""


def interrupts_wait(*, also_repeated: bool = False) -> AbstractContextManager[None]:
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
    return _Held(also_repeated)


class _Held:
    """The context of `interrupts_wait`: what came while it was on.

    A class of its own, because a signal that comes in a generator's context manager can come between two lines of
    `contextlib`, where the generator is not told of it.
    """

    def __init__(self, also_repeated: bool) -> None:
        self.also_repeated = also_repeated
        self.came: list[int] = []
        self.on = False
        self._replaced: dict[int, Handler] = {}
        self._later: Handler | None = None

    def __enter__(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        self._later = _later(self, self._replaced)
        self.on = True
        try:
            for number in _NUMBERS:
                handler = _handler_of(number)
                if callable(handler) and (self.also_repeated or not _holds(handler)):
                    self._replaced[number] = handler
                    _set_handler(number, self._later)
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *_: object) -> None:
        errors: list[BaseException] = []
        try:
            self._put_back(errors)
        finally:
            self._put_back(errors)  # an interrupt may have come in between
        came, self.came = self.came, []
        with ExitStack() as stack:  # all that came, whatever the others raise
            stack.callback(_raise_one, errors)
            for number in reversed(came):
                stack.callback(signal.raise_signal, number)

    def _put_back(self, errors: list[BaseException]) -> None:
        """Puts all handlers back that nobody has replaced meanwhile, and gathers what they raise from then on."""
        while self.on:
            try:
                for number, handler in self._replaced.items():
                    if _handler_of(number) is self._later:
                        _set_handler(number, handler)
                self.on = False
            except BaseException as error:  # noqa: BLE001 - of a handler that is back already; `__exit__` raises it
                errors.append(error)


def _holds(handler: Any) -> bool:
    """Whether a context around this one holds the signal already, up to its own end, and hears of one that repeats."""
    context = getattr(handler, "_context", None)
    held = context() if type(context) is weakref.ref else None
    return type(held) is _Held and held.on


def _later(held: _Held, replaced: dict[int, Handler]) -> Handler:
    """What handles signals meanwhile; one that comes when the context was torn down is handled as ever."""
    context = weakref.ref(held)

    def later(number: int, frame: FrameType | None) -> None:
        held = context()
        if held is None or not held.on:
            if _handler_of(number) is later:
                _set_handler(number, replaced[number])
            replaced[number](number, frame)
        elif number in held.came and not held.also_repeated:
            held.came.remove(number)
            replaced[number](number, frame)
        else:
            held.came.append(number)

    later._context = context  # type: ignore[attr-defined]
    return later


def _raise_one(errors: list[BaseException]) -> None:
    """Raises the last of some errors, if there are any, and keeps none."""
    try:
        if errors:
            raise errors[-1]
    finally:
        errors.clear()
