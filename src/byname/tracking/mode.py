"""Tracking mode: a function mode that records every call of a PyTorch function in its thread.

For each call the mode records the thread's autograd sequence number before and after, the caller's code object and
instruction, and a weak reference to the result. `patches` covers the calls that a function mode does not see.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Iterable, Sequence
from types import CodeType, FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointFunction

from byname.reading.frames import (
    NO_LINE,
    Line,
    find_user_frame,
    helper_caller,
    is_called_by_user,
    is_function,
    is_optimizer_frame,
    reported_frame,
    user_line,
)
from byname.reading.functions import (
    COMPOSITE,
    CONVERSION,
    GRAD_MODE,
    GRADIENT,
    MAKING,
    METADATA,
    READ,
    SETTER,
    UNSCALE,
    first_argument,
    function_kind,
    function_mode_count,
    is_torch_function,
    name_of,
    targets_of,
    versions_of,
)
from byname.reading.quiet import DisableTorchFunction, dynamo_skip
from byname.reading.tensor import PLAIN, fact, memory_of
from byname.source.location import Instruction
from byname.tracking.allocations import AllocationMode
from byname.tracking.detached import (
    ALIASING_PROPERTIES,
    checks_a_distribution,
    detaches_of_call,
    note_checkpoint,
    note_conversion,
    note_data_assignment,
    note_data_change,
    requires_grad,
)
from byname.tracking.log import Called, Change, FirstOfSeveral, Log, logged_function


class TrackingMode(TorchFunctionMode):
    """Function mode that records in a log the calls that one thread makes, until it is `stopped`.

    Attributes:
        allocating: the mode that records the allocations of the thread, if any.
        stepping: the name of the running optimizer step; None outside of one.
    """

    def __init__(self, log: Log, allocating: AllocationMode | None = None) -> None:
        super().__init__()
        self.log = log
        self.allocating = allocating
        self.stopped = False
        self.stepping: str | None = None
        self._kinds: dict[Any, int] = {}
        self._called: dict[Any, Any] = {}
        self._function: CodeType | None = None
        self._caller: Instruction = _NO_CALLER
        self._modules = log.modules
        self._add_call = log.calls.append
        self._add_change = log.changes.append

    def disable(self) -> None:
        """Stop recording, also if the mode is still on the stack of another thread."""
        self.stopped = True
        if self.allocating is not None:
            self.allocating.disable()
        self._kinds = _Disabled()

    @dynamo_skip
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        try:
            kind = self._kinds.get(func)
        except Exception:  # noqa: BLE001 - a callable of the user's that cannot be hashed or compared
            kind = None
        if kind is MAKING and not (kwargs and "out" in kwargs):  # written out, because nearly every call pays for it
            before = _sequence_number()
            if kwargs:
                result, args = func(*args, **kwargs), (*args, *kwargs.values())
            else:
                result = func(*args)
            after = _sequence_number()
            if after != before:
                frame = _getframe(1)
                code: CodeType | None = frame.f_code
                caller: Instruction | None = self._caller
                if (
                    code is self._function
                    and (back := frame.f_back) is not None
                    and back.f_code is caller[0]  # type: ignore[index]
                    and back.f_lasti == caller[1]  # type: ignore[index]
                ):
                    instruction, inside = frame.f_lasti, 0
                else:
                    code, instruction, inside, caller = self._line(frame)
                if type(result) is _Tensor or issubclass(type(result), _Tensor):
                    reference: weakref.ref[Any] | None = _reference(result)
                else:
                    reference = _first_of(result)
                    self._note_parts(func.__name__, args, result, before, frame)
                module = self._modules[-1] if self._modules else None
                self._add_call((before, after, func, reference, module, inside, code, instruction, caller))
            elif type(result) is _Tensor:
                self._note_creation(func.__name__, args, result, before, _getframe(1))
            elif type(result) not in _HAVE_NO_TENSORS:
                self._note_without_node(func.__name__, args, result, before, _getframe(1))
            return result
        if kind is METADATA:
            return func(*args, **(kwargs or {}))
        if kind is READ:
            return self._read(func, args, kwargs or {}, sys._getframe(1))
        if kind is GRAD_MODE:
            return self._switch(func, args, sys._getframe(1))
        return self._other(func, args, kwargs or {}, kind, sys._getframe(1))

    @dynamo_skip
    def _read(self, func: Any, args: Any, kwargs: Any, frame: FrameType) -> Any:
        """Read or set a property; some, such as ``x.T``, compute their value."""
        before = _sequence_number()
        result = func(*args, **kwargs)
        if self.stopped:
            return result
        after = _sequence_number()
        if after != before:
            self._note_call(Called(_name_of(func), False), result, before, after, frame)
        elif issubclass(type(result), torch.Tensor) and (name := _name_of(func)) in ALIASING_PROPERTIES:
            with DisableTorchFunction():
                cuts = () if requires_grad(result) else detaches_of_call(self.log, name, args, result, before, frame)
                if cuts:
                    self.log.note_creation(result, user_line(frame), False, cuts)
        elif result is None and _name_of(func) == "data":  # an assignment
            with DisableTorchFunction():
                note_data_assignment(self.log, args[0], frame)
        return result

    @dynamo_skip
    def _switch(self, func: Any, args: Any, frame: FrameType) -> Any:
        """Switch gradients on or off, and record the line of a ``set_grad_enabled(False)`` that begins no block."""
        result = func(*args)
        if self.stopped:
            return result
        if frame.f_code is _CODE_OF_SET_GRAD_ENABLED:
            if frame.f_back is not None and find_user_frame(frame)[0] is frame.f_back:  # not no_grad, and no optimizer
                self.log.note_switch(bool(args[0]), user_line(frame))
        elif any(frame.f_code is code for code in _CODE_OF_BLOCKS):
            self.log.forget_switch()
        return result

    @dynamo_skip
    def _other(self, func: Any, args: Any, kwargs: Any, kind: int | None, frame: FrameType) -> Any:
        """Call a function of another kind, such as one that changes its arguments, or one that is not known yet."""
        if kind is GRADIENT and type(args[0]) in PLAIN and not function_mode_count() and fact(args[0], "is_leaf"):
            return func(*args, **kwargs)  # a leaf keeps its gradient
        is_known = kind is not None
        if kind is None:
            kind = self._learn_kind(func)
            if kind == READ:
                return self._read(func, args, kwargs, frame)
            if kind == GRAD_MODE:
                return self._switch(func, args, frame)
        given = (*args, *kwargs.values()) if kwargs else args
        if self.log.listener is not None and (
            func is _COPY or (kind == COMPOSITE and (is_known or is_torch_function(func)))
        ):
            self.log.listener.applied(func, args, kwargs, frame)
        targets = targets_of(kind, args, kwargs)
        versions = versions_of(targets) if targets else ()
        trainable = kind == SETTER and _required_grad(targets)
        before = _sequence_number()
        result = func(*args, **kwargs)
        after = _sequence_number()
        if after != before:
            called = self._called[func] if is_known else logged_function(func)
            self._note_call(called, result, before, after, frame)
        if kind == SETTER:
            self._note_setting(targets, result, trainable, frame)
        elif kind == GRADIENT:
            self._note_reading(args[0], frame)
        elif kind == CONVERSION:
            with DisableTorchFunction():
                note_conversion(self.log, func.__name__, args[0], before, frame)
        elif issubclass(type(result), torch.Tensor):
            if after == before and not (targets and result is first_argument(args, kwargs)):
                self._note_creation(name_of(func), given, result, before, frame)
        elif issubclass(type(result), (tuple, list)):
            self._note_parts(name_of(func), given, result, before, frame)
        if targets:
            self._note_changes(func, targets, versions, frame)
        return result

    @dynamo_skip
    def note_unseen(self, called: Called, args: Sequence[Any], result: Any, before: int, frame: FrameType) -> None:
        """Record a call that the mode did not see."""
        after = _sequence_number()
        if after != before:
            self._note_call(called, result, before, after, frame)
        elif issubclass(type(result), torch.Tensor):
            with DisableTorchFunction():
                self._note_result(called.name, args, result, before, frame, self._line_of(frame), False)
        if args and args[0] is CheckpointFunction:
            with DisableTorchFunction():
                note_checkpoint(self.log, result, before, frame)

    def _learn_kind(self, function: Any) -> int:
        """Return the kind of a function. Only PyTorch's own are cached: a user's function may keep anything alive."""
        kind = function_kind(function)
        if is_torch_function(function):
            self._called[function] = logged_function(function)  # first: an interrupt may come in between
            self._kinds[function] = kind
        return kind

    def _change_at(self, frame: FrameType, name: str) -> tuple[Line, str]:
        """Return the user's line that changed a tensor, and the name under which the change is recorded.

        Inside an optimizer these are the program's line, since trainers call `step`, and the name of the step.
        """
        if self.stepping is None:
            return user_line(frame), name
        return user_line(reported_frame(frame)), self.stepping if is_optimizer_frame(frame) else name

    def _note_call(self, called: Any, result: Any, before: int, after: int, frame: FrameType | None) -> None:
        code, instruction, inside, caller = self._line(frame)
        reference = weakref.ref(result) if issubclass(type(result), torch.Tensor) else _first_of(result)
        module = self._modules[-1] if self._modules else None
        self._add_call((before, after, called, reference, module, inside, code, instruction, caller))

    def _line(self, frame: FrameType | None) -> tuple[CodeType | None, int, int, Instruction | None]:
        """Return the code and instruction of the user's line, the number of module calls inside it, and its caller."""
        user, inside = find_user_frame(frame)
        if user is None:
            return None, -1, inside, None
        code, caller = user.f_code, self._caller
        back = user.f_back if code is self._function else None
        if back is not None and back.f_code is caller[0] and back.f_lasti == caller[1]:
            return code, user.f_lasti, inside, caller
        found = helper_caller(user)
        if found is not None and is_function(user):
            self._function, self._caller = code, found
        return code, user.f_lasti, inside, found

    def _line_of(self, frame: FrameType) -> Line:
        """Return what `user_line` returns, in less time if the last recorded call came through the same caller."""
        code, instruction, _, caller = self._line(frame)
        return NO_LINE if code is None else _new(Line, (code, instruction, caller))

    def _note_without_node(self, name: str, args: Sequence[Any], result: Any, before: int, frame: FrameType) -> None:
        if issubclass(type(result), torch.Tensor):
            self._note_creation(name, args, result, before, frame)
        elif issubclass(type(result), (tuple, list)):
            self._note_parts(name, args, result, before, frame)

    def _note_creation(
        self, name: str, args: Sequence[Any], result: torch.Tensor, before: int, frame: FrameType
    ) -> None:
        """Record a tensor made without a node, unless PyTorch made it for its own use, as an optimizer does."""
        users = is_called_by_user(frame)
        if not users and checks_a_distribution(frame):
            return
        with DisableTorchFunction():
            passed_on = bool(args) and result is args[0]
            self._note_result(name, args, result, before, frame, self._line_of(frame) if users else None, passed_on)

    def _note_result(
        self,
        name: str,
        args: Sequence[Any],
        result: torch.Tensor,
        before: int,
        frame: FrameType,
        line: Line | None,
        passed_on: bool,
    ) -> None:
        """Record a tensor made without a node, with the calls that detached it. `line` is None inside PyTorch."""
        if requires_grad(result):
            if line is not None:
                cuts = detaches_of_call(self.log, name, args, None, before, frame, line) if name == "Parameter" else ()
                self.log.note_creation(result, line, passed_on, cuts)
            return
        cuts = detaches_of_call(self.log, name, args, result, before, frame, line)
        if line is not None:
            self.log.note_detached(result, line, passed_on, cuts)
        elif cuts:
            self.log.note_inner(result, cuts)

    def _note_parts(self, name: str, args: Sequence[Any], results: Any, before: int, frame: FrameType) -> None:
        """Record the results of a call that are detached though other results are not: the indices of ``x.max(0)``."""
        if type(results) in _HAVE_NO_TENSORS:
            return
        with DisableTorchFunction():
            parts = _cut_parts(results)
            cuts = detaches_of_call(self.log, name, args, None, before, frame) if parts else ()
            for part in parts if cuts else ():
                self.log.note_inner(part, cuts)

    def _note_setting(
        self, targets: Sequence[torch.Tensor] | None, result: Any, trainable: bool, frame: FrameType
    ) -> None:
        """Record a tensor that no longer requires grad, or the first sight of one that the user makes require grad."""
        if not targets:
            return
        tensor = targets[0]
        user, _ = find_user_frame(frame)
        with DisableTorchFunction():
            if not requires_grad(tensor):
                if trainable:
                    self.log.frozen.append((*user_line(user)[:2], weakref.ref(tensor)))
            else:
                self.log.unfrozen += not trainable and issubclass(type(tensor), torch.nn.Parameter)
                if user is frame or result is tensor:
                    self.log.note_creation(tensor, user_line(user), True)

    def _note_reading(self, tensor: torch.Tensor, frame: FrameType) -> None:
        """Record that the program reads a gradient that PyTorch does not keep."""
        with DisableTorchFunction():
            if not fact(tensor, "is_leaf") and not fact(tensor, "retains_grad"):
                self.log.grad_reads.append((*user_line(frame)[:2], weakref.ref(tensor)))

    def _note_changes(
        self, function: Any, targets: Sequence[torch.Tensor], versions: tuple[int | None, ...], frame: FrameType
    ) -> None:
        now = versions_of(targets)
        unscales = now == versions and name_of(function) == UNSCALE
        if now == versions and not unscales:
            return
        name = name_of(function)
        changed = [
            (tensor, (old, new))
            for tensor, old, new in zip(targets, versions, now, strict=True)
            if old is not None and new is not None and (old != new or unscales)
        ]
        line, operation = self._change_at(frame, name)
        with DisableTorchFunction():
            storages = tuple([weakref.ref(memory_of(tensor)) for tensor, _ in changed])
            self._add_change(Change(line, operation, storages, tuple([pair for _, pair in changed])))
            for tensor, _ in changed:
                note_data_change(self.log, tensor, name, frame)


