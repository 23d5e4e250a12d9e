"""Function mode: observes the results of PyTorch functions, and is active only while the modules that call them run.

A module that calls requested operations is their owner. Its forward opens a frame, which counts the calls by name. The
mode is off while a module inside the owner runs that is no owner itself: its calls do not belong to the owner, and so
cost nothing.
"""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from types import CodeType, FrameType
from typing import Any

from torch import nn
from torch.overrides import TorchFunctionMode, handle_torch_function

from byname.errors import InterjectionError
from byname.model.module_tree import join_path
from byname.model.operations import ATTENTIONS, PARTS_OF_ATTENTION, main_result, operation_name, operation_path, taken
from byname.reading.frames import MODULE_CALL_CODE, runs
from byname.reading.functions import is_in_place
from byname.reading.modes import FUNCTIONS
from byname.reading.quiet import dynamo_skip
from byname.source.code import CodeKey
from byname.tracing.muted import thread_state
from byname.tracing.tracer import OpenCalls, functions_running
from byname.watch.attachment import Attachment
from byname.watch.delivery import ReportedPlace
from byname.watch.explicit_attention import ReplacePart, explicit_attention, explicit_multi_head, with_all_heads
from byname.watch.hooks import ALWAYS_FIRST, BEFORE, Hook, Hooks
from byname.watch.replacement import (
    IN_CHECKPOINT,
    changed_tensor,
    copying_saved_tensors,
    is_checkpoint_frame,
    overwrite,
)

Parts = Mapping[str, Sequence[ReportedPlace]]


class ReportedOperation:
    """An operation, and the places that report it.

    Attributes:
        in_place: whether its name says that it works in place.
        special: whether it may have to change a tensor in place, or to run step by step.
        parts: the places that report steps inside of it, by the names of the steps; it then runs step by step.
        asked: whether anything reports it.
    """

    __slots__ = ("asked", "in_place", "parts", "path", "places", "special")

    def __init__(self, path: str, places: Sequence[ReportedPlace], in_place: bool, parts: Parts | None = None) -> None:
        self.path, self.places, self.in_place, self.parts = path, places, in_place, parts
        self.asked = bool(places or parts)
        self.special = in_place or parts is not None


Decide = Callable[["Owner", str, str, Any], Sequence[ReportedPlace]]
"""A function ``(owner, path, name, function)`` that returns the places that report an operation.

It is called once for each path."""


@dataclass(slots=True, eq=False)
class Owner:
    """A module that calls observed operations.

    Attributes:
        ran: whether its forward has begun since it was hooked.
        idle: whether none of its operations is requested any more.
        functions: the functions that it calls and whose operations are requested, by name.
        decided: what is known of the k-th call of a name in the module, or in a function that it calls.
    """

    module: nn.Module
    path: str
    ran: bool = False
    idle: bool = False
    functions: dict[str, CodeKey] = field(default_factory=dict)
    decided: dict[tuple[str, int], ReportedOperation] = field(default_factory=dict)


class _Frame:
    """One run of an owner's forward.

    Attributes:
        counts: how often each name was called.
        active_callbacks: the number of callbacks running when it began; what those that run now call is not counted.
        caller: the code that called an operation last, and is known to run inside of it.
        callers: each code that is known to do so, by its ``id``: the hash of a code object takes longer than its
            operation. None if the call is not visible on Python's stack, since another library replaced PyTorch's code.
    """

    __slots__ = ("active_callbacks", "caller", "callers", "counts", "owner")

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.active_callbacks = len(thread_state.active_callbacks)
        self.caller: CodeType | None = None
        self.callers: dict[int, CodeType] | None = {} if runs(owner.module) else None
        self.counts: dict[str, int] = {}

    def has_ended(self, caller: CodeType) -> bool:
        """Return whether an interrupt has ended it, without a hook, before this code calls an operation."""
        if self.callers is not None and id(caller) not in self.callers:
            self.callers[id(caller)] = caller
            if not runs(self.owner.module):
                return True
        self.caller = caller
        return False


