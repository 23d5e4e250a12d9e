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
from contextlib import suppress
from functools import partial
from types import FrameType
from typing import Any, NamedTuple

from torch import nn
from torch.overrides import TorchFunctionMode, handle_torch_function

from byname.errors import InterjectionError
from byname.model.module_tree import under
from byname.model.operations import (
    ATTENTIONS,
    PARTS_OF_ATTENTION,
    main_result,
    operation_name,
    operation_path,
    taken,
)
from byname.reading.frames import CODE_OF_A_MODULES_CALL
from byname.reading.functions import is_in_place
from byname.reading.modes import FUNCTIONS
from byname.reading.quiet import dynamo_skip
from byname.source.code import ThisCode
from byname.tracing.callers import OpenCalls, functions_running
from byname.tracing.muted import active_modes
from byname.watch.attachment import Running, runs
from byname.watch.delivery import Deliver
from byname.watch.explicit_attention import See, explicit_attention, explicit_multi_head, with_all_heads
from byname.watch.hooks import Hook, Hooks
from byname.watch.inplace import called, changed_by, overwrite
from byname.watch.replacement import IN_CHECKPOINT, runs_again

Parts = Mapping[str, Sequence[Deliver]]


class ReportedOperation(NamedTuple):
    """An operation, and the functions that report it.

    Attributes:
        path: the path of the operation.
        delivers: the functions that report its result.
        in_place: whether its name says that it works in place.
        parts: the functions that report steps inside of it, by the names of the steps; it then runs step by step.
    """

    path: str
    delivers: Sequence[Deliver]
    in_place: bool
    parts: Parts | None = None


Decide = Callable[["Owner", str, str, Any], Sequence[Deliver]]
"""A function ``(owner, path, name, function)`` that returns the functions that report an operation.

It is called once for each path."""


class Owner:
    """A module that calls observed operations.

    Attributes:
        module: the module.
        path: its path, empty for the model itself.
        taken: the names after its path that are not names of operations.
        ran: whether its forward has begun since it was hooked.
        idle: whether none of its operations is requested any more.
        explicit: whether calls of attention may run step by step.
        functions: the functions that it calls and whose operations are requested, by name.
        decided: the functions that report the k-th call of a name in the module, or in a function that it calls, as
            far as they are known.
    """

    __slots__ = ("decided", "explicit", "functions", "idle", "module", "path", "ran", "taken")

    def __init__(self, module: nn.Module, path: str, *, explicit: bool = False) -> None:
        self.module = module
        self.path = path
        self.taken = taken(module)
        self.ran = False
        self.idle = False
        self.explicit = explicit
        self.functions: dict[str, ThisCode] = {}
        self.decided: dict[tuple[str, int], ReportedOperation] = {}


class _Frame:
    """One run of an owner's forward.

    Attributes:
        owner: the owner.
        counts: how often each name was called.
        known: whether the call is visible on Python's stack; it is not if another library replaced PyTorch's code.
    """

    __slots__ = ("counts", "known", "owner")

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.known = runs(owner.module)
        self.counts: dict[str, int] = {}


class _Mode(TorchFunctionMode):
    """The function mode of one thread.

    Attributes:
        frame: the running forward of an owner; None while a module runs that is no owner.
        frames: for each module around it, the frame and the flag `on` before it began.
        order: the number of the attachment.
        thread: the identifier of the thread.
        on: whether it is on the mode stack of that thread. PyTorch pops it while it handles a call.
        gone: whether its attachment was removed, so that it must not be pushed again.
    """

    def __init__(self, functions: Functions) -> None:
        super().__init__()
        self.functions = functions
        self.order = functions.running.order
        self.thread = threading.get_ident()
        self.frame: _Frame | None = None
        self.frames: OpenCalls[tuple[_Frame | None, bool]] = OpenCalls()
        self.on = False
        self.gone = False

    @dynamo_skip
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frame = self.frame
        if frame is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        name = operation_name(func)
        if name is None:
            return func(*args, **kwargs) if kwargs else func(*args)
        counts = frame.counts
        k = counts.get(name, 0)
        counts[name] = k + 1
        owner = frame.owner
        found = owner.decided.get((name, k))
        if found is None or found.delivers or found.parts:
            if frame.known and not runs(owner.module):  # an interrupt has ended it; PyTorch then calls no hook
                self.frame = None
                return func(*args, **kwargs) if kwargs else func(*args)
            if found is None:
                found = owner.decided[name, k] = self.functions.decide(owner, name, k, func)
        if owner.functions:
            found = self.functions.with_called(frame, found, name, func)
        if found.delivers or found.parts:
            return self.functions.deliver(owner, found, func, args, kwargs or {})
        return func(*args, **kwargs) if kwargs else func(*args)


