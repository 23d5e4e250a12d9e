"""What does an object hold, and how does the program write the way from the object to what it holds?

One function per kind of object. Nothing here runs the user's code: attributes are read from ``__dict__`` and slots,
never through ``getattr``, and types are compared by ``type(obj)``.
"""

from __future__ import annotations

import functools
import gc
import keyword
import math
import types
import unicodedata
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn

from byname.card import fact, is_tensor
from byname.naming.frames import locals_of
from byname.naming.fsdp import gathered_parameters, is_sharded

__all__ = ["ATOMS", "Step", "held_by", "literal", "writable"]


class Step(NamedTuple):
    """One step on the way to a tensor.

    Attributes:
        kind: ``attribute``, ``item``, ``parameter``, ``buffer``, ``module``, ``closure``, ``state``, ...
        write: makes the source of the held object from the source of its holder.
        evaluates: whether that source, evaluated, is the held object.
        label: the variable or key in plain words, where the source would be hard to read.
        seen_through, reads_registry: of a wrapper's own step, which is not written, and of one that reads a module's
            registry: the second right after the first would look in the wrapper.
        parameter, key: of a step into an optimizer's state, the parameter whose state it is, and the entry.
    """

    kind: str
    write: Callable[[str], str]
    evaluates: bool = True
    label: str = ""
    seen_through: bool = False
    reads_registry: bool = False
    parameter: torch.Tensor | None = None
    key: object = None


Held: TypeAlias = Iterable[tuple[Callable[[Any], Step], Any, object]]
"""Held objects, each with the function that makes the step to it and that function's argument: most are never made."""

ATOMS: frozenset[type] = frozenset(
    {
        *(int, float, complex, bool, str, bytes, bytearray, range, slice, memoryview, type(None), type(...)),
        *(types.ModuleType, types.CodeType, types.BuiltinFunctionType, types.FrameType, types.TracebackType),
        *(types.MethodDescriptorType, types.WrapperDescriptorType, types.MethodWrapperType, types.GetSetDescriptorType),
        *(types.MemberDescriptorType, types.ClassMethodDescriptorType, property, type(NotImplemented)),
        *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, torch.Generator),
    }
)
"""Types that hold no tensor, or lead out of the user's objects into the whole interpreter."""


def held_by(obj: object) -> Held:
    """What an object holds that could be, or lead to, a tensor."""
    return _expander(type(obj))(obj)


def _expander(kind: type) -> Callable[[Any], Held]:
    module = _NAMESPACE(kind).get("__module__")
    if type(module) is str and (module == "byname" or module.startswith("byname.")):
        return _nothing
    return next((expand for family, expand in _FAMILIES if issubclass(kind, family)), _instance)


def _nothing(_: object) -> Held:
    """byname's own results and registers hold no tensor for anybody."""
    return ()


def _same(step: Step) -> Step:
    return step


def attribute(name: str, evaluates: bool = True, kind: str = "attribute") -> Step:
    """The step ``.name``; by ``getattr`` where the name cannot be written as one."""
    if writable(name):
        return Step(kind, lambda before: f"{before}.{name}", evaluates)
    return Step(kind, lambda before: f"getattr({before}, {name!r})", evaluates)


def writable(name: str) -> bool:
    """Whether a name can stand in source as it is: Python reads identifiers in their normal form (NFKC)."""
    return name.isidentifier() and not keyword.iskeyword(name) and unicodedata.normalize("NFKC", name) == name


def item(key: object, kind: str = "item", evaluates: bool = True) -> Step:
    """The step ``[key]`` for a key that can be written down."""
    written = repr(key)
    return Step(kind, lambda before: f"{before}[{written}]", evaluates)


def _plain(kind: type, family: type, *methods: str) -> bool:
    """Whether a class reads its items as its builtin family does."""
    return all(_found(kind, method) is _found(family, method) for method in methods)


def _found(kind: type, name: str) -> object:
    """What a class defines under a name, without asking its metaclass."""
    return next((space[name] for parent in _MRO(kind) if name in (space := _NAMESPACE(parent))), None)


_NAMESPACE: Callable[[type], Any] = type.__dict__["__dict__"].__get__
_MRO: Callable[[type], tuple[type, ...]] = type.__dict__["__mro__"].__get__