class _Mode(TorchFunctionMode):
    """The function mode of one thread.

    Attributes:
        frame: the running forward of an owner; None while a module runs that is no owner.
        frames: for each module around it, the frame and the flag `on` before it began.
        on: whether it is on the mode stack of that thread. PyTorch pops it while it handles a call.
        gone: whether its attachment was removed, so that it must not be pushed again.
    """

    def __init__(self, functions: ObservedOperations) -> None:
        super().__init__()
        self.functions = functions
        self.order = functions.attachment.order
        self.thread = threading.get_ident()
        self.active_callbacks = thread_state.active_callbacks
        self.frame: _Frame | None = None
        self.frames: OpenCalls[tuple[_Frame | None, bool]] = OpenCalls()
        self.on = False
        self.gone = False

    @dynamo_skip
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frame = self.frame
        if (
            frame is not None
            and len(self.active_callbacks) == frame.active_callbacks
            and (name := operation_name(func)) is not None
        ):
            owner, counts = frame.owner, frame.counts
            k = counts.get(name, 0)
            counts[name] = k + 1
            found = owner.decided.get((name, k))
            if found is None or found.asked:
                caller = sys._getframe(1).f_code
                if caller is not frame.caller and frame.has_ended(caller):
                    self.frame = None
                    return func(*args, **kwargs) if kwargs else func(*args)
            if found is None:
                found = owner.decided[name, k] = self.functions.decide(owner, name, k, func)
            if owner.functions:
                found = self.functions.with_called(frame, found, name, func)
            if found.asked:
                if kwargs or found.special or self.functions.attachment.before is not None:
                    return self.functions.report(owner, found, func, args, kwargs or {})
                result = func(*args)
                whole = value = main_result(func, result) if type(result) is tuple else result
                for place in found.places:
                    value = place.report(None, args, None, value)
                return result if value is whole else _replaced(owner, found.path, result, whole, value)
        return func(*args, **kwargs) if kwargs else func(*args)


