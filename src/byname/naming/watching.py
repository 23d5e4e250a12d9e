"""How is every call of a PyTorch function seen? By a function mode, module hooks, and wrappers for what these miss.

A ``TorchFunctionMode`` sees every call of a PyTorch function in its thread. Of each it notes the thread's autograd
sequence number before and after, the caller's code object and instruction, and a weak reference to the result.

What a function mode cannot see is noted by three wrappers that are in place only while some thread is watched: custom
``Function.apply``, ``nn.Parameter(...)`` and ``torch.from_numpy``. The old constructors (``torch.FloatTensor(...)``)
cannot be wrapped; such a tensor is met where ``requires_grad`` is set on it, and its making is read from the source.
"""

from __future__ import annotations

import functools
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import FrameType, FunctionType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module
from torch.overrides import TorchFunctionMode

from byname.naming.log import Call, Change, Log
from byname.quiet import eager, untouched
from byname.site import is_torch

__all__ = ["Watch", "memory_of"]


class Watch(TorchFunctionMode):
    """The mode that fills a log, with the module hooks that know which module runs."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.log = log
        self._kinds: dict[Any, int] = {}
        self._hooks: list[Any] = []

    def start(self) -> None:
        """Begins to watch this thread."""
        self.__enter__()  # type: ignore[no-untyped-call]
        _UNSEEN.watch(self)
        self._hooks = [
            torch_module.register_module_forward_pre_hook(self._entering),
            torch_module.register_module_forward_hook(self._leaving, always_call=True),
        ]

    def stop(self) -> None:
        """Leaves everything as it was."""
        for hook in self._hooks:
            hook.remove()
        _UNSEEN.unwatch(self)
        self.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    @eager
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = self._kinds.get(func)
        if kind is None:
            kind = self._kinds[func] = _kind_of(func)
        if kind == _READ:
            return func(*args, **kwargs) if kwargs else func(*args)
        targets = None if kind == _PLAIN and not kwargs else _targets(kind, args, kwargs)
        versions = _versions(targets) if targets else ()
        before = _sequence_number()
        result = func(*args, **kwargs) if kwargs else func(*args)
        self.note(func, args, result, before, targets, versions, sys._getframe(1))
        return result

    @eager
    def note(
        self,
        function: Any,
        args: Sequence[Any],
        result: Any,
        before: int,
        targets: Sequence[torch.Tensor] | None,
        versions: tuple[int | None, ...],
        frame: FrameType | None,
    ) -> None:
        """Writes down what a call that has just ended made and changed."""
        after = _sequence_number()
        made_tensor = issubclass(type(result), torch.Tensor)
        if after == before and not made_tensor and not targets:
            return
        inside = 0
        direct = frame
        while frame is not None and _is_torch(frame.f_code.co_filename):
            inside += frame.f_code is _CALL_OF_A_MODULE
            frame = frame.f_back
        log = self.log
        if after != before:
            log.calls.append(
                Call(
                    before,
                    after,
                    None if frame is None else frame.f_code,
                    -1 if frame is None else frame.f_lasti,
                    function,
                    weakref.ref(result) if made_tensor else None,
                    log.modules[-1] if log.modules else None,
                    inside,
                )
            )
        elif made_tensor:
            log.note_making(result, frame, bool(args) and result is args[0])
        if targets:
            self._note_changes(function, targets, versions, frame)
            if (
                not made_tensor
                and frame is direct
                and self._kinds.get(function) == _SETTER
                and targets[0].requires_grad
            ):
                log.note_making(targets[0], frame, True)

    def _note_changes(
        self,
        function: Any,
        targets: Sequence[torch.Tensor],
        versions: tuple[int | None, ...],
        frame: FrameType | None,
    ) -> None:
        now = _versions(targets)
        changed = [
            (tensor, (old, new))
            for tensor, old, new in zip(targets, versions, now, strict=True)
            if old is not None and new is not None and old != new
        ]
        if changed:
            with untouched():
                storages = tuple(weakref.ref(memory_of(tensor)) for tensor, _ in changed)
            code, instruction = (None, -1) if frame is None else (frame.f_code, frame.f_lasti)
            pairs = tuple(pair for _, pair in changed)
            self.log.changes.append(Change(code, instruction, function, storages, pairs))

    @eager
    def _entering(self, module: nn.Module, args: Any) -> None:
        if threading.get_ident() == self.log.thread:
            self.log.modules.append(weakref.ref(module))

    @eager
    def _leaving(self, module: nn.Module, args: Any, output: Any) -> None:
        log = self.log
        if threading.get_ident() != log.thread:
            return
        while log.modules and log.modules.pop()() is not module:
            continue
        if log.calls and (last := log.calls[-1]).inside and last.result is not None and last.result() is output:
            log.calls[-1] = last._replace(inside=last.inside - 1)


_sequence_number = torch._C._autograd._get_sequence_nr
_is_torch = functools.lru_cache(maxsize=None)(is_torch)
_CALL_OF_A_MODULE = nn.Module._call_impl.__code__


_READ, _PLAIN, _IN_PLACE, _SETTER, _COMPOSITE = range(5)
"""Kinds of function: only reads; makes; changes its first argument; sets a property; may do anything."""

_BUILTINS = (type(torch.add), type(torch.Tensor.add), type(torch.Tensor.__getitem__))


def _kind_of(function: Any) -> int:
    name = getattr(function, "__name__", "")
    if name == "__get__":
        return _READ
    if name == "__set__":
        return _SETTER if getattr(function, "__self__", None) is _REQUIRES_GRAD else _READ
    if name == "requires_grad_":
        return _SETTER
    if type(function) is FunctionType or type(function) not in _BUILTINS or name.startswith("_fused"):
        return _COMPOSITE
    return _IN_PLACE if name in _IN_PLACE_NAMES or (name.endswith("_") and not name.endswith("__")) else _PLAIN


_REQUIRES_GRAD: Any = torch.Tensor.requires_grad
_OPERATORS = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and", "or", "xor", "lshift", "rshift")
_IN_PLACE_NAMES = frozenset({"__setitem__", *(f"__i{operator}__" for operator in _OPERATORS)})


def _targets(kind: int, args: Sequence[Any], kwargs: dict[str, Any] | None) -> list[torch.Tensor] | None:
    """The tensors that a call may change."""
    if kind == _PLAIN:
        out = kwargs.get("out") if kwargs else None
        return None if out is None else _flat([out])
    return _flat(args[:1]) if kind != _COMPOSITE else _flat([*args, *(kwargs or {}).values()])


def _flat(values: Iterable[Any]) -> list[torch.Tensor]:
    found = []
    for value in values:
        if issubclass(type(value), torch.Tensor):
            found.append(value)
        elif type(value) in (list, tuple):
            found += [one for one in value if issubclass(type(one), torch.Tensor)]
    return found


def _versions(tensors: Sequence[torch.Tensor]) -> tuple[int | None, ...]:
    with untouched():
        try:
            return tuple(tensor._version for tensor in tensors)
        except RuntimeError:  # an inference tensor counts no versions
            return tuple(None if tensor.is_inference() else tensor._version for tensor in tensors)


def memory_of(tensor: torch.Tensor) -> Any:
    """What stands for a tensor's memory: its storage, or itself where it has none."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return tensor


