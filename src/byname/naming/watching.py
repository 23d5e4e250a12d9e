"""How is every call of a PyTorch function seen? By a function mode, and by wrappers for the few calls it misses.

A ``TorchFunctionMode`` sees every call of a PyTorch function in its thread. Of each it notes the thread's autograd
sequence number before and after, the caller's code object and instruction, and a weak reference to the result.

What the mode cannot see is noted by wrappers that are in place only while some thread is watched: a module's call
(which module runs, and what it returns), custom ``Function.apply``, ``nn.Parameter(...)`` and ``torch.from_numpy``. The
old constructors (``torch.FloatTensor(...)``) cannot be wrapped; such a tensor is met where ``requires_grad`` is set on
it, and its making is read from the source.
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
from torch.overrides import TorchFunctionMode

from byname.card import fact
from byname.naming.log import Called, Log, is_in_place, is_method
from byname.quiet import eager, untouched
from byname.site import is_torch

__all__ = ["Watch", "memory_of"]


class Watch(TorchFunctionMode):
    """The mode that fills a log with what one thread calls."""

    def __init__(self, log: Log) -> None:
        super().__init__()
        self.log = log
        self._kinds: dict[Any, int] = {}
        self._modules = log.modules
        self._add_call = log.calls.append
        self._add_change = log.changes.append
        self._stopped = False

    def start(self) -> None:
        """Begins to watch this thread."""
        self.__enter__()  # type: ignore[no-untyped-call]
        _UNSEEN.watch(self)

    def stop(self) -> None:
        """Leaves everything as it was, also when other modes were entered since and have not been left."""
        self._stopped = True
        self._kinds = _Deaf()
        _UNSEEN.unwatch(self)
        _remove_mode(self)

    @eager
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kind = self._kinds.get(func)
        if kind is PLAIN and not kwargs:  # the most frequent case, written out because every call pays for it
            before = _sequence_number()
            result = func(*args)
            after = _sequence_number()
            if after != before:
                frame: FrameType | None = sys._getframe(1)
                inside = 0
                if _torch_files.get(frame.f_code.co_filename, True):  # type: ignore[union-attr]
                    frame, inside = _users_frame(frame)
                self._add_call(
                    (
                        before,
                        after,
                        None if frame is None else frame.f_code,
                        -1 if frame is None else frame.f_lasti,
                        func,
                        weakref.ref(result) if issubclass(type(result), torch.Tensor) else None,
                        self._modules[-1] if self._modules else None,
                        inside,
                    )
                )
            elif issubclass(type(result), torch.Tensor):
                self._note_making(result, args, sys._getframe(1))
            return result
        if kind is READ:
            return self._read(func, args, kwargs or {})
        if kind is IN_PLACE and type(args[0]) in _PLAIN_TENSORS and not _modes_left() and not args[0].is_inference():
            return self._in_place(func, args, kwargs or {})
        return self._other(func, args, kwargs, kind)

    @eager
    def _in_place(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Calls a function that changes its first argument: an optimizer calls hundreds of these in a step."""
        target = args[0]
        old = target._version
        before = _sequence_number()
        result = func(*args, **kwargs)
        after = _sequence_number()
        new = target._version
        if new != old:
            frame, _ = _users_frame(sys._getframe(2))
            code, instruction = (None, -1) if frame is None else (frame.f_code, frame.f_lasti)
            storage = weakref.ref(memory_of(target))
            self._add_change((code, instruction, func.__name__, (storage,), ((old, new),)))
        if after != before:
            self._note_call(func, result, before, after, sys._getframe(2))
        return result

    @eager
    def _read(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Reads a property; some, such as ``x.T``, compute their value."""
        before = _sequence_number()
        result = func(*args, **kwargs)
        after = _sequence_number()
        if after != before and not self._stopped:
            name = str(getattr(getattr(func, "__self__", None), "__name__", "?"))
            self._note_call(Called(name, READ, False), result, before, after, sys._getframe(2))
        return result

    @eager
    def _other(self, func: Any, args: Any, kwargs: Any, kind: int | None) -> Any:
        """Calls a function that may change its arguments, or is seen for the first time."""
        if kind is None:
            kind = self._get_to_know(func)
        targets = _targets(kind, args, kwargs)
        versions = _versions(targets) if targets else ()
        before = _sequence_number()
        result = func(*args, **kwargs) if kwargs else func(*args)
        after = _sequence_number()
        frame = sys._getframe(2)
        if after != before:
            self._note_call(_called(func, kind), result, before, after, frame)
        elif kind != READ and issubclass(type(result), torch.Tensor) and not (args and result is args[0] and targets):
            self._note_making(result, args, frame)
        elif kind == SETTER and targets:
            self._note_setting(targets[0], result, frame)
        if targets:
            self._note_changes(func, targets, versions, frame)
        return result

    @eager
    def note_unseen(self, called: Called, result: Any, before: int, frame: FrameType) -> None:
        """Notes a call that the mode did not see."""
        after = _sequence_number()
        if after != before:
            self._note_call(called, result, before, after, frame)
        elif issubclass(type(result), torch.Tensor):
            with untouched():
                self.log.note_making(result, _users_frame(frame)[0], False)

    def _get_to_know(self, function: Any) -> int:
        """The kind of a function. Only PyTorch's own are remembered: a user's may hold anything."""
        kind = _kind_of(function)
        if type(function) is not FunctionType or str(function.__module__).partition(".")[0] == "torch":
            self._kinds[function] = kind
        return kind

    def _note_call(self, called: Any, result: Any, before: int, after: int, frame: FrameType | None) -> None:
        frame, inside = _users_frame(frame)
        code, instruction = (None, -1) if frame is None else (frame.f_code, frame.f_lasti)
        reference = weakref.ref(result) if issubclass(type(result), torch.Tensor) else None
        module = self._modules[-1] if self._modules else None
        self._add_call((before, after, code, instruction, called, reference, module, inside))

    def _note_making(self, result: torch.Tensor, args: Sequence[Any], frame: FrameType) -> None:
        """Notes a tensor made without a node; not the many that PyTorch makes for itself, as an optimizer does."""
        if _torch_files.get(frame.f_code.co_filename) and frame.f_code.co_name not in _MAKERS:
            return
        with untouched():
            self.log.note_making(result, _users_frame(frame)[0], bool(args) and result is args[0])

    def _note_setting(self, tensor: torch.Tensor, result: Any, frame: FrameType) -> None:
        """Notes the first sight of a tensor that the user's own line makes require grad."""
        user, _ = _users_frame(frame)
        with untouched():
            if fact(tensor, "requires_grad") and (user is frame or result is tensor):
                self.log.note_making(tensor, user, True)

    def _note_changes(
        self, function: Any, targets: Sequence[torch.Tensor], versions: tuple[int | None, ...], frame: FrameType
    ) -> None:
        now = _versions(targets)
        if now == versions:
            return
        changed = [
            (tensor, (old, new))
            for tensor, old, new in zip(targets, versions, now, strict=True)
            if old is not None and new is not None and old != new
        ]
        user, _ = _users_frame(frame)
        code, instruction = (None, -1) if user is None else (user.f_code, user.f_lasti)
        with untouched():
            storages = tuple(weakref.ref(memory_of(tensor)) for tensor, _ in changed)
        name = str(getattr(function, "__name__", "?"))
        self._add_change((code, instruction, name, storages, tuple(pair for _, pair in changed)))


def _called(function: Any, kind: int) -> Any:
    return (
        function
        if type(function) in _BUILTINS
        else Called(str(getattr(function, "__name__", "?")), kind, is_method(function))
    )


_sequence_number = torch._C._autograd._get_sequence_nr
_modes_left = torch._C._len_torch_function_stack
_call_of_a_module = nn.Module._call_impl
_CODE_OF_A_MODULES_CALL = _call_of_a_module.__code__
_torch_files: dict[str, bool] = {}
_MAKERS = frozenset({"handle_torch_function", "wrapped"})
"""PyTorch's functions that stand between a user's call and the mode."""


def _users_frame(frame: FrameType | None) -> tuple[FrameType | None, int]:
    """The innermost frame of the user's, and how many calls of modules lie between it and the given one."""
    inside = 0
    while frame is not None:
        code = frame.f_code
        theirs = _torch_files.get(code.co_filename)
        if theirs is None:
            theirs = _torch_files[code.co_filename] = is_torch(code.co_filename)
        if not theirs:
            break
        if code is _CODE_OF_A_MODULES_CALL:
            inside += 1
        frame = frame.f_back
    return frame, inside


class _Deaf(dict[Any, int]):
    """The kinds of a watch that has stopped but is still on another thread's stack: nothing is worth a note."""

    def get(self, key: Any, default: Any = None) -> int:
        return READ


READ, PLAIN, IN_PLACE, SETTER, COMPOSITE = range(5)
"""Kinds of function: reads a property; makes; changes its first argument; sets ``requires_grad``; may do anything."""

_BUILTINS = (type(torch.add), type(torch.Tensor.add), type(torch.Tensor.__getitem__))
_REQUIRES_GRAD: Any = torch.Tensor.requires_grad


def _kind_of(function: Any) -> int:
    name = str(getattr(function, "__name__", ""))
    if name in ("__get__", "__set__", "__delete__"):
        sets = name == "__set__" and getattr(function, "__self__", None) is _REQUIRES_GRAD
        return SETTER if sets else READ
    if name == "requires_grad_":
        return SETTER
    if type(function) not in _BUILTINS or name.startswith("_fused"):
        return COMPOSITE
    return IN_PLACE if is_in_place(name) else PLAIN


def _targets(kind: int, args: Sequence[Any], kwargs: dict[str, Any] | None) -> list[torch.Tensor] | None:
    """The tensors that a call may change."""
    if kind in (PLAIN, READ):
        out = kwargs.get("out") if kwargs else None
        return None if out is None else _flat([out])
    return _flat(args[:1]) if kind != COMPOSITE else _flat([*args, *(kwargs or {}).values()])


def _flat(values: Iterable[Any]) -> list[torch.Tensor]:
    found = []
    for value in values:
        if issubclass(type(value), torch.Tensor):
            found.append(value)
        elif type(value) in (list, tuple):
            found += [one for one in value if issubclass(type(one), torch.Tensor)]
    return found


def _versions(tensors: Sequence[torch.Tensor]) -> tuple[int | None, ...]:
    if len(tensors) == 1 and type(tensors[0]) in _PLAIN_TENSORS and not _modes_left():
        return (None,) if tensors[0].is_inference() else (tensors[0]._version,)
    with untouched():
        try:
            return tuple(fact(tensor, "_version") for tensor in tensors)
        except RuntimeError:  # an inference tensor counts no versions
            inference = torch._C.TensorBase.is_inference
            return tuple(None if inference(tensor) else fact(tensor, "_version") for tensor in tensors)


_PLAIN_TENSORS = (torch.Tensor, nn.Parameter)


def memory_of(tensor: torch.Tensor) -> Any:
    """What stands for a tensor's memory: its storage, or itself where it has none."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return tensor


def _remove_mode(mode: TorchFunctionMode) -> None:
    """Takes a mode off this thread's stack, wherever it stands; a mode on another thread's stack cannot be reached."""
    depth = torch._C._len_torch_function_stack()
    if not any(torch._C._get_function_stack_at(level) is mode for level in range(depth)):
        return
    above = []
    while (top := torch._C._pop_torch_function_stack()) is not mode:
        above.append(top)
    for one in reversed(above):
        torch._C._push_on_torch_function_stack(one)


class _Unseen:
    """The calls that a function mode does not see, wrapped while any thread is watched."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._watches: dict[int, list[Watch]] = {}
        self._wrapped: list[tuple[Any, str, Any, Any]] = []
        self._stance: Any = None

    def watch(self, watch: Watch) -> None:
        """Wraps the calls for the first watch."""
        with self._lock:
            self._watches.setdefault(watch.log.thread, []).append(watch)
            if not self._wrapped:
                self._wrap(torch.autograd.Function, "apply", self._noted, classmethod)
                self._wrap(nn.Parameter, "__new__", self._noted, staticmethod)
                self._wrap(torch, "from_numpy", self._noted, _as_it_is)
                self._wrap(nn.Module, "_call_impl", self._running, _as_it_is)
                self._wrap(torch, "compile", self._compiling, _as_it_is)
            self._compile_nothing()

    def unwatch(self, watch: Watch) -> None:
        """Puts the originals back after the last watch; what somebody else has put in their place stays."""
        with self._lock:
            watches = self._watches[watch.log.thread]
            watches.remove(watch)
            if not watches:
                del self._watches[watch.log.thread]
            if self._watches:
                return
            while self._wrapped:
                owner, name, original, ours = self._wrapped.pop()
                if vars(owner).get(name) is ours:
                    setattr(owner, name, original)
            if self._stance is not None:
                self._stance.__exit__(None, None, None)
                self._stance = None

    def _compile_nothing(self) -> None:
        """Lets compiled functions run eagerly: their guards would fail under the mode, and they be compiled again."""
        if self._stance is None and "torch._dynamo" in sys.modules:
            self._stance = torch.compiler.set_stance("force_eager")

    def _wrap(self, owner: Any, name: str, make: Callable[[Any], Any], bind: Callable[[Any], Any]) -> None:
        original = vars(owner)[name]
        function = getattr(original, "__func__", original)
        ours = bind(functools.wraps(function)(make(function)))
        setattr(owner, name, ours)
        self._wrapped.append((owner, name, original, ours))

    def _noted(self, function: Any) -> Any:
        """A function that makes tensors, with a note of each."""
        called = Called(function.__name__, PLAIN, False)

        @eager
        def noted(*args: Any, **kwargs: Any) -> Any:
            watches = self._watches.get(threading.get_ident())
            if not watches:
                return function(*args, **kwargs)
            before = _sequence_number()
            result = function(*args, **kwargs)
            for watch in watches:
                watch.note_unseen(called, result, before, sys._getframe(1))
            return result

        return noted

    def _running(self, call: Any) -> Any:
        """A module's call, during which the log knows the module."""

        @eager
        def running(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            watches = self._watches.get(threading.get_ident())
            if not watches:
                return call(module, *args, **kwargs)
            logs = [watch.log for watch in watches]
            depths = [log.enter(module) for log in logs]
            try:
                output = call(module, *args, **kwargs)
            finally:
                for log, depth in zip(logs, depths, strict=True):
                    del log.modules[depth:]
            for log in logs:
                log.note_return(output)
            return output

        return running

    def _compiling(self, compile_: Any) -> Any:
        @eager
        def compiling(*args: Any, **kwargs: Any) -> Any:
            compiled = compile_(*args, **kwargs)
            with self._lock:
                if self._watches:
                    self._compile_nothing()
            return compiled

        return compiling


def _as_it_is(function: Any) -> Any:
    return function


_UNSEEN = _Unseen()
"""One for the process, because what it wraps are attributes of the process; it is empty while nobody tracks."""
