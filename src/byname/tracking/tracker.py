"""Tracker: watches a thread, and keeps the log of where each tensor was made and changed."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, TypeVar

import torch

from byname.errors import BadArgumentError, NotATensorError
from byname.reading.modes import FUNCTIONS
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import is_tensor, memory_of
from byname.table import counted
from byname.tracking.allocations import AllocationLog, AllocationMode
from byname.tracking.log import TRACKERS, CallListener, Log, Mutation
from byname.tracking.mode import TrackingMode
from byname.tracking.patches import NEW_THREADS, start, stop
from byname.undo import Blocks, Undo

T = TypeVar("T")


class Tracker:
    """Watches the thread that entered it; see `track`. Its log can be read for as long as the tracker is held.

    With allocations it also watches the threads that are started in the block.
    """

    def __init__(self, limit: int, allocations: bool = False) -> None:
        self._limit = limit
        self._allocations = AllocationLog(limit) if allocations else None
        self.listener: CallListener | None = None
        self.logs: list[Log] = []
        self._entered: list[TrackingMode] = []
        self._in_threads: list[TrackingMode] = []
        self._blocks = Blocks()
        TRACKERS.add(self)

    def __enter__(self) -> Tracker:
        return self._blocks.enter(self.begin)

    def __exit__(self, *_: object, left: Any = None) -> None:
        try:
            left = self._blocks.last()
            self._blocks.leave(left)
        except BaseException:
            self._blocks.leave(left)  # an interrupt may have come on the way
            raise

    def begin(self, block: Undo) -> Tracker:
        """Watch this thread until the block is left."""
        self._enter(block)
        if self._allocations is not None:
            context = self.in_thread
            block.add(self.leave_threads)
            block.add(NEW_THREADS.release, context)
            NEW_THREADS.hold(context)
        return self

    def _enter(self, block: Undo) -> TrackingMode:
        allocating = None if self._allocations is None else AllocationMode(self._allocations)
        mode = TrackingMode(self._log(), allocating)
        block.add(self._leave, mode)
        self._entered.append(mode)
        start(mode)
        return mode

    def _log(self) -> Log:
        """Return a log for this thread: an earlier log of this thread that is not in use, or a new one."""
        for log in self.logs:
            if log.of_this_thread() and all(mode.log is not log for mode in self._entered):
                return log
        log = Log(self._limit)
        log.listener = self.listener
        self.logs.append(log)
        return log

    def _leave(self, mode: TrackingMode) -> None:
        """Stop a tracking mode. A second call does nothing."""
        if mode not in self._entered:
            return
        stop(mode)
        if mode.log.is_empty():  # a program may start thousands of threads that compute nothing
            _drop(self.logs, mode.log)
        _drop(self._in_threads, mode)
        _drop(self._entered, mode)

    @contextmanager
    def in_thread(self) -> Iterator[None]:
        """Watch a thread until it ends, or until `leave_threads`."""
        block = Undo()
        try:
            self._in_threads.append(self._enter(block))
            yield
        finally:
            block()

    def leave_threads(self) -> None:
        """Stop every tracking mode that `in_thread` has started and that is still active."""
        for mode in self._in_threads[::-1]:
            self._leave(mode)

    def resume(self, called: Undo) -> None:
        """Watch again inside a function that PyTorch calls without the modes of the stack, such as backward."""
        here = threading.get_ident()
        for mode in self._entered[:]:
            if mode.log.thread == here and not FUNCTIONS.holds(mode):
                called.add(FUNCTIONS.remove, mode)
                FUNCTIONS.push(mode)

    def mutations(self, tensor: torch.Tensor) -> tuple[Mutation, ...]:
        """Return the in-place operations seen on a tensor's storage, through whatever view, in the order they ran.

        Raises:
            NotATensorError: `tensor` is not a tensor.

        >>> import byname, torch
        >>> with byname.track() as tracker:
        ...     h = torch.zeros(3)
        ...     h[0] = 1.0
        ...     h.view(3).add_(2)
        tensor([3., 2., 2.])
        >>> [change.operation for change in tracker.mutations(h)]
        ['__setitem__', 'add_']
        """
        if not is_tensor(tensor):
            raise NotATensorError(f"mutations() expects a tensor, but got {type(tensor).__name__}")
        with DisableTorchFunction():
            owner = memory_of(tensor)
        return tuple([mutation for log in self.logs for mutation in log.mutations(owner)])

    def __repr__(self) -> str:
        calls = sum(len(log.calls) for log in self.logs)
        changes = sum(len(log.changes) for log in self.logs)
        seen = f"{counted(calls, 'call')} that made nodes, {counted(changes, 'in-place change')}"
        if self._allocations is not None:
            seen += f", {counted(len(self._allocations), 'living storage')}"
        return f"<byname.Tracker: {seen}>"


def track(*, allocations: bool = False, limit: int = 1_000_000) -> Tracker:
    """Record where every operation of this thread stands in the source, while the ``with`` block runs.

    Graph nodes, leaves and in-place changes then have a `Site`: file, line, function, statement and variable. An
    overwritten leaf keeps the name it had. Other functions of byname use the log without being asked. Tracking costs
    about a microsecond per call of a PyTorch function and holds no tensor. Compiled functions run compiled, and each of
    their calls is recorded as one.

    Args:
        allocations: True to record also where every storage is allocated, by a dispatch mode: storages that only C++
            holds, those of backward and of optimizers, and those in threads that are started in the block. A step of
            190 ms takes about 1.15 times as long, a step of tiny operations five times as long. Compiled functions
            still run compiled; the mode neither causes nor prevents a compilation.
        limit: the most calls, and the most in-place changes, to remember; the oldest are dropped first. With
            ``allocations=True``, also the number of records of freed storages kept before they are purged.

    Raises:
        BadArgumentError: `limit` is not a positive whole number, or `allocations` is neither True nor False.

    >>> import byname, torch
    >>> with byname.track():
    ...     weight = torch.ones(2, requires_grad=True)
    ...     loss = (weight * 3).sum()
    ...     site = byname.leaves(loss)[0].site
    >>> site.target
    'weight'
    """
    if type(limit) is not int or limit < 1:
        given = limit if type(limit) in (int, float) else type(limit).__name__
        raise BadArgumentError(f"limit is the number of calls to remember, an int of at least 1, but got {given}")
    if type(allocations) is not bool:
        raise BadArgumentError(f"allocations must be True or False, but got {type(allocations).__name__}")
    return Tracker(limit, allocations)


def _drop(held: list[T], one: T) -> None:
    """Remove an item from a list, unless another thread has removed it."""
    with suppress(ValueError):
        held.remove(one)
