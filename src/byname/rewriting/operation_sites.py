"""Operations: the forward of a module in a rewritten model, and the function mode that finds what it calls."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from types import MethodType
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from byname.errors import RewriteError
from byname.model.module_tree import join_path
from byname.model.operations import TENSOR_PROPERTIES, main_result, operation_name, operation_path, taken
from byname.place import NameSegment
from byname.reading.functions import is_in_place
from byname.reading.quiet import dynamo_skip, run_eagerly
from byname.rewriting.narrow import narrowed
from byname.rewriting.sites import InterjectionSite, rewriting_state
from byname.watch.forwards import do_nothing
from byname.watch.interject import Interjection, note_inputs
from byname.watch.replacement import (
    IN_CHECKPOINT,
    changed_tensor,
    copying_saved_tensors,
    is_checkpoint_frame,
    overwrite,
)


class Operations:
    """The forward of a module in a rewritten model, with the interjections at the operations that it calls.

    While it runs, a function mode counts its calls by name. If it has no interjections, it turns off the mode of the
    module around it: its calls do not belong to that, and so cost nothing.

    Attributes:
        sites: the interjections.
        names: the names of the functions that are counted; None for all.
        seen: the paths of the operations so far, and an empty one once it has run; None if nobody asks for them.
        on: whether the mode is on, also if there are no interjections.
        narrow: the code of the class's forward, and the one that turns the mode on for some statements only; None if
            there is none, and ``...`` if that is not known yet.
        known: the paths of operations and the interjections there, by the name and the number of earlier calls.
        properties: whether a property such as ``x.T`` may be meant, which the compiler does not give to modes.
    """

    def __init__(self, module: nn.Module, path: str) -> None:
        self.module = module
        self.path = path
        self.kind = type(module)
        self.own = module.__dict__.get("forward")  # a forward set on the instance
        self.taken = taken(module)
        self.sites: list[InterjectionSite] = []
        self.names: frozenset[str] | None = frozenset()
        self.seen: set[str] | None = None
        self.on = self.properties = False
        self.narrow: Any = ...
        self.handle: Any = None
        self.known: dict[tuple[str, int], tuple[str, list[InterjectionSite]]] = {}
        self._wrap()

    def _wrap(self) -> None:
        """Name the forward inside, which code that reads its signature or its variables follows."""
        self.__wrapped__ = self.own or MethodType(self.kind.forward, self.module)

    @classmethod
    def of(cls, module: nn.Module, path: str) -> Operations:
        """Return the one of a module; the first call puts it there."""
        found = operations_of(module)
        if found is None:
            found = module.__dict__["forward"] = cls(module, path)
        return found

    def add(self, names: Sequence[str], interjection: Interjection) -> None:
        path = ", ".join(join_path(self.path, name) for name in names)
        self.sites.append(InterjectionSite(path, interjection, names))
        self.on = True
        self._count()

    def keep_off_fast_paths(self) -> None:
        """Hook the module with nothing: PyTorch then calls it, instead of computing its layer by the fast path."""
        if self.handle is None:
            self.handle = self.module.register_forward_pre_hook(do_nothing)

    def note(self, on: bool) -> None:
        """Begin or end to note the operations that run."""
        self.seen = set() if on else None
        self._count()

    def _count(self) -> None:
        names = [name for site in self.sites for name in site.names]
        every = self.seen is not None or any(NameSegment(name).wild for name in names)
        self.names = None if every else frozenset(_bases(names))
        self.narrow, self.known = ..., {}
        self.properties = any(NameSegment(name).matches(one) for name in names for one in TENSOR_PROPERTIES)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.on and not _depth():  # no mode is on, as nearly always
            return self.kind.forward(self.module, *args, **kwargs) if self.own is None else self.own(*args, **kwargs)
        if rewriting_state.running:
            return self._forward(*args, **kwargs)
        if not self.on:
            return self._run_without_mode(*args, **kwargs)
        if self.properties and torch.compiler.is_compiling():
            return self._eagerly(*args, **kwargs)
        return self._run_with_mode(*args, **kwargs)

    def _forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.kind.forward(self.module, *args, **kwargs) if self.own is None else self.own(*args, **kwargs)

    def _run_with_mode(self, *args: Any, **kwargs: Any) -> Any:
        forward = None
        if torch.compiler.is_compiling():
            _complete_the_compiler()
        else:
            forward = self._narrowed()
        around, mode = suspend_mode(), _OperationMode(self)
        try:
            if forward is not None:
                return forward(self.module, *args, _byname_mode=mode, **kwargs)
            with mode:
                return self._forward(*args, **kwargs)
        finally:
            resume_mode(around)

    def _narrowed(self) -> Callable[..., Any] | None:
        """Return the forward that turns the mode on where it is needed; None if it is needed everywhere."""
        if self.narrow is ...:
            exact = self.own is None and self.names is not None
            self.narrow = narrowed(self.module, self.names or ()) if exact else None
        if self.narrow is None or self.kind.forward.__code__ is not self.narrow[0]:  # its variables may be watched
            return None
        return self.narrow[1]  # type: ignore[no-any-return]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "narrow": ..., "known": {}, "__wrapped__": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._wrap()

    @dynamo_skip
    def _eagerly(self, *args: Any, **kwargs: Any) -> Any:
        return self._run_with_mode(*args, **kwargs)

    def _run_without_mode(self, *args: Any, **kwargs: Any) -> Any:
        around = suspend_mode()
        try:
            return self._forward(*args, **kwargs)
        finally:
            resume_mode(around)

    def at(self, name: str, count: int) -> tuple[str, list[InterjectionSite]]:
        """Return the path of a call of a function, and the interjections there; `count` calls were earlier."""
        known = self.known.get((name, count))
        if known is None:
            last = operation_path("", name, count, self.taken)
            known = (
                join_path(self.path, last),
                [one for one in self.sites if any(_matches(each, last) for each in one.names)],
            )
            if not torch.compiler.is_compiling():
                self.known[name, count] = known
        return known


def operations_of(module: nn.Module) -> Operations | None:
    """Return the interjections at the operations of a module; None if it is not prepared for any."""
    found = module.__dict__.get("forward")
    return found if isinstance(found, Operations) else None


_NUMBERED = re.compile(r"(.+)_\d+")


def _bases(names: Sequence[str]) -> Iterator[str]:
    """Yield the names of the functions that operations may be calls of: ``softmax_1`` is one of ``softmax``."""
    for name in names:
        yield name
        if (numbered := _NUMBERED.fullmatch(name)) is not None:
            yield numbered[1]


def _constant(function: Any) -> Any:
    """Mark a function for the compiler, which then calls it while it traces: else each operation is a graph break.

    ``torch.compiler.assume_constant_result`` does so too, but imports the compiler.
    """
    function._dynamo_marked_constant = True
    return function


@_constant
def _matches(pattern: str, name: str) -> bool:
    return pattern == name or NameSegment(pattern).matches(name)


_name_of = _constant(operation_name)


@_constant
def _returns_extra(function: Any) -> bool:
    return main_result(function, (None,)) is None


@_constant
def _in_place(function: Any) -> bool:
    return is_in_place(str(getattr(function, "__name__", "")))


@_constant
def _complete_the_compiler() -> None:
    """Have the compiler give modes the functions that it leaves out (PyTorch 2.13): ``relu_``, ``rand`` and others.

    The compiler asks ``torch.overrides``, which lists the functions whose tensors may be of another class.
    """
    from torch._dynamo.variables.torch import get_overridable_functions

    known = get_overridable_functions()
    builtin: Any = torch._C
    for of in (builtin._VariableFunctions, builtin._nn, builtin._special, builtin._linalg, builtin._fft):
        for name in dir(of):
            if not name.startswith("_") and operation_name(function := getattr(of, name)) is not None:
                known.add(function)


_push = torch._C._push_on_torch_function_stack
_pop = torch._C._pop_torch_function_stack
_depth = torch._C._len_torch_function_stack
_at = torch._C._get_function_stack_at


class _OperationMode(TorchFunctionMode):
    """The function mode of one call of a module.

    Attributes:
        counts: how often each function was called.
        off: whether a module inside runs, below a mode of the user's, so that this one cannot be taken off the stack.
    """

    def __init__(self, operations: Operations) -> None:
        self.operations = operations
        self.counts: dict[str, int] = {}
        self.off = False
        if operations.seen is not None:
            operations.seen.add("")

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = _name_of(func)
        operations = self.operations
        if name is None or self.off or (operations.names is not None and name not in operations.names):
            return func(*args, **kwargs) if kwargs else func(*args)
        count = self.counts.get(name, 0)
        self.counts[name] = count + 1
        path, sites = operations.at(name, count)
        if operations.seen is not None:
            operations.seen.add(path)
        if not sites:
            return func(*args, **kwargs) if kwargs else func(*args)
        return _reported(path, sites, func, args, kwargs or {})

    def run(self, func: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call a function while the mode is off; a narrowed forward does so."""
        return self.__torch_function__(func, (), args, kwargs)