class _Here(threading.local):
    def __init__(self) -> None:
        self.mode: _Mode | None = None


class Functions:
    """The operations that one attachment observes.

    Args:
        running: the attachment.
        decide: returns the functions that report an operation.
    """

    def __init__(self, running: Running, decide: Decide) -> None:
        self.running = running
        self._decide = decide
        self._here = _Here()
        self._listening = False
        self._modes: list[weakref.ref[_Mode]] = []  # weak: when a thread ends, its mode is freed

    def hook(self, hooks: Hooks, owners: Sequence[Owner], others: Sequence[nn.Module]) -> None:
        """Hook the modules that own operations, and those inside them that own none.

        Args:
            hooks: the hooks of the attachment.
            owners: the owners of requested operations.
            others: modules that may run inside owners, and are none.
        """
        self._listening = True
        for owner in owners:
            hooks.before(owner.module, self._opening(owner))
            hooks.after(owner.module, self._close, always=True, first=True)
        for module in others:
            hooks.before(module, self._pause)
            hooks.after(module, self._close, always=True, first=True)

    def remove(self) -> None:
        """Stop reporting, also in a forward that is running; its thread's mode stack is restored once it has ended."""
        self._listening = False
        for mode in self._known_modes():
            running = mode.frames[0][0] if mode.frames else self.running.model
            mode.gone = True
            mode.frame = None
            here = mode.thread == threading.get_ident()
            if mode.on and not (here and (FUNCTIONS.holds(mode) or not runs(running))):
                _take_off_later(running, mode)
            elif here:  # an interrupt may have come before `on` was set
                _take_off(mode)
        self._modes.clear()

    def _forget(self, one: weakref.ref[_Mode]) -> None:
        with suppress(ValueError):
            self._modes.remove(one)

    def _known_modes(self) -> list[_Mode]:
        return [mode for one in [*self._modes] if (mode := one()) is not None]

    def in_other_threads(self) -> bool:
        """Return whether owners are running in other threads."""
        mine = self._here.mode
        return any(mode.frames for mode in self._known_modes() if mode is not mine)

    def reset(self) -> None:
        """Discard frames that an earlier forward has left, for example because of an interrupt."""
        mode = self._here.mode
        if mode is not None and (mode.frames or mode.on):
            mode.frames.clear()
            mode.frame = None
            _take_off(mode)

    def decide(self, owner: Owner, name: str, k: int, func: Any) -> ReportedOperation:
        """Return the path of the k-th call of a name in a module, and the functions that report it."""
        path = operation_path(owner.path, name, k, owner.taken)
        wanted = self._decide(owner, path, name, func)
        parts = None
        if owner.explicit and name in ATTENTIONS:
            parts = {part: self._decide(owner, f"{path}.{part}", part, func) for part in PARTS_OF_ATTENTION}
        in_place = is_in_place(str(getattr(func, "__name__", "")))
        return ReportedOperation(path, wanted, in_place, parts if parts and any(parts.values()) else None)

    def with_called(self, frame: _Frame, found: ReportedOperation, name: str, func: Any) -> ReportedOperation:
        """Return the call with the functions that report it as an operation of a function inside the module as well."""
        owner, counts = frame.owner, frame.counts
        path, delivers, in_place, parts = found
        for function in functions_running(owner.functions, sys._getframe(2)):
            label = f"{function}.{name}"
            k = counts.get(label, 0)
            counts[label] = k + 1
            decided = owner.decided.get((label, k))
            if decided is None:
                place = operation_path(under(owner.path, function), name, k)
                wanted = self._decide(owner, place, name, func)
                decided = owner.decided[label, k] = ReportedOperation(place, wanted, in_place)
            if decided.delivers:
                path, delivers = decided.path, [*delivers, *decided.delivers]
        return ReportedOperation(path, delivers, in_place, parts)

    def deliver(self, owner: Owner, found: ReportedOperation, func: Any, args: Any, kwargs: Any) -> Any:
        """Run an observed operation and report its result; return the result, or what replaces it."""
        path, delivers, in_place, parts = found
        if parts is not None:
            func = _step_by_step(parts, func, owner.module)
        inputs = (*args, *kwargs.values()) if kwargs else args
        running = self.running
        tokens = [running.begins(path, owner.module, args, kwargs) for _ in delivers] if running.before else None
        changed = changed_by(func, args, kwargs) if in_place or kwargs else None
        result, node = (func(*args, **kwargs), None) if changed is None else called(func, changed, args, kwargs)
        value: Any = main_result(func, result) if result is not None else changed
        told = value
        for number, deliver in enumerate(delivers):
            value = deliver(value, inputs, tokens[number] if tokens else None)
        if value is told:
            return result
        if _in_checkpoint(owner.module):
            raise InterjectionError(f"`{path}` {IN_CHECKPOINT}")
        if type(result) is tuple and told is not result:
            return (value, *result[1:])
        if changed is None or changed is not told:
            return value
        overwrite(changed, value, node)  # the caller of an in-place function may ignore the result
        return result

    def _opening(self, owner: Owner) -> Callable[..., None]:
        def open_frame(module: nn.Module, *_: Any) -> None:
            if owner.idle or not self.running.hears():
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

        return open_frame

    def _pause(self, module: nn.Module, *_: Any) -> None:
        mode = self._mode()
        if mode.gone:
            return
        mode.frames.append((module, (mode.frame, mode.on)))
        mode.frame = None
        if mode.on:
            _take_off(mode)

    def _close(self, module: nn.Module, *_: Any) -> None:
        mode = self._here.mode
        if mode is None or (before := mode.frames.end(module)) is None:
            return
        mode.frame, on = before
        if on and not mode.on:
            _put_on(mode)
        elif mode.on and not on:
            _take_off(mode)

    def _mode(self) -> _Mode:
        mode = self._here.mode
        if mode is None or mode.gone:
            mode = self._here.mode = _Mode(self)
            self._modes.append(weakref.ref(mode, self._forget))
        mode.gone = mode.gone or not self._listening  # another thread may have removed it just now
        return mode


