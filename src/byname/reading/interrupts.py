"""Interrupts: Ctrl-C and other signals, held back while a file is written or a state is restored, and raised then."""

from __future__ import annotations

import signal
import threading
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from importlib import import_module
from types import FrameType
from typing import Any

Handler = Callable[[int, FrameType | None], Any]
NAMES = ("SIGINT", "SIGTERM", "SIGALRM", "SIGHUP", "SIGUSR1", "SIGUSR2", "SIGCHLD")
"""Names of signals that programs handle in Python.

These are Ctrl-C, time limits, a cluster scheduler's notices, and the death of a ``DataLoader`` worker, for which
PyTorch's handler raises an error.
"""

_NUMBERS = tuple(int(getattr(signal, name)) for name in NAMES if hasattr(signal, name))
_handler_of: Callable[[int], Any] = import_module("_signal").getsignal
_set_handler: Callable[[int, Any], Any] = import_module("_signal").signal
"""The functions of `signal` without its enums, in a tenth of the time."""


def defer_signals(*, also_repeated: bool = False) -> AbstractContextManager[None]:
    """Hold back the signals that Python functions handle until the context ends, then let them be handled.

    Otherwise a signal at the wrong moment is lost, as in a callback of a weak reference (h5py has many), or values on
    their way to a file are. Only the main thread runs signal handlers; in any other thread this context does nothing.

    Args:
        also_repeated: whether a repeated signal waits as well. Inside HDF5 it must: HDF5 calls back into Python to
            write, takes an error raised by a handler there for a failed write, and is broken from then on.

    >>> import signal
    >>> try:
    ...     with defer_signals():
    ...         signal.raise_signal(signal.SIGINT)
    ...         print("written")
    ... except KeyboardInterrupt:
    ...     print("and then interrupted")
    written
    and then interrupted
    """
    return _Held(also_repeated)


class _Held:
    """The context of `defer_signals`, with the signals that have arrived inside it.

    It is a class, because a signal can arrive between two lines of `contextlib`, and the generator of a
    ``@contextmanager`` would then never be resumed.
    """

    def __init__(self, also_repeated: bool) -> None:
        self.also_repeated = also_repeated
        self.arrived: list[int] = []
        self.on = False
        self._replaced: dict[int, Handler] = {}
        self._later: Handler | None = None

    def __enter__(self) -> None:
        if threading.get_ident() != threading.main_thread().ident:
            return
        self.on = True
        try:
            for number, handler in zip(_NUMBERS, map(_handler_of, _NUMBERS), strict=True):
                if callable(handler) and (self.also_repeated or not _is_deferring(handler)):
                    self._replaced[number] = handler
                    self._later = self._later or _DeferringHandler(self, self._replaced)
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
        if not (self.arrived or errors):
            return
        arrived, self.arrived = self.arrived, []
        with ExitStack() as stack:  # handles every signal that arrived, whatever the others raise
            stack.callback(raise_first, errors)
            for number in reversed(arrived):
                stack.callback(signal.raise_signal, number)

    def _put_back(self, errors: list[BaseException]) -> None:
        """Restore all handlers that nobody has replaced meanwhile, and collect the errors that they raise meanwhile."""
        while self.on:
            try:
                for number, handler in self._replaced.items():
                    if _handler_of(number) is self._later:
                        _set_handler(number, handler)
                self.on = False
            except BaseException as error:  # noqa: BLE001 - from a restored handler; `__exit__` raises it
                errors.append(error)


def _is_deferring(handler: Any) -> bool:
    held = handler.context() if type(handler) is _DeferringHandler else None
    return held is not None and held.on


class _DeferringHandler:
    """The handler that holds signals back. Once its context is gone, it passes signals to the replaced handler."""

    __slots__ = ("context", "replaced")

    def __init__(self, held: _Held, replaced: dict[int, Handler]) -> None:
        self.context = weakref.ref(held)
        self.replaced = replaced

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """Hold back a signal that has arrived; a repeated one is handled."""
        held, replaced = self.context(), self.replaced
        if held is None or not held.on:
            if _handler_of(number) is self:
                _set_handler(number, replaced[number])
            replaced[number](number, frame)
        elif number in held.arrived and not held.also_repeated:
            held.arrived.remove(number)
            replaced[number](number, frame)
        else:
            held.arrived.append(number)


def raise_first(errors: list[BaseException]) -> None:
    """Raise the first of some errors, if there are any, and empty the list."""
    try:
        if errors:
            raise errors[0]
    finally:
        errors.clear()
