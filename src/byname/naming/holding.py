"""What does an object hold that is, or leads to, a tensor? One function for each kind of object.

Nothing here runs the user's code: attributes are read from ``__dict__`` and slots, never through ``getattr``, and
types are compared by ``type(obj)``.
"""

from __future__ import annotations

import functools
import gc
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from byname.naming.attributes import held_by_instance
from byname.naming.frames import locals_of
from byname.naming.owning import held_by_module, held_by_optimizer, held_by_tensor
from byname.naming.reading import found_in, namespace_of, plain, reads_plainly, snapshot
from byname.naming.step import ATOMS, Held, Step, attribute, item, literal, same, suffix

__all__ = ["held_by"]


def held_by(obj: object) -> Held:
    """What an object holds that could be, or lead to, a tensor."""
    return _expander(type(obj))(obj)


def _expander(kind: type) -> Callable[[Any], Held]:
    module = namespace_of(kind).get("__module__")
    if type(module) is str and (module == "byname" or module.startswith("byname.")):
        return _nothing
    return next((expand for family, expand in _FAMILIES if issubclass(kind, family)), held_by_instance)


def _nothing(_: object) -> Held:
    """byname's own results and registers hold no tensor for anybody."""
    return ()


def _dict(obj: Any) -> Held:
    kind = type(obj)
    base = OrderedDict if issubclass(kind, OrderedDict) else defaultdict if issubclass(kind, defaultdict) else dict
    direct = plain(kind, base, "__getitem__", "values", "__iter__") and reads_plainly(kind)
    for position, (key, value) in enumerate(snapshot(obj)):
        if type(value) not in ATOMS:
            yield _entry, (key, position, direct), value
    if kind not in (dict, OrderedDict, defaultdict):
        yield from held_by_instance(obj)


def _entry(found: tuple[object, int, bool]) -> Step:
    """The step to a dict's value: by its key where that can be written down, else by its position."""
    key, position, evaluates = found
    if literal(key):
        return item(key, evaluates=evaluates)
    return Step("item", lambda before: f"[*{before}.values()][{position}]", evaluates)


def _sequence(obj: Any) -> Held:
    family = next(family for family in (list, tuple, deque) if issubclass(type(obj), family))
    make = item if plain(type(obj), family, "__getitem__") else _indirect_item
    for position, value in enumerate(family.__iter__(obj) if family is not deque else _steady(obj)):
        if type(value) not in ATOMS:
            yield make, position, value
    if type(obj) is not family and family is not tuple:
        yield from held_by_instance(obj)


def _indirect_item(position: int) -> Step:
    return item(position, evaluates=False)


def _steady(obj: deque[Any]) -> list[Any]:
    for _ in range(5):
        try:
            return list(deque.__iter__(obj))
        except RuntimeError:
            continue
    return []


def _set(obj: Any) -> Held:
    step = Step("item", lambda before: f"(one of {before})", evaluates=False)
    for value in gc.get_referents(obj):
        if type(value) not in ATOMS and not issubclass(type(value), type):
            yield same, step, value


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
    words = f"{variable} (closure of {function})"
    return Step("closure", suffix(f".__closure__[{position}].cell_contents"), label=words)


def _method(obj: Any) -> Held:
    yield attribute, "__self__", obj.__self__
    yield attribute, "__func__", obj.__func__


def _partial(obj: Any) -> Held:
    for name in ("func", "args", "keywords"):
        own = found_in(functools.partial, name)
        value = own.__get__(obj)  # type: ignore[attr-defined]
        yield same, attribute(name, found_in(type(obj), name) is own), value


def _suspended(obj: Any) -> Held:
    """The local variables of a suspended generator or coroutine."""
    field = {types.GeneratorType: "gi_frame", types.CoroutineType: "cr_frame"}.get(type(obj), "ag_frame")
    frame = getattr(obj, field)
    if frame is None:
        return
    for name, value in locals_of(frame):
        if type(value) not in ATOMS:
            words = f"{name} (local of the suspended {obj.__qualname__})"
            yield same, Step("local", suffix(f".{field}.f_locals[{name!r}]"), label=words), value


def _class(obj: Any) -> Held:
    module = namespace_of(obj).get("__module__")
    if type(module) is not str or module.partition(".")[0] in ("builtins", "torch", "typing", "abc", "collections"):
        return
    for name, value in list(namespace_of(obj).items()):
        kind = type(value)
        if kind in ATOMS or issubclass(kind, type) or name.startswith("__") or kind in (staticmethod, classmethod):
            continue
        evaluates = found_in(kind, "__get__") is None and found_in(type(obj), name) is None
        yield same, attribute(name, evaluates), value


_FAMILIES: tuple[tuple[Any, Callable[[Any], Held]], ...] = (
    (torch.Tensor, held_by_tensor),
    (nn.Module, held_by_module),
    (torch.optim.Optimizer, held_by_optimizer),
    (dict, _dict),
    ((list, tuple, deque), _sequence),
    ((set, frozenset), _set),
    (types.FunctionType, _function),
    (types.MethodType, _method),
    (functools.partial, _partial),
    ((types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType), _suspended),
    (type, _class),
)
