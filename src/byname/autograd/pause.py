"""Pause: while byname reads the heap, other threads begin no backward, and byname waits for those that run.

A backward frees saved tensors and sets gradients without holding Python's lock. Reading a saved tensor or a gradient at
that moment is a use after free, which crashes the process (PyTorch 2.13). So they take turns: one thread reads the heap
(a "look") at a time, and a waiting backward goes before the next look.
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
from byname.source.tracebacks import walk_frames
from byname.undo import Shared

PATIENCE = 10.0
"""Seconds to wait for the backward of another thread."""
_NAME = "_engine_run_backward"


@contextmanager
def backward_paused() -> Iterator[None]:
    """Keep other threads from beginning a backward, and wait up to `PATIENCE` until those that run have ended."""
    look = _Turn()
    try:
        _wait_until(lambda: _GATE.close(look))
        end = time.monotonic() + PATIENCE
        _wait_until(lambda: not backward_elsewhere() or time.monotonic() > end)
        yield
    finally:
        try:
            with defer_signals():
                _GATE.open(look)
        finally:
            _GATE.open(look)  # an interrupt may have come before the signals waited


def backward_elsewhere() -> bool:
    """Return whether another thread runs a backward. Inside `backward_paused` none begins.

    A backward whose hook reads the heap does not count, because it stands still meanwhile. In a thread that Python has
    not started, such as the engine's for nodes of a GPU, the result is False: the backward that runs is the caller's.
    """
    me = threading.get_ident()
    if not _started_by_python(me):
        return False
    running, still = _GATE.threads("passed"), {me}
    if _hooks_stop_backward():
        still |= _GATE.threads("looks") | _GATE.threads("waiting")
    # No variable holds the frames, for this function's own is among them.
    found = ((ident in running or _in_engine(at)) and ident not in still for ident, at in sys._current_frames().items())
    return any(found)


def _wait_until(reached: Callable[[], bool]) -> None:
    while not reached():
        time.sleep(0.001)


def _started_by_python(ident: int) -> bool:
    thread = threading._active.get(ident)  # type: ignore[attr-defined]
    return thread is not None and not isinstance(thread, threading._DummyThread)


def _in_engine(frame: FrameType | None) -> bool:
    return any(one.f_code is _GATE.code for one in walk_frames(frame))


def _hooks_stop_backward() -> bool:
    """Return whether a backward stands still while one of its hooks runs, because no device has a thread of its own."""
    used = torch.cuda.is_initialized() or torch.xpu.is_initialized()  # type: ignore[no-untyped-call]
    return not (used or torch.backends.mps.is_available())


def not_ended(left_out: str) -> str:
    """Return a note that another thread's backward had not ended in time."""
    ended = f"a backward in another thread had not ended after {PATIENCE:.0f} seconds"
    return f"{ended}, and what nodes save cannot be read meanwhile: {left_out}"


class _Turn:
    """A look at the heap, or a backward, of the current thread; `_Gate._closed` holds its token, and so not this."""

    def __init__(self) -> None:
        self.thread = threading.get_ident()
        self.token = object()


class _Gate:
    """Gate in front of PyTorch's engine function: while it is closed, only a thread inside a backward passes.

    It replaces the code of the function and not the function, because other modules and wrappers hold the function. Its
    own `code` is None where this version of PyTorch has no such function.
    """

    def __init__(self) -> None:
        function = vars(torch.autograd.graph).get(_NAME)
        self._function = function if isinstance(function, FunctionType) and not function.__closure__ else None
        self.code: CodeType | None = self._function and self._function.__code__
        self.renew()

    def renew(self) -> None:
        """Open the gate after a fork: the child does not have the threads that closed it."""
        self._lock = threading.RLock()  # a look may be freed, and so call `_over`, at any moment
        self._turns = {kind: weakref.WeakSet[_Turn]() for kind in ("looks", "waiting", "passed")}
        self._closed = Shared(self._replace, self._restore)
        self._restore()

    def _replace(self) -> None:
        if self._function is not None:
            self._function.__code__ = _engine_run_backward.__code__

    def _restore(self) -> None:
        if self._function is not None and self.code is not None:
            self._function.__code__ = self.code

    def close(self, look: _Turn) -> bool:
        """Close the gate until `open(look)`, or until `look` is freed if nobody opens it; False if others are first."""
        with self._lock:
            others, looking = self._others("looks"), self.threads("looks")
            # the thread that looks may wait for this thread's backward, which therefore must not wait for the look
            blocked = not self._is_inside() if others else self._others("waiting")
            if blocked and look.thread not in looking:
                return False
            self._turns["looks"].add(look)
            weakref.finalize(look, self._over, look.token).atexit = False
            self._closed.hold(look.token)
        return True

    def open(self, look: _Turn) -> None:
        """Open the gate after a look; a second call does nothing. A backward that stood still waits for its turn."""
        with self._lock:
            self._turns["looks"].discard(look)
        self._over(look.token)
        if self._is_inside() and _hooks_stop_backward() and look.thread not in self.threads("looks"):
            self._wait(lambda: not self._others("looks"))

    def _over(self, token: object) -> None:
        self._closed.release(token)  # not bound earlier, since `renew` replaces it

    def run(self, *args: Any, **kwargs: Any) -> Any:
        backward = _Turn()
        try:
            self._wait(lambda: self._may_pass(backward))
            assert self._function is not None
            assert self.code is not None
            return FunctionType(self.code, self._function.__globals__, _NAME)(*args, **kwargs)
        finally:
            with self._lock:
                self._turns["passed"].discard(backward)

    def _wait(self, reached: Callable[[], bool]) -> None:
        """Wait until a condition holds; no other thread begins a look before."""
        turn = _Turn()
        try:
            with self._lock:
                self._turns["waiting"].add(turn)
            _wait_until(reached)
        finally:
            with self._lock:
                self._turns["waiting"].discard(turn)

    def _may_pass(self, backward: _Turn) -> bool:
        with self._lock:
            if self._others("looks") and not self._is_inside():
                return False
            self._turns["passed"].add(backward)
            return True

    def _is_inside(self) -> bool:
        me = threading.get_ident()
        return me in self.threads("passed") or not _started_by_python(me) or _in_engine(sys._getframe())

    def threads(self, kind: str) -> set[int]:
        """Return the threads of one kind: "looks" read the heap, "waiting" wait, "passed" run the engine."""
        with self._lock:
            return {turn.thread for turn in self._turns[kind]}

    def _others(self, kind: str) -> set[int]:
        return self.threads(kind) - {threading.get_ident()}


def _engine_run_backward(*args: Any, **kwargs: Any) -> Any:
    import sys  # the globals are those of the module that this code is put into

    return sys.modules["byname.autograd.pause"]._GATE.run(*args, **kwargs)


_GATE = _Gate()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_GATE.renew)