class _Unseen:
    """The three calls that a function mode does not see, wrapped while any thread is watched."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: list[Watch] = []
        self._originals: list[tuple[Any, str, Any]] = []

    def watch(self, watch: Watch) -> None:
        """Wraps the calls for the first watch."""
        with self._lock:
            self._watches.append(watch)
            if not self._originals:
                self._wrap(torch.autograd.Function, "apply", classmethod)
                self._wrap(nn.Parameter, "__new__", staticmethod)
                self._wrap(torch, "from_numpy", lambda wrapped: wrapped)

    def unwatch(self, watch: Watch) -> None:
        """Puts the originals back after the last watch."""
        with self._lock:
            self._watches.remove(watch)
            if not self._watches:
                while self._originals:
                    owner, name, original = self._originals.pop()
                    setattr(owner, name, original)

    def _wrap(self, owner: Any, name: str, bind: Callable[[Any], Any]) -> None:
        original = vars(owner)[name]
        function = getattr(original, "__func__", original)

        @eager
        @functools.wraps(function)
        def noted(*args: Any, **kwargs: Any) -> Any:
            here = threading.get_ident()
            watches = [watch for watch in self._watches if watch.log.thread == here]
            if not watches:
                return function(*args, **kwargs)
            before = _sequence_number()
            result = function(*args, **kwargs)
            for watch in watches:
                watch.note(function, (), result, before, None, (), sys._getframe(1))
            return result

        self._originals.append((owner, name, original))
        setattr(owner, name, bind(noted))


_UNSEEN = _Unseen()
"""One for the process, because what it wraps are attributes of the process; it is empty while nobody tracks."""