class _InSteps:
    """A function of PyTorch's that computes attention, run step by step.

    Other attachments, whose modes are below on the stack, are called with it as with the function itself.
    """

    def __init__(self, function: Any, see: See) -> None:
        self.__name__ = function.__name__
        self.function = function
        self.see = see

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if any(type(mode) is _Mode for mode in FUNCTIONS.modes()):
            return handle_torch_function(self, (), *args, **kwargs)
        if self.__name__ == ATTENTIONS[0]:
            return explicit_attention(self.see, *args, **kwargs)
        return explicit_multi_head(self.see, self.function, *args, **kwargs)


def _in_checkpoint(module: nn.Module) -> bool:
    """Return whether a checkpoint of a function in the module's forward runs, and will run again without the mode."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and not (frame.f_code is CODE_OF_A_MODULES_CALL and frame.f_locals.get("self") is module):
        if runs_again(frame):
            return True
        frame = frame.f_back
    return False


def _step_by_step(parts: Parts, func: Any, module: nn.Module) -> _InSteps:
    """Return a function that computes attention in steps, and reports the requested ones."""
    later = func.see if type(func) is _InSteps else None

    def told(part: str, value: Any) -> Any:
        for deliver in parts[part]:
            value = deliver(value)
        return value

    def see(part: str, value: Any) -> Any:
        value = with_all_heads(module, value, partial(told, part))
        return later(part, value) if later is not None else value

    return _InSteps(func.function if type(func) is _InSteps else func, see)


def _put_on(mode: _Mode) -> None:
    """Push a mode on the stack, below byname's modes of later attachments: these get the replaced results."""
    above = []
    while FUNCTIONS.depth():
        top = FUNCTIONS.at(FUNCTIONS.depth() - 1)
        if type(top) is not _Mode or top.order < mode.order:
            break
        above.append(FUNCTIONS.pop())
    FUNCTIONS.push(mode)
    for one in reversed(above):
        FUNCTIONS.push(one)
    active_modes().append(mode)
    mode.on = True
    if mode.gone:
        _take_off(mode)


def _take_off_later(module: nn.Module, mode: _Mode) -> None:
    """Remove a mode from the stack once a running module has ended: PyTorch, or another thread, may yet push it."""

    def ended(*_: Any) -> None:
        if threading.get_ident() == mode.thread:
            handle.remove()
            _take_off(mode)

    handle = module.register_forward_hook(Hook(ended, 3, mode.functions.running), always_call=True)


def _take_off(mode: _Mode) -> None:
    if FUNCTIONS.depth() and FUNCTIONS.at(FUNCTIONS.depth() - 1) is mode:
        FUNCTIONS.pop()
    else:
        FUNCTIONS.remove(mode)
    if mode in active_modes():
        active_modes().remove(mode)
    mode.on = False