def suspend_mode() -> _OperationMode | None:
    """Turn off the mode of the module that is running, and return it; None if there is none."""
    depth = _depth()
    if not depth:
        return None
    top = _at(depth - 1)
    if type(top) is _OperationMode:
        return _pop()  # type: ignore[no-any-return]
    for level in range(depth - 2, -1, -1):
        mode = _at(level)
        if type(mode) is _OperationMode and not mode.off:
            mode.off = True
            return mode
    return None


def resume_mode(mode: _OperationMode | None) -> None:
    """Turn a mode on again that `suspend_mode` returned."""
    if mode is not None:
        if mode.off:
            mode.off = False
        else:
            _push(mode)


# Otherwise, after a graph break around it, the compiler would trace the functions inside it with the mode and then run
# the result under the mode: each interjection would act twice. `dynamo_skip` would be a graph break by itself.
run_eagerly(Operations._run_with_mode)


def _reported(path: str, sites: Sequence[InterjectionSite], func: Any, args: Any, kwargs: Any) -> Any:
    """Run an operation and report its result; return the result, or what replaces it."""
    compiling = torch.compiler.is_compiling()
    if not compiling and _acts_already(path):
        return func(*args, **kwargs)
    inputs = (*args, *kwargs.values())
    call_inputs = [note_inputs(inputs) if one.with_gradients else None for one in sites]
    if compiling and _in_place(func):
        return _reported_in_place(path, sites, call_inputs, func, args, kwargs)
    changed = changed_tensor(func, args, kwargs) if not compiling and (kwargs or _in_place(func)) else None
    with nullcontext() if changed is None else copying_saved_tensors(changed):
        result = func(*args, **kwargs)
        node = None if changed is None else changed.grad_fn
        old = changed if result is None else result[0] if type(result) is tuple and _returns_extra(func) else result
        value = _after_all(path, sites, call_inputs, inputs, old)
    if value is None:
        return result
    if type(result) is tuple and type(old) is not tuple:
        return (value, *result[1:])
    if changed is None or changed is not old:
        return value
    overwrite(changed, value, node)  # the caller of an in-place function may ignore the result
    return result