_COPY = torch.Tensor.copy_
_CODE_OF_SET_GRAD_ENABLED = torch.set_grad_enabled.__init__.__code__
_CODE_OF_BLOCKS = (torch.set_grad_enabled.__enter__.__code__, torch.set_grad_enabled.__call__.__code__)
_sequence_number = torch._C._autograd._get_sequence_nr
_new, _getframe, _reference, _Tensor = tuple.__new__, sys._getframe, weakref.ref, torch.Tensor
_NO_CALLER: Instruction = (sys._getframe().f_code, -1)
_HAVE_NO_TENSORS = (bool, int, float, type(None), torch.Size)


def _name_of(access: Any) -> str:
    return str(getattr(getattr(access, "__self__", None), "__name__", "?"))


def _first_of(results: Any) -> FirstOfSeveral | None:
    first: Any = results[0] if issubclass(type(results), (tuple, list)) and results else None
    return FirstOfSeveral(first) if issubclass(type(first), torch.Tensor) else None


def _cut_parts(results: Sequence[Any]) -> list[torch.Tensor]:
    """Return the detached ones of several results: all of them, or the indices beside values that are not detached."""
    tensors = [one for one in results if issubclass(type(one), torch.Tensor)]
    parts = [one for one in tensors if not requires_grad(one)]
    if len(parts) == len(tensors):
        return parts
    dtypes = [fact(one, "dtype") for one in parts]
    return [one for one, dtype in zip(parts, dtypes, strict=True) if not (dtype.is_floating_point or dtype.is_complex)]


def _required_grad(targets: Iterable[torch.Tensor] | None) -> bool:
    with DisableTorchFunction():
        return any(requires_grad(tensor) for tensor in targets or ())


class _Disabled(dict[Any, int]):
    """Kinds of functions for a stopped mode, which may still be on another thread's stack: all are READ.

    `TrackingMode._read` of a stopped mode records none.
    """

    def get(self, key: Any, default: Any = None) -> int:
        return READ