def literal(key: object, depth: int = 8) -> bool:
    """Whether a key, written down and read again, finds the same entry; long and deeply nested ones are not written."""
    if type(key) in (str, bytes):
        return len(key) <= 500  # type: ignore[arg-type]
    if type(key) is int:
        return key.bit_length() <= 500
    if type(key) is float:
        return math.isfinite(key)
    if type(key) is tuple:
        return depth > 0 and len(key) <= 16 and all(literal(one, depth - 1) for one in key)
    return type(key) in (bool, type(None))


def _snapshot(mapping: Any) -> list[tuple[Any, Any]]:
    """The items of a dict that other threads may be changing."""
    for _ in range(5):
        try:
            return list((OrderedDict if issubclass(type(mapping), OrderedDict) else dict).items(mapping))
        except RuntimeError:
            continue
    return []


def _dict(obj: Any) -> Held:
    kind = type(obj)
    base = OrderedDict if issubclass(kind, OrderedDict) else defaultdict if issubclass(kind, defaultdict) else dict
    direct = _plain(kind, base, "__getitem__", "values", "__iter__") and _reads_plainly(kind)
    for position, (key, value) in enumerate(_snapshot(obj)):
        if type(value) not in ATOMS:
            yield _entry, (key, position, direct), value
    if kind not in (dict, OrderedDict, defaultdict):
        yield from _instance(obj)


def _entry(found: tuple[object, int, bool]) -> Step:
    """The step to a dict's value: by its key where that can be written down, else by its position."""
    key, position, evaluates = found
    if literal(key):
        return item(key, evaluates=evaluates)
    return Step("item", lambda before: f"[*{before}.values()][{position}]", evaluates)


def _sequence(obj: Any) -> Held:
    family = next(family for family in (list, tuple, deque) if issubclass(type(obj), family))
    make = item if _plain(type(obj), family, "__getitem__") else _indirect_item
    for position, value in enumerate(family.__iter__(obj) if family is not deque else _steady(obj)):
        if type(value) not in ATOMS:
            yield make, position, value
    if type(obj) is not family and family is not tuple:
        yield from _instance(obj)


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
            yield _same, step, value


def _module(obj: Any) -> Held:
    """A module's parameters, buffers and children under the names the program writes, then its other attributes."""
    attributes = _attributes(obj)
    kind = type(obj)
    for field, what in (("_parameters", "parameter"), ("_buffers", "buffer"), ("_modules", "module")):
        registry = attributes.get(field)
        if not issubclass(type(registry), dict):
            continue
        for position, (name, value) in enumerate(_snapshot(registry)):
            if type(value) not in ATOMS and type(name) is str:
                yield _registered_as, (kind, name, position, what, name in attributes), value
    if is_sharded(kind):
        yield from _unsharded(obj)
    for name, value in _snapshot(attributes):
        if type(value) not in ATOMS and type(name) is str and name not in _MODULE_FIELDS:
            yield _own, (kind, name), value
    yield from _slots(obj)


def _registered_as(found: tuple[type, str, int, str, bool]) -> Step:
    return _registered(*found)


def _own(found: tuple[type, str]) -> Step:
    return _instance_attribute(*found)


_MODULE_FIELDS = frozenset(
    {*vars(nn.Module()), "_compiled_call_impl", "_forward_module", "_is_full_backward_hook"} - {"training"}
)
_SEEN_THROUGH = {
    ("DistributedDataParallel", "module"): False,
    ("DataParallel", "module"): False,
    ("OptimizedModule", "_orig_mod"): True,
    ("CheckpointWrapper", "_checkpoint_wrapped_module"): True,
    ("FullyShardedDataParallel", "_fsdp_wrapped_module"): True,
}
"""Wrappers whose own segment is left out of a name: class and child, and whether the shorter path still evaluates."""


def _registered(kind: type, name: str, position: int, what: str, shadowed: bool) -> Step:
    for parent in _MRO(kind):
        if (through := _SEEN_THROUGH.get((parent.__name__, name))) is not None and what == "module":
            return Step("module", lambda before: before, through, seen_through=True)
    if (container := _container_item(kind, name, position, what)) is not None:
        return container
    own = _plain(kind, nn.Module, "__getattr__", "__getattribute__") or _wrapper(kind)
    if shadowed or _found(kind, name) is not None or not own:
        registry = {"parameter": "_parameters", "buffer": "_buffers", "module": "_modules"}[what]
        reachable = _plain(kind, nn.Module, "__getattribute__")
        return Step(what, lambda before: f"{before}.{registry}[{name!r}]", reachable, reads_registry=True)
    return attribute(name, kind=what)


