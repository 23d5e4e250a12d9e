"""Pause: while the heap is read, no other thread begins a backward, and those that run are waited for.

A backward works without Python's lock, and frees what nodes have saved and sets gradients. To read a saved tensor or a
gradient at that moment is a use after free, which ends the process (PyTorch 2.13).
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any

import torch

from byname.reading.interrupts import defer_signals

__all__ = ["backward_elsewhere", "backward_paused"]

PATIENCE = 10.0
"""Seconds for which the backward of another thread is waited for."""
_NAME = "_engine_run_backward"


@contextmanager
def backward_paused() -> Iterator[None]:
    """Keep other threads from beginning a backward, and wait until those that run have ended, or `PATIENCE` is over."""
    look = _Look()
    try:
        with defer_signals():
            _GATE.close(look)
        end = time.monotonic() + PATIENCE
        while backward_elsewhere() and time.monotonic() < end:
            time.sleep(0.001)
        yield
    finally:
        with defer_signals():
            _GATE.open(look)


def backward_elsewhere() -> bool:
    """Return whether another thread runs a backward. Inside `backward_paused`, a False stays true.

    In a thread that Python has not started, as those in which the engine runs nodes of a GPU, this is False: the
    backward that runs is the one that called.
    """
    me = threading.get_ident()
    if not _started_by_python(me):
        return False
    return any(ident != me and (ident in _GATE.passed or _in_engine(at)) for ident, at in sys._current_frames().items())


def _started_by_python(ident: int) -> bool:
    thread = threading._active.get(ident)  # type: ignore[attr-defined]
    return thread is not None and not isinstance(thread, threading._DummyThread)


def _in_engine(frame: FrameType | None) -> bool:
    """Return whether a frame, or one that waits for it, is that of PyTorch's function that runs the engine."""
    while frame is not None:
        if frame.f_code is _GATE.code:
            return True
        frame = frame.f_back
    return False


class _Look:
    """Someone who reads the heap, in the thread that makes it."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()


class _Gate:
    """What stands in for the code of PyTorch's function while it is closed; who is in a backward already passes.

    The code is replaced and not the function, since other modules and wrappers have the function.

    Attributes:
        code: the function's own code, and None where this version of PyTorch has no such function.
        passed: threads that have come through and are about to run the engine, or do, each as often as it does.
    """

    def __init__(self) -> None:
        function = vars(torch.autograd.graph).get(_NAME)
        self._function = function if isinstance(function, FunctionType) and not function.__closure__ else None
        self.code: CodeType | None = self._function and self._function.__code__
        self.renew()

    def renew(self) -> None:
        """Open it for good, as after a fork: the threads that had closed it are gone."""
        self._lock = threading.RLock()  # a look may go, and say so, wherever memory is given back
        self._opened = threading.Event()
        self._looks: weakref.WeakSet[_Look] = weakref.WeakSet()
        self.passed: list[int] = []
        if self._function is not None and self.code is not None:
            self._function.__code__ = self.code

    def close(self, look: _Look) -> None:
        """Close it until the look is over, or gone, should an interrupt have kept it from being over."""
        with self._lock:
            self._looks.add(look)
            self._opened.clear()
            if self._function is not None:
                self._function.__code__ = _engine_run_backward.__code__
        weakref.finalize(look, self._over).atexit = False

    def open(self, look: _Look) -> None:
        """Say that a look is over; a second time does nothing."""
        self._looks.discard(look)
        self._over()

    def _over(self) -> None:
        with self._lock:
            if not self._looks:
                self._opened.set()
                if self._function is not None and self.code is not None:
                    self._function.__code__ = self.code

    def run(self, *args: Any, **kwargs: Any) -> Any:
        """Run the engine as soon as nobody looks."""
        me = threading.get_ident()
        while not self._may_pass(me):
            self._opened.wait()
        try:
            return self._engine()(*args, **kwargs)
        finally:
            with self._lock:
                if me in self.passed:  # and this is no fork
                    self.passed.remove(me)

    def _engine(self) -> Callable[..., Any]:
        assert self._function is not None
        assert self.code is not None
        return FunctionType(self.code, self._function.__globals__, _NAME)

    def _may_pass(self, me: int) -> bool:
        inside = me in self.passed or not _started_by_python(me) or _in_engine(sys._getframe())
        with self._lock:
            if not inside and any(look.thread != me for look in self._looks):
                return False
            self.passed.append(me)
            return True


def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
    import sys  # the globals are those of the module that this code is put into

    return sys.modules["byname.autograd.pause"]._GATE.run(*args, **kwargs)


_GATE = _Gate()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_GATE.renew)
