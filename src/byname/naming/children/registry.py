"""Registry of children: which function lists what an object of some class holds.

Nothing here runs the user's code: attributes are read from ``__dict__`` and slots, never through ``getattr``, and types
are compared by ``type(obj)``.
"""

from __future__ import annotations

import contextvars
import functools
import threading
import types
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from byname.naming.children.python import (
    ARRAYS,
    CACHE,
    FUTURES,
    VIEWS,
    held_by_array,
    held_by_builtin,
    held_by_cache,
    held_by_context,
    held_by_dict,
    held_by_error,
    held_by_frame,
    held_by_future,
    held_by_sequence,
    held_by_set,
    held_by_threads,
    held_by_traceback,
    held_by_variable,
    held_by_view,
    is_late_future,
)
from byname.naming.children.step import ATOMS, Held, Step, attribute, has_attributes, held_by_instance, same, suffix
from byname.naming.children.torch import held_by_module, held_by_optimizer, held_by_tensor
from byname.reading.frames import locals_of
from byname.reading.objects import found_in, namespace_of, snapshot

__all__ = ["held_by"]


def held_by(obj: object) -> Held:
    """What an object holds that could be, or lead to, a tensor."""
    return _expander(type(obj))(obj)


def _expander(kind: type) -> Callable[[Any], Held]:
    module = namespace_of(kind).get("__module__")
    if type(module) is str and (module == "byname" or module.startswith("byname.")):
        return _nothing
    return next((expand for family, expand in _FAMILIES if issubclass(kind, family)), None) or _other(kind, module)


def _other(kind: type, module: object) -> Callable[[Any], Held]:
    if issubclass(kind, _EVERY_UNUSUAL):
        return next(expand for family, expand in _UNUSUAL if issubclass(kind, family))
    if (type(module) is not str or module == "_asyncio") and is_late_future(kind):
        return held_by_future
    return held_by_instance if has_attributes(kind) else held_by_builtin


def _nothing(_: object) -> Held:
    """byname's own results and registers hold no tensor for anybody."""
    return ()


def _function(obj: Any) -> Held:
    names = obj.__code__.co_freevars
    for position, cell in enumerate(obj.__closure__ or ()):
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        if type(value) not in ATOMS:
            yield same, _cell(position, names[position], obj.__qualname__), value
    for position, value in enumerate(obj.__defaults__ or ()):
        if type(value) not in ATOMS:
            yield same, Step("item", suffix(f".__defaults__[{position}]")), value
    for name, value in snapshot(obj.__kwdefaults__ or {}):
        if type(value) not in ATOMS:
            yield same, Step("item", suffix(f".__kwdefaults__[{name!r}]")), value
    for name, value in snapshot(obj.__dict__):
        if type(value) not in ATOMS:
            yield attribute, name, value


def _cell(position: int, variable: str, function: str) -> Step:
    source = suffix(f".__closure__[{position}].cell_contents")
    own = function.rpartition(".")[2]
    return Step("closure", source, label=variable, note=lambda holder: f"closure of {_said(function, own, holder)}")


def _said(function: str, own: str, holder: str) -> str:
    """A function by its own name, and by the way to it where that is neither a variable nor an attribute so named."""
    return function if holder.isidentifier() or holder.rpartition(".")[2] == own else f"{function}, {holder}"


def _method(obj: Any) -> Held:
    yield attribute, "__self__", obj.__self__
    yield attribute, "__func__", obj.__func__


def _builtin_method(obj: Any) -> Held:
    """The object that a method written in C is bound to, such as the tensor of ``x.add``."""
    if type(obj.__self__) not in ATOMS and not issubclass(type(obj.__self__), type):
        yield attribute, "__self__", obj.__self__


def _saved(obj: Any) -> Held:
    """What an object of PyTorch's that stands for a saved tensor holds, unless a hook has packed it."""
    if obj.unpack_hook is None and obj.data is not None:
        yield attribute, "data", obj.data


def _partial(obj: Any) -> Held:
    for name in ("func", "args", "keywords"):
        own = found_in(functools.partial, name)
        value = own.__get__(obj)  # type: ignore[attr-defined]
        yield same, attribute(name, found_in(type(obj), name) is own), value


def _suspended(obj: Any) -> Held:
    """The local variables of a suspended generator or coroutine, and what it waits for."""
    prefix = {types.GeneratorType: "gi", types.CoroutineType: "cr"}.get(type(obj), "ag")
    frame = getattr(obj, f"{prefix}_frame")
    if frame is None:
        return
    for name, value in locals_of(frame):
        if type(value) not in ATOMS:
            yield _variable, (name, f"{prefix}_frame", obj.__qualname__), value
    if getattr(obj, f"{prefix}_running"):
        return  # asked what a running one waits for, Python 3.11 reads memory that is not there
    awaited = "gi_yieldfrom" if prefix == "gi" else f"{prefix}_await"
    if type(inner := getattr(obj, awaited)) not in ATOMS:
        yield attribute, awaited, inner


def _variable(found: tuple[str, str, str]) -> Step:
    name, field, function = found
    source = suffix(f".{field}.f_locals[{name!r}]")
    return Step("local", source, label=name, note=lambda _: f"local of the suspended {function}")


def _class(obj: Any) -> Held:
    module = namespace_of(obj).get("__module__")
    if type(module) is not str or module.partition(".")[0] in ("torch", "typing", "abc", "collections"):
        return
    if module == "builtins" and not _flags_of(obj) & _MADE_BY_A_STATEMENT:  # exec gives classes of its own that module
        return
    for name, value in list(namespace_of(obj).items()):
        kind = type(value)
        if kind in ATOMS or issubclass(kind, type) or name.startswith("__"):
            continue
        plain = found_in(type(obj), name) is None
        if kind in (staticmethod, classmethod):
            yield same, attribute(name, plain and kind is staticmethod), value.__func__
        else:
            yield same, attribute(name, plain and found_in(kind, "__get__") is None), value


_flags_of: Callable[[type], int] = type.__dict__["__flags__"].__get__
_MADE_BY_A_STATEMENT = 1 << 9
"""``Py_TPFLAGS_HEAPTYPE``: a class that is no part of the interpreter."""

_FAMILIES: tuple[tuple[Any, Callable[[Any], Held]], ...] = (
    (torch.Tensor, held_by_tensor),
    (nn.Module, held_by_module),
    (torch.optim.Optimizer, held_by_optimizer),
    (dict, held_by_dict),
    ((list, tuple, deque), held_by_sequence),
    ((set, frozenset), held_by_set),
    (types.FunctionType, _function),
    (types.MethodType, _method),
    ((types.BuiltinMethodType, types.MethodWrapperType), _builtin_method),
    (functools.partial, _partial),
    (torch._C._autograd.SavedTensor, _saved),
    ((types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType), _suspended),
    (type, _class),
)
_UNUSUAL: tuple[tuple[Any, Callable[[Any], Held]], ...] = (
    (BaseException, held_by_error),
    (types.TracebackType, held_by_traceback),
    (types.FrameType, held_by_frame),
    (CACHE, held_by_cache),
    (VIEWS, held_by_view),
    (contextvars.Context, held_by_context),
    (contextvars.ContextVar, held_by_variable),
    (threading.local, held_by_threads),
    (FUTURES, held_by_future),
    (ARRAYS, held_by_array),
)
_EVERY_UNUSUAL: tuple[Any, ...] = tuple(
    kind for family, _ in _UNUSUAL for kind in (family if type(family) is tuple else (family,))
)
"""The same in one tuple, so that the many objects of ordinary classes are asked once."""