def _container_item(kind: type, name: str, position: int, what: str) -> Step | None:
    """The step ``[0]`` or ``['key']`` into PyTorch's containers: a Sequential counts, the others look up a name."""
    if what == "module" and name.isdigit() and issubclass(kind, nn.Sequential):
        return item(position, "module", _plain(kind, nn.Sequential, "__getitem__", "_get_item_by_idx"))
    if what == "module" and name.isdigit() and issubclass(kind, nn.ModuleList):
        return item(int(name), "module", _plain(kind, nn.ModuleList, "__getitem__", "_get_abs_string_index"))
    if what == "parameter" and name.isdigit() and issubclass(kind, nn.ParameterList):
        return item(int(name), "parameter", _plain(kind, nn.ParameterList, "__getitem__"))
    if what == "module" and issubclass(kind, nn.ModuleDict):
        return item(name, what, _plain(kind, nn.ModuleDict, "__getitem__"))
    if what == "parameter" and issubclass(kind, nn.ParameterDict):
        return item(name, what, _plain(kind, nn.ParameterDict, "__getitem__"))
    return None


def _wrapper(kind: type) -> bool:
    """Whether the class answers ``__getattr__`` by asking the module it wraps, as PyTorch's own wrappers do."""
    return str(_NAMESPACE(kind).get("__module__")).partition(".")[0] == "torch"


def _unsharded(obj: Any) -> Held:
    for one in gathered_parameters(obj):
        inside = _path_inside(obj, one.module)
        if inside is not None:
            yield _same, Step("parameter", _suffix(f"{inside}.{one.name}"), evaluates=False), one.gathered


def _suffix(text: str) -> Callable[[str], str]:
    return lambda before: f"{before}{text}"


def _path_inside(root: nn.Module, wanted: nn.Module) -> str | None:
    """The path from a module to one inside it, as source."""
    stack: list[tuple[str, nn.Module]] = [("", root)]
    seen: set[int] = set()
    while stack:
        path, module = stack.pop()
        if module is wanted:
            return path
        for position, (name, child) in enumerate(_snapshot(_attributes(module).get("_modules", {}))):
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                stack.append((_registered(type(module), name, position, "module", False).write(path), child))
    return None


def _optimizer(obj: Any) -> Held:
    """An optimizer's state, each tensor under the parameter it belongs to; then its groups and other attributes."""
    attributes = _attributes(obj)
    state = attributes.get("state")
    if issubclass(type(state), dict):
        for parameter, entry in _snapshot(state):
            if is_tensor(parameter) and issubclass(type(entry), dict):
                for key, value in _snapshot(entry):
                    if is_tensor(value):
                        yield _state_step, (parameter, key), value
    for name, value in _snapshot(attributes):
        if type(value) not in ATOMS and type(name) is str and name != "state":
            yield _own, (type(obj), name), value


def _state_step(found: tuple[torch.Tensor, object]) -> Step:
    """The step into an optimizer's state. Its source needs the name of a parameter: `byname.naming.names` writes it."""
    parameter, key = found
    return Step("state", _suffix(".state[?]"), literal(key), parameter=parameter, key=key if literal(key) else "?")


def _tensor(obj: Any) -> Held:
    """A tensor's gradient, and what the program wrote on it; the dict of a tensor is read only where there is one."""
    gradient = fact(obj, "grad") if fact(obj, "is_leaf") or fact(obj, "retains_grad") else None
    if gradient is not None:
        yield _same, attribute("grad", _found(type(obj), "grad") is _found(torch.Tensor, "grad")), gradient
    for held in gc.get_referents(obj):
        if type(held) is dict:
            for name, value in _snapshot(held):
                if type(name) is str and type(value) not in ATOMS:
                    yield _own, (type(obj), name), value


def _function(obj: Any) -> Held:
    names = obj.__code__.co_freevars
    for position, cell in enumerate(obj.__closure__ or ()):
        try:
            value = cell.cell_contents
        except ValueError:
            continue
        if type(value) not in ATOMS:
            yield _same, _cell(position, names[position], obj.__qualname__), value
    for position, value in enumerate(obj.__defaults__ or ()):
        if type(value) not in ATOMS:
            yield _same, Step("item", _suffix(f".__defaults__[{position}]")), value
    for name, value in _snapshot(obj.__kwdefaults__ or {}):
        if type(value) not in ATOMS:
            yield _same, Step("item", _suffix(f".__kwdefaults__[{name!r}]")), value
    for name, value in _snapshot(obj.__dict__):
        if type(value) not in ATOMS:
            yield attribute, name, value


