"""Unwatched: optimizer steps and compiled functions, recorded as one change and one call, with the modes off the stack.

During a step the versions of the parameters are compared before and after. A step begins at PyTorch's global hook, and
ends when PyTorch leaves the ``record_function`` around it, which also happens if the step raises. A step with a
closure, or one that is itself differentiable, stays watched. A ``zero_grad()`` that drops the gradients runs with the
modes off in the same way, and leaves no record.

The guards of compiled code check the stack of function modes and the functions that byname patches. So byname restores
both from the moment the compiler becomes active for a call until that call returns, and nothing is compiled again.
Where this is not possible (another version of the compiler, several watched threads), compiled functions run eagerly
instead, in the whole process.
"""

from __future__ import annotations

import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import FrameType, ModuleType
from typing import Any, NamedTuple

import torch

from byname.reading.frames import NO_LINE, Line, reported_frame, user_line
from byname.reading.functions import versions_of
from byname.reading.modes import FUNCTIONS
from byname.reading.modules import parameters_of
from byname.reading.quiet import DisableTorchFunction, dynamo_skip, torch_function_disabled
from byname.reading.tensor import memory_of
from byname.tracking.log import Called, Change, OptimizerStep
from byname.tracking.mode import TrackingMode
from byname.undo import Patch


class _Step(NamedTuple):
    frame: FrameType
    name: str
    line: Line
    tracking_modes: list[TrackingMode]
    parameters: list[torch.Tensor]
    versions: tuple[int | None, ...]
    modes: list[Any] | None


