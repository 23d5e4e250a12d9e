"""Signals: holding back Ctrl-C and other signals while something is stored or put back.

A signal that arrives meanwhile is raised a moment later, when the work is done.
"""

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
"""Those of `signal` without its enums, on which it spends ten times as long: a handler that is no enum is an error."""


def defer_signals(*, also_repeated: bool = False) -> AbstractContextManager[None]:
    """Hold back the signals that Python functions handle until the context ends, then let them be handled.

    Otherwise a signal that arrives at the wrong moment is lost, as in a callback of a weak reference (h5py has many),
    or it loses values on their way from the current flush batch to the file. Only the main thread runs signal handlers;
    in any other thread this context does nothing.

    Args:
        also_repeated: whether a repeated signal waits as well. Inside HDF5 it must: HDF5 calls back into Python to
            write, takes an error raised by a handler there for a failed write, and its state is broken from then on.

    Examples:
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

    It is a class, because a signal in a generator's context manager can arrive between two lines of `contextlib`, and
    the generator would then never learn of it.
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
        self.on = True
        try:
            for number, handler in zip(_NUMBERS, map(_handler_of, _NUMBERS), strict=True):
                if callable(handler) and (self.also_repeated or not _holds(handler)):
                    self._replaced[number] = handler
                    self._later = self._later or _later(self, self._replaced)
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
        if not (self.came or errors):
            return
        came, self.came = self.came, []
        with ExitStack() as stack:  # handles every signal that arrived, whatever the others raise
            stack.callback(raise_first, errors)
            for number in reversed(came):
                stack.callback(signal.raise_signal, number)

    def _put_back(self, errors: list[BaseException]) -> None:
        """Put back all handlers that nobody has replaced meanwhile, and gather what they raise from then on."""
        while self.on:
            try:
                for number, handler in self._replaced.items():
                    if _handler_of(number) is self._later:
                        _set_handler(number, handler)
                self.on = False
            except BaseException as error:  # noqa: BLE001 - from a handler that is back already; `__exit__` raises it
                errors.append(error)


def _holds(handler: Any) -> bool:
    """Return whether an enclosing `defer_signals` already holds this handler's signal, and so sees it repeated."""
    context = getattr(handler, "_context", None)
    held = context() if type(context) is weakref.ref else None
    return type(held) is _Held and held.on


def _later(held: _Held, replaced: dict[int, Handler]) -> Handler:
    """Return the handler that holds signals back. Once `held` is gone, it passes signals to the replaced handler."""
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


def raise_first(errors: list[BaseException]) -> None:
    """Raise the first of some errors, if there are any, and empty the list."""
    try:
        if errors:
            raise errors[0]
    finally:
        errors.clear()