def _cell(position: int, variable: str, function: str) -> Step:
    words = f"{variable} (closure of {function})"
    return Step("closure", _suffix(f".__closure__[{position}].cell_contents"), label=words)


def _method(obj: Any) -> Held:
    yield attribute, "__self__", obj.__self__
    yield attribute, "__func__", obj.__func__


def _partial(obj: Any) -> Held:
    for name in ("func", "args", "keywords"):
        own = _found(functools.partial, name)
        value = own.__get__(obj)  # type: ignore[attr-defined]
        yield _same, attribute(name, _found(type(obj), name) is own), value


def _suspended(obj: Any) -> Held:
    """The local variables of a suspended generator or coroutine."""
    field = {types.GeneratorType: "gi_frame", types.CoroutineType: "cr_frame"}.get(type(obj), "ag_frame")
    frame = getattr(obj, field)
    if frame is None:
        return
    for name, value in locals_of(frame):
        if type(value) not in ATOMS:
            words = f"{name} (local of the suspended {obj.__qualname__})"
            yield _same, Step("local", _suffix(f".{field}.f_locals[{name!r}]"), label=words), value


def _class(obj: Any) -> Held:
    module = _NAMESPACE(obj).get("__module__")
    if type(module) is not str or module.partition(".")[0] in ("builtins", "torch", "typing", "abc", "collections"):
        return
    for name, value in list(_NAMESPACE(obj).items()):
        kind = type(value)
        if kind in ATOMS or issubclass(kind, type) or name.startswith("__") or kind in (staticmethod, classmethod):
            continue
        evaluates = _found(kind, "__get__") is None and _found(type(obj), name) is None
        yield _same, attribute(name, evaluates), value


def _instance(obj: object) -> Held:
    """The attributes of an object of any class, from its ``__dict__`` and its slots."""
    kind = type(obj)
    if all(type(held) in ATOMS or issubclass(type(held), type) for held in gc.get_referents(obj)):
        return
    for name, value in _snapshot(_attributes(obj)):
        if type(name) is str and type(value) not in ATOMS:
            yield _own, (kind, name), value
    yield from _slots(obj)


def _attributes(obj: object) -> dict[str, Any]:
    """An object's ``__dict__``, read past any ``__getattribute__`` or property of its class."""
    for parent in _MRO(type(obj)):
        descriptor: Any = _NAMESPACE(parent).get("__dict__")
        if type(descriptor) in (types.GetSetDescriptorType, types.MemberDescriptorType):
            found = descriptor.__get__(obj)
            return found if issubclass(type(found), dict) else {}
    return {}


def _instance_attribute(kind: type, name: str) -> Step:
    """The step ``.name`` where that reads the instance's attribute; ``.__dict__['name']`` where a class hides it."""
    plain = _reads_plainly(kind)
    hidden = _found(kind, name)
    if hidden is not None and any(hasattr(type(hidden), method) for method in ("__set__", "__delete__")):
        return Step("attribute", lambda before: f"{before}.__dict__[{name!r}]", plain)
    return attribute(name, plain)


def _reads_plainly(kind: type) -> bool:
    """Whether the class reads attributes as Python does, not by a ``__getattribute__`` that somebody wrote."""
    return type(_found(kind, "__getattribute__")) is types.WrapperDescriptorType


def _slots(obj: object) -> Held:
    kind = type(obj)
    plain = _reads_plainly(kind)
    for parent in _MRO(kind):
        if "__slots__" not in _NAMESPACE(parent):
            continue
        for name, descriptor in list(_NAMESPACE(parent).items()):
            if type(descriptor) is not types.MemberDescriptorType:
                continue
            try:
                value = descriptor.__get__(obj)
            except AttributeError:
                continue
            if type(value) not in ATOMS and name != "__dict__":
                yield _same, attribute(name, plain and _found(kind, name) is descriptor), value


_FAMILIES: tuple[tuple[Any, Callable[[Any], Held]], ...] = (
    (torch.Tensor, _tensor),
    (nn.Module, _module),
    (torch.optim.Optimizer, _optimizer),
    (dict, _dict),
    ((list, tuple, deque), _sequence),
    ((set, frozenset), _set),
    (types.FunctionType, _function),
    (types.MethodType, _method),
    (functools.partial, _partial),
    ((types.GeneratorType, types.CoroutineType, types.AsyncGeneratorType), _suspended),
    (type, _class),
)
