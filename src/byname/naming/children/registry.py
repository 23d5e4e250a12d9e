"""Registry of children: a table from classes to the functions that list the children of their instances.

No function here runs the user's code: they read attributes from ``__dict__`` and slots, never through ``getattr``, and
compare types by ``type(obj)``.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn

from byname.naming.children.python import CACHE, OF_PYTHON, held_by_builtin, of_loaded_libraries, values_in
from byname.naming.children.reference import (
    ATOMS,
    Held,
    Reference,
    attribute,
    has_attributes,
    in_dict,
    instance_reader,
    same,
    suffix,
)
from byname.naming.children.torch import ModuleReader, gradients_alone, held_by_optimizer, held_by_tensor
from byname.reading.frames import locals_of
from byname.reading.objects import found_in, namespace_of, parents_of, snapshot

Reader: TypeAlias = Callable[[Any], Held]
"""Lists the referents of an object that could be, or lead to, a tensor."""


class Children:
    """Lists the children of objects, and caches for one search the function that reads each class.

    The cache key of a class is its ``id``, because a metaclass may define a hash. The class is kept too, so that no
    other class gets that id.
    """

    def __init__(self) -> None:
        self._readers: dict[int, Reader] = {}
        self._classes = _Classes()

    def list(self, obj: object) -> Held:
        """Return the children of an object that could be, or lead to, a tensor, each with the step to it."""
        kind = type(obj)
        return (self._readers.get(id(kind)) or self._learn(kind))(obj)

    def of(self, obj: Any) -> Sequence[object]:
        """Return only the objects that `list` gives, in its order. A fast path reads plain lists, tuples and dicts."""
        kind = type(obj)
        if kind is list or kind is tuple:
            return [value for value in obj if type(value) not in ATOMS]
        if kind is dict:
            return values_in(obj)
        if (kind is torch.Tensor or kind is nn.Parameter) and (gradient := gradients_alone([obj])[0]) is not None:
            return gradient
        return [held[2] for held in self.list(obj)]

    def _learn(self, kind: type) -> Reader:
        self._classes.append(kind)
        reader = self._readers[id(kind)] = _reader(kind)
        return reader


class _Classes(list[type]):
    """A list class of its own, so that no search takes the list for a holder of the program's."""


def _reader(kind: type) -> Reader:
    parents, module = set(map(id, parents_of(kind))), namespace_of(kind).get("__module__")
    if type(module) is str and f"{module}.".startswith("byname."):
        return lambda _: ()  # byname's own objects hold no tensor on the program's behalf
    for family, reader in (*_TABLE, *of_loaded_libraries()):
        if not parents.isdisjoint(map(id, family)):
            return reader(kind) if reader is ModuleReader else reader  # type: ignore[return-value]
    return instance_reader(kind) if has_attributes(kind) else held_by_builtin


def _function(obj: Any) -> Held:
    for position, cell in enumerate(obj.__closure__ or ()):
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        if type(value) not in ATOMS:
            yield same, _cell(position, obj.__code__.co_freevars[position], obj.__qualname__), value
    named = snapshot(obj.__kwdefaults__) if obj.__kwdefaults__ else ()
    for field, defaults in (("__defaults__", enumerate(obj.__defaults__ or ())), ("__kwdefaults__", named)):
        for key, value in defaults:
            if type(value) not in ATOMS:
                yield same, Reference("item", suffix(f".{field}[{key!r}]")), value
    if obj.__dict__:
        yield from in_dict(obj.__dict__, attribute)


def _cell(position: int, variable: str, function: str) -> Reference:
    source = suffix(f".__closure__[{position}].cell_contents")
    own = function.rpartition(".")[2]
    return Reference(
        "closure", source, label=variable, note=lambda holder: f"closure of {_said(function, own, holder)}"
    )


def _said(function: str, own: str, holder: str) -> str:
    """Return a function's name, and the path to it unless that is a variable or an attribute of the same name."""
    return function if holder.isidentifier() or holder.rpartition(".")[2] == own else f"{function}, {holder}"


def _method(obj: Any) -> Held:
    yield attribute, "__self__", obj.__self__
    yield attribute, "__func__", obj.__func__


def _builtin_method(obj: Any) -> Held:
    if type(obj.__self__) not in ATOMS and not issubclass(type(obj.__self__), type):
        yield attribute, "__self__", obj.__self__


def _saved(obj: Any) -> Held:
    if obj.unpack_hook is None and obj.data is not None:
        yield attribute, "data", obj.data


def _partial(obj: Any) -> Held:
    for name in ("func", "args", "keywords"):
        own = found_in(functools.partial, name)
        value = own.__get__(obj)  # type: ignore[attr-defined]
        yield same, attribute(name, found_in(type(obj), name) is own), value


def _suspended(obj: Any) -> Held:
    prefix = {types.GeneratorType: "gi", types.CoroutineType: "cr"}.get(type(obj), "ag")
    frame = getattr(obj, f"{prefix}_frame")
    if frame is None:
        return
    for name, value in locals_of(frame):
        if type(value) not in ATOMS:
            yield _variable, (name, f"{prefix}_frame", obj.__qualname__), value
    if getattr(obj, f"{prefix}_running"):
        return  # the next attribute of a running one makes Python 3.11 read invalid memory
    awaited = "gi_yieldfrom" if prefix == "gi" else f"{prefix}_await"
    if type(inner := getattr(obj, awaited)) not in ATOMS:
        yield attribute, awaited, inner


def _variable(found: tuple[str, str, str]) -> Reference:
    name, field, function = found
    source = suffix(f".{field}.f_locals[{name!r}]")
    return Reference("local", source, label=name, note=lambda _: f"local of the suspended {function}")


def _class(obj: Any) -> Held:
    module = namespace_of(obj).get("__module__")
    if type(module) is not str or module.partition(".")[0] in ("torch", "typing", "abc", "collections"):
        return
    if module == "builtins" and not _flags_of(obj) & _MADE_BY_A_STATEMENT:  # exec makes classes in builtins too
        return
    for name, value in list(namespace_of(obj).items()):
        kind = type(value)
        if kind in ATOMS or issubclass(kind, type) or (name.startswith("__") and kind is not CACHE):
            continue
        plain = found_in(type(obj), name) is None
        if kind in (staticmethod, classmethod):
            yield same, attribute(name, plain and kind is staticmethod), value.__func__
        else:
            yield same, attribute(name, plain and found_in(kind, "__get__") is None), value


_flags_of: Callable[[type], int] = type.__dict__["__flags__"].__get__
_MADE_BY_A_STATEMENT = 1 << 9
"""``Py_TPFLAGS_HEAPTYPE``: a class that was made at run time, not a static type of the interpreter."""


_Entry: TypeAlias = tuple[tuple[type, ...], Reader | type[ModuleReader]]

_TABLE: tuple[_Entry, ...] = (
    ((torch.Tensor,), held_by_tensor),
    ((nn.Module,), ModuleReader),
    ((torch.optim.Optimizer,), held_by_optimizer),
    *OF_PYTHON,
    ((types.FunctionType,), _function),
    ((types.MethodType,), _method),
    ((types.BuiltinMethodType, types.MethodWrapperType), _builtin_method),
    ((functools.partial,), _partial),
    ((torch._C._autograd.SavedTensor,), _saved),
    ((types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType), _suspended),
    ((type,), _class),
)
"""Classes, and the function that lists the children of their instances. The first match counts; futures and pandas'
tables come last. Any other object is read by its attributes or, if its class has none, by the garbage collector's
referents. `ModuleReader` makes a reader for each class of modules.
"""
