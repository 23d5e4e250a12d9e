"""Optimizer steps: when an optimizer stepped and what it changed, recorded as one change.

During a step the mode is off the stack, and the versions of the parameters are compared before and after instead. A
step begins at PyTorch's global hook, and ends when PyTorch leaves the ``record_function`` around it, which also happens
if the step raises. A step with a closure, or one that is itself differentiable, stays watched.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

import torch

from byname.reading.frames import Line, line_of, programs_frame
from byname.reading.functions import versions_of
from byname.reading.modes import FUNCTIONS
from byname.reading.quiet import DisableTorchFunction, dynamo_skip, torch_function_disabled
from byname.reading.tensor import memory_of
from byname.tracking.log import Change, OptimizerStep
from byname.tracking.mode import TrackingMode


@dataclass(frozen=True, slots=True)
class _Step:
    """A step in progress."""

    frame: FrameType
    name: str
    line: Line
    watches: list[TrackingMode]
    parameters: list[torch.Tensor]
    versions: tuple[int | None, ...]
    modes: list[Any] | None


class Steps:
    """The optimizer steps in progress, at most one per thread; a step inside another counts as a part of it."""

    def __init__(self, watches: Mapping[int, Sequence[TrackingMode]]) -> None:
        self._watches = watches
        self._running: dict[int, _Step] = {}

    @dynamo_skip
    def begin(self, optimizer: torch.optim.Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Begin a step; this is PyTorch's global hook before it."""
        thread = threading.get_ident()
        watches = [] if torch_function_disabled() else list(self._watches.get(thread, ()))
        frame = sys._getframe(1)
        if watches and thread not in self._running and "record_function" in frame.f_code.co_names:
            watched = _stays_watched(optimizer, args, kwargs)
            self._running[thread] = _begun(optimizer, watches, frame, watched)

    def ending(self, leave: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement for PyTorch's ``record_function.__exit__`` that ends the step after it."""

        @dynamo_skip
        def ending(record: Any, *error: Any) -> Any:
            try:
                return leave(record, *error)
            finally:
                step = self._running.get(threading.get_ident())
                if step is not None and step.frame is sys._getframe(1):
                    del self._running[threading.get_ident()]
                    _end(step)

        return ending


def _stays_watched(optimizer: torch.optim.Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    closure = any(one is not None for one in [*args[1:], *kwargs.values()])
    return closure or bool(optimizer.defaults.get("differentiable"))


def _begun(optimizer: torch.optim.Optimizer, watches: list[TrackingMode], frame: FrameType, watched: bool) -> _Step:
    line = line_of(programs_frame(frame))
    name = f"{type(optimizer).__name__}.step"
    number = torch._C._autograd._get_sequence_nr()
    for watch in watches:
        watch.log.steps.append(OptimizerStep(number, line, weakref.ref(optimizer), name))
        watch.stepping = name
    if watched:
        return _Step(frame, name, line, watches, [], (), None)
    modes = FUNCTIONS.take_off(watches)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    return _Step(frame, name, line, watches, parameters, versions_of(parameters), modes)


def _end(step: _Step) -> None:
    watching = [watch for watch in step.watches if not watch.stopped]
    for watch in watching:
        watch.stepping = None
    if step.modes is None:
        return
    FUNCTIONS.put_back(watching, step.modes)
    with DisableTorchFunction():
        _note_changes(step, watching)


def _note_changes(step: _Step, watching: list[TrackingMode]) -> None:
    now = versions_of(step.parameters)
    storages: list[weakref.ref[Any]] = []
    versions: list[tuple[int, int]] = []
    for parameter, before, after in zip(step.parameters, step.versions, now, strict=True):
        if before is not None and after is not None and before != after:
            storages.append(weakref.ref(memory_of(parameter)))
            versions.append((before, after))
    if storages:
        for watch in watching:
            watch.log.changes.append(Change(step.line, step.name, tuple(storages), tuple(versions)))