class ObservedOperations:
    """The operations that one attachment observes; `explicit` is whether attention may run step by step."""

    def __init__(self, attachment: Attachment, decide: Decide, *, explicit: bool) -> None:
        self.attachment = attachment
        self._decide, self._explicit = decide, explicit
        self._listening = False
        self._modes: list[weakref.ref[_Mode]] = []  # weak: when a thread ends, its mode is freed

    def hook(self, hooks: Hooks, owners: Sequence[Owner], others: Sequence[nn.Module]) -> None:
        """Hook the modules that own operations, and others that may run inside them."""
        self._listening = True
        pause, close = Hook(self._pause, 3, self.attachment), Hook(self._close, 3, self.attachment)
        for owner in owners:
            hooks.call(BEFORE, owner.module, partial(self._open, owner))
        hooks.pending += [(module, pause, BEFORE) for module in others]
        hooks.pending += [(one, close, ALWAYS_FIRST) for one in (*(owner.module for owner in owners), *others)]

    def remove(self) -> None:
        """Stop reporting, also in a forward that is running; its thread's mode stack is restored once it has ended."""
        self._listening = False
        for mode in self._known_modes():
            outermost = mode.frames[0][0] if mode.frames else self.attachment.model
            mode.gone = True
            mode.frame = None
            here = mode.thread == threading.get_ident()
            if mode.on and not (here and (FUNCTIONS.holds(mode) or not runs(outermost))):
                _take_off_later(outermost, mode)
            elif here:  # an interrupt may have come before `on` was set
                _take_off(mode)
                if not mode.frames:  # so that it does not keep this attachment, and its model
                    self.attachment.thread.state.mode = None
        self._modes.clear()

    def _forget(self, one: weakref.ref[_Mode]) -> None:
        with suppress(ValueError):
            self._modes.remove(one)

    def _known_modes(self) -> list[_Mode]:
        return [mode for one in [*self._modes] if (mode := one()) is not None]

    def in_other_threads(self) -> bool:
        """Return whether owners are running in other threads."""
        mine = self.attachment.thread.state.mode
        return any(mode.frames for mode in self._known_modes() if mode is not mine)

    def reset(self) -> None:
        """Discard frames that an earlier forward has left, for example because of an interrupt."""
        mode: _Mode | None = self.attachment.thread.state.mode
        if mode is not None and (mode.frames or mode.on):
            mode.frames.clear()
            mode.frame = None
            _take_off(mode)

    def decide(self, owner: Owner, name: str, k: int, func: Any) -> ReportedOperation:
        """Return the path of the k-th call of a name in a module, and the places that report it."""
        path = operation_path(owner.path, name, k, taken(owner.module))
        wanted = self._decide(owner, path, name, func)
        parts = None
        if self._explicit and name in ATTENTIONS:
            parts = {part: self._decide(owner, f"{path}.{part}", part, func) for part in PARTS_OF_ATTENTION}
        in_place = is_in_place(str(getattr(func, "__name__", "")))
        return ReportedOperation(path, wanted, in_place, parts if parts and any(parts.values()) else None)

    def with_called(self, frame: _Frame, found: ReportedOperation, name: str, func: Any) -> ReportedOperation:
        """Return the call with the places that report it as an operation of a function inside the module as well."""
        owner, counts = frame.owner, frame.counts
        path, places = found.path, found.places
        for function in functions_running(owner.functions, sys._getframe(2)):
            label = f"{function}.{name}"
            k = counts.get(label, 0)
            counts[label] = k + 1
            decided = owner.decided.get((label, k))
            if decided is None:
                place = operation_path(join_path(owner.path, function), name, k)
                wanted = self._decide(owner, place, name, func)
                decided = owner.decided[label, k] = ReportedOperation(place, wanted, found.in_place)
            if decided.places:
                path, places = decided.path, [*places, *decided.places]
        return ReportedOperation(path, places, found.in_place, found.parts)

    def report(self, owner: Owner, found: ReportedOperation, func: Any, args: Any, kwargs: Any) -> Any:
        """Run and report an operation that may work in place, runs step by step, or is announced to ``before``."""
        attachment, inputs = self.attachment, (*args, *kwargs.values())
        if found.parts is not None:
            func = _step_by_step(found.parts, func, owner.module)
        before = [attachment.run_before(found.path, owner.module, args, kwargs) for _ in found.places]
        changed = changed_tensor(func, args, kwargs) if kwargs or found.in_place else None
        with nullcontext() if changed is None else copying_saved_tensors(changed):
            result = func(*args, **kwargs)
            node = None if changed is None else changed.grad_fn
            whole: Any = changed if result is None else main_result(func, result)
            value = whole
            for place, begun in zip(found.places, before, strict=True):
                value = place.report(None, inputs, None, value, begun)
        if value is whole:
            return result
        if changed is None or changed is not whole:
            return _replaced(owner, found.path, result, whole, value)
        _refuse_in_checkpoint(owner, found.path)
        overwrite(changed, value, node)  # the caller of an in-place function may ignore the result
        return result

    def _open(self, owner: Owner, module: nn.Module, *_: Any) -> None:
        if owner.idle or not self.attachment.observes():
            self._pause(module)
            return
        mode = self._mode()
        if mode.gone:
            return
        owner.ran = True
        mode.frames.append((module, (mode.frame, mode.on)))
        mode.frame = _Frame(owner)
        if not mode.on:
            _put_on(mode)

    def _pause(self, module: nn.Module, *_: Any) -> None:
        mode = self._mode()
        if mode.gone:
            return
        mode.frames.append((module, (mode.frame, mode.on)))
        mode.frame = None
        if mode.on:
            _take_off(mode)

    def _close(self, module: nn.Module, *_: Any) -> None:
        mode: _Mode | None = self.attachment.thread.state.mode
        if mode is None or (before := mode.frames.end(module)) is None:
            return
        mode.frame, on = before
        if on and not mode.on:
            _put_on(mode)
        elif mode.on and not on:
            _take_off(mode)

    def _mode(self) -> _Mode:
        here = self.attachment.thread.state
        mode: _Mode | None = here.mode
        if mode is None or mode.gone or mode.functions is not self:
            mode = here.mode = _Mode(self)
            self._modes.append(weakref.ref(mode, self._forget))
        mode.gone = mode.gone or not self._listening  # another thread may have removed it just now
        return mode