class OptimizerSteps:
    """The optimizer steps in progress, at most one per thread; a step inside another counts as a part of it."""

    def __init__(self, tracking_modes: Mapping[int, Sequence[TrackingMode]]) -> None:
        self._tracking_modes = tracking_modes
        self._running: dict[int, _Step] = {}

    @dynamo_skip
    def begin(self, optimizer: torch.optim.Optimizer, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Begin a step; this is PyTorch's global hook before it."""
        thread = threading.get_ident()
        tracking_modes = [] if torch_function_disabled() else list(self._tracking_modes.get(thread, ()))
        frame = sys._getframe(1)
        if tracking_modes and thread not in self._running and "record_function" in frame.f_code.co_names:
            closure = any(one is not None for one in [*args[1:], *kwargs.values()])
            watched = closure or bool(optimizer.defaults.get("differentiable"))
            self._running[thread] = _begin_step(optimizer, tracking_modes, frame, watched)

    def wrap_enter(self, enter: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement for PyTorch's ``record_function.__enter__`` that takes the modes off in ``zero_grad()``.

        It makes two calls for each parameter, and there is nothing to record of a gradient that is only dropped.
        """

        @dynamo_skip
        def wrap_enter(record: Any) -> Any:
            entered, frame = enter(record), sys._getframe(1)
            if frame.f_code is _ZERO_GRAD and frame.f_locals["set_to_none"]:
                thread = threading.get_ident()
                tracking_modes = list(self._tracking_modes.get(thread, ()))
                if tracking_modes and thread not in self._running and not torch_function_disabled():
                    self._running[thread] = _Step(
                        frame, "", NO_LINE, tracking_modes, [], (), FUNCTIONS.remove_all(tracking_modes)
                    )
            return entered

        return wrap_enter

    def wrap_exit(self, leave: Callable[..., Any]) -> Callable[..., Any]:
        """Return a replacement for PyTorch's ``record_function.__exit__`` that ends what has begun after it."""

        @dynamo_skip
        def wrap_exit(record: Any, *error: Any) -> Any:
            try:
                return leave(record, *error)
            finally:
                step = self._running.get(threading.get_ident())
                if step is not None and step.frame is sys._getframe(1):
                    del self._running[threading.get_ident()]
                    _end(step)

        return wrap_exit


_ZERO_GRAD = inspect.unwrap(torch.optim.Optimizer.zero_grad).__code__


def _begin_step(
    optimizer: torch.optim.Optimizer, tracking_modes: list[TrackingMode], frame: FrameType, watched: bool
) -> _Step:
    line = user_line(reported_frame(frame))
    name = f"{type(optimizer).__name__}.step"
    number = torch._C._autograd._get_sequence_nr()
    for mode in tracking_modes:
        mode.log.steps.append(OptimizerStep(number, line, weakref.ref(optimizer), name))
        mode.stepping = name
    modes = None if watched else FUNCTIONS.remove_all(tracking_modes)
    parameters = [] if watched else parameters_of(optimizer)
    return _Step(frame, name, line, tracking_modes, parameters, versions_of(parameters), modes)


def _end(step: _Step) -> None:
    watching = [mode for mode in step.tracking_modes if not mode.stopped]
    for mode in watching:
        mode.stepping = None
    if step.modes is None:
        return
    FUNCTIONS.restore(watching, step.modes)
    storages: list[weakref.ref[Any]] = []
    versions: list[tuple[int, int]] = []
    with DisableTorchFunction():
        now = versions_of(step.parameters)
        for parameter, before, after in zip(step.parameters, step.versions, now, strict=True):
            if before is not None and after is not None and before != after:
                storages.append(weakref.ref(memory_of(parameter)))
                versions.append((before, after))
    for mode in watching if storages else ():
        mode.log.changes.append(Change(step.line, step.name, tuple(storages), tuple(versions)))


_SWITCH = "_maybe_set_eval_frame"
"""Name of the function by which PyTorch's compiler switches itself on for a call, and off after it (2.7 to 2.13)."""


class _Region(NamedTuple):
    frame: FrameType
    tracking_modes: list[TrackingMode]
    modes: list[Any]
    before: int


class Compiled:
    """The compiled functions that are running in watched threads.

    Args:
        tracking_modes: the tracking modes of each watched thread, by the thread's identifier.
        hide, show: functions that remove the patches and put them back.
    """

    def __init__(
        self, tracking_modes: Mapping[int, Sequence[TrackingMode]], hide: Callable[[], None], show: Callable[[], None]
    ) -> None:
        self._tracking_modes = tracking_modes
        self._hide, self._show = hide, show
        self._regions: dict[int, _Region] = {}
        self._patch: Patch | None = None
        self._stance: Any = None

    def watch(self) -> None:
        """Prepare for compiled functions, if the compiler has been imported."""
        if "torch._dynamo" not in sys.modules:
            return
        frames = sys.modules["torch._dynamo.eval_frame"]
        if len(self._tracking_modes) > 1 or not self._can_switch(frames):
            self._stance = self._stance or torch.compiler.set_stance("force_eager")
        elif self._patch is None:
            self._patch = Patch(frames, _SWITCH, self._switching)
            self._patch.install()

    def unwatch(self) -> None:
        self._regions.clear()
        if self._patch is not None:
            self._patch.remove()
            self._patch = None
        if self._stance is not None:
            self._stance.__exit__(None, None, None)
            self._stance = None

    def _can_switch(self, frames: ModuleType) -> bool:
        active = getattr(torch._C._dynamo.eval_frame, "get_eval_frame_callback", None)
        if active is None or not callable(vars(frames).get(_SWITCH)):
            return False
        return self._patch is not None or active() is None

    def _switching(self, original: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return a replacement for PyTorch's own switch, which is called at the start and end of a compiled call."""

        @dynamo_skip
        def switch(callback: Any) -> Any:
            thread = threading.get_ident()
            region, frame = self._regions.get(thread), sys._getframe(1)
            if region is None:
                tracking_modes = list(self._tracking_modes.get(thread, ()))
                if tracking_modes and callback is not None and frame.f_code.co_name not in ("__enter__", "__exit__"):
                    self._begin(thread, frame, tracking_modes)
                return original(callback)
            prior = original(callback)
            if region.frame is frame:
                self._end(thread, region)
            return prior

        return switch

    def _begin(self, thread: int, frame: FrameType, tracking_modes: list[TrackingMode]) -> None:
        before = torch._C._autograd._get_sequence_nr()
        self._regions[thread] = _Region(frame, tracking_modes, FUNCTIONS.remove_all(tracking_modes), before)
        self._hide()

    def _end(self, thread: int, region: _Region) -> None:
        del self._regions[thread]
        watching = [mode for mode in region.tracking_modes if not mode.stopped]
        self._show()
        FUNCTIONS.restore(watching, region.modes)
        result = region.frame.f_locals.get("result")  # reading it keeps nothing alive: the frame is about to return
        for mode in watching:
            mode.note_unseen(_CALLED, (), result, region.before, region.frame)


_CALLED = Called("compiled", False)