def _after_all(
    path: str, sites: Sequence[InterjectionSite], call_inputs: Sequence[Any], inputs: Any, value: Any
) -> Any:
    """Return what the interjections make of a value, one after the other; None if it stays."""
    replaced = None
    for site, one in zip(sites, call_inputs, strict=True):
        new = site(path, None, inputs, value, one)
        if new is not None:
            value = replaced = new
    return replaced


def _reported_in_place(
    path: str, sites: Sequence[InterjectionSite], call_inputs: Sequence[Any], func: Any, args: Any, kwargs: Any
) -> Any:
    """Run an operation in place on a copy while the compiler traces: it does not write twice to what it has saved."""
    changed, copied = args[0], args[0].clone()
    func(copied, *args[1:], **kwargs)
    value = _after_all(path, sites, call_inputs, (*args, *kwargs.values()), copied)
    changed.copy_(copied if value is None else value)
    return changed


def _acts_already(path: str) -> bool:
    """Return whether a graph of the compiler makes this call: it was traced with the mode, and has the interjection."""
    frame: Any = sys._getframe(2)
    in_graph = False
    while frame is not None and frame.f_code is not _COUNTED:
        module = frame.f_globals.get("__name__")
        if frame.f_code.co_filename.startswith("<eval_with_key>"):
            in_graph = True
        elif in_graph and module == "torch._dynamo.eval_frame":
            return True
        elif is_checkpoint_frame(frame):
            raise RewriteError(f"`{path}` {IN_CHECKPOINT}")
        frame = frame.f_back
    return False


_COUNTED = Operations._run_with_mode.__code__