class _StepwiseAttention:
    """A function of PyTorch's that computes attention, run step by step.

    Other attachments, whose modes are below on the stack, are called with it as with the function itself.
    """

    def __init__(self, function: Any, replace_part: ReplacePart) -> None:
        self.__name__ = function.__name__
        self.function = function
        self.replace_part = replace_part

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(type(mode) is _Mode for mode in FUNCTIONS.modes()):
            return handle_torch_function(self, (), *args, **kwargs)
        if self.__name__ == ATTENTIONS[0]:
            return explicit_attention(self.replace_part, *args, **kwargs)
        return explicit_multi_head(self.replace_part, self.function, *args, **kwargs)


def _replaced(owner: Owner, path: str, result: Any, whole: Any, value: Any) -> Any:
    """Return the result of an operation with another value in the place of its main one."""
    _refuse_in_checkpoint(owner, path)
    return (value, *result[1:]) if type(result) is tuple and whole is not result else value


def _refuse_in_checkpoint(owner: Owner, path: str) -> None:
    """Refuse a replacement where a checkpoint of a function in the owner's forward will run again without the mode."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and not (frame.f_code is MODULE_CALL_CODE and frame.f_locals.get("self") is owner.module):
        if is_checkpoint_frame(frame):
            raise InterjectionError(f"`{path}` {IN_CHECKPOINT}")
        frame = frame.f_back


def _step_by_step(parts: Parts, func: Any, module: nn.Module) -> _StepwiseAttention:
    """Return a function that computes attention in steps, and reports the requested ones."""
    later = func.replace_part if type(func) is _StepwiseAttention else None

    def report(part: str, value: Any) -> Any:
        for place in parts[part]:
            value = place.report(None, (), None, value)
        return value

    def replace_part(part: str, value: Any) -> Any:
        value = with_all_heads(module, value, partial(report, part))
        return later(part, value) if later is not None else value

    return _StepwiseAttention(func.function if type(func) is _StepwiseAttention else func, replace_part)


def _put_on(mode: _Mode) -> None:
    """Push a mode on the stack, below byname's modes of later attachments: these get the replaced results."""
    level = depth = FUNCTIONS.depth()
    while level and type(top := FUNCTIONS.at(level - 1)) is _Mode and top.order >= mode.order:
        level -= 1
    if level == depth:
        FUNCTIONS.push(mode)
    else:
        FUNCTIONS.put_in(mode, level)
    thread_state.modes.append(mode)
    mode.on = True
    if mode.gone:
        _take_off(mode)


def _take_off_later(module: nn.Module, mode: _Mode) -> None:
    """Remove a mode from the stack once a running module has ended: PyTorch, or another thread, may yet push it."""

    def ended(*_: Any) -> None:
        if threading.get_ident() == mode.thread:
            handle.remove()
            _take_off(mode)

    handle = module.register_forward_hook(Hook(ended, 3, mode.functions.attachment), always_call=True)


def _take_off(mode: _Mode) -> None:
    FUNCTIONS.remove(mode)
    if mode in thread_state.modes:
        thread_state.modes.remove(mode)
    mode.on = False
