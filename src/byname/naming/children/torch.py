"""Children of PyTorch's own objects: modules, optimizers, tensors, hooks and ``fully_shard``."""

from __future__ import annotations

import gc
import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from byname.naming.children.reference import (
    ATOMS,
    Held,
    Reference,
    attribute,
    in_dict,
    in_slots,
    instance_attribute,
    item,
    literal,
    remembered,
    same,
    slots_of,
    suffix,
)
from byname.reading.objects import (
    attributes_of,
    dict_of,
    found_in,
    namespace_of,
    parents_of,
    plain,
    reads_plainly,
    snapshot,
)
from byname.reading.tensor import PLAIN, fact, is_tensor


class ModuleReader:
    """Lists the children of the modules of one class, which is inspected only once.

    A module holds parameters, buffers and children, under the names that the program writes, and other attributes.
    """

    def __init__(self, kind: type) -> None:
        self._fields, self._slots, self._sharded = dict_of(kind), slots_of(kind), is_sharded(kind)
        self._hooks_evaluate = reads_plainly(kind)
        self._kind = kind
        self._registered = remembered(partial(_registered, kind))
        self._own = remembered(partial(instance_attribute, kind))

    def __call__(self, obj: Any) -> Held:
        """Return the children, each with the maker of the step to it."""
        attributes = {} if self._fields is None else self._fields(obj)
        found: list[tuple[Callable[[Any], Reference], Any, object]] = []
        for what, field in _REGISTRIES.items():
            registry = attributes.get(field)
            if type(registry) is dict and not registry:  # as most are
                continue
            for position, (name, value) in enumerate(_entries(registry)):
                if type(value) not in ATOMS and type(name) is str:
                    found.append((self._registered, (name, position, what, name in attributes), value))
        if self._sharded:
            found += _unsharded(obj)
        for name, value in _entries(attributes):
            if type(name) is str and name in _MODULE_FIELDS:  # nearly all are, and have no hooks
                if type(value) is OrderedDict and value and is_hooks(name, value):
                    found += held_by_hooks(name, value, self._hooks_evaluate and found_in(self._kind, name) is None)
            elif type(value) not in ATOMS and type(name) is str:
                found.append((self._own, name, value))
        return [*found, *in_slots(self._slots, obj)] if self._slots else found


def _entries(registry: Any) -> list[tuple[Any, Any]]:
    if issubclass(type(registry), dict):
        return snapshot(registry) if dict.__len__(registry) else []
    if namespace_of(type(registry)).get("__module__") == "torch.jit._script":  # the registries of a scripted module
        inside = attributes_of(registry)
        return snapshot(inside["_python_modules"]) if "_python_modules" in inside else list(inside["_c"].items())
    return []


_REGISTRIES = {"parameter": "_parameters", "buffer": "_buffers", "module": "_modules"}

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
"""Wrappers that a name leaves out: class and child, and whether the shorter path still evaluates."""


def _registered(kind: type, found: tuple[str, int, str, bool]) -> Reference:
    """Return the step into a registry of a module of this class."""
    name, position, what, shadowed = found
    through = [_SEEN_THROUGH[one.__name__, name] for one in parents_of(kind) if (one.__name__, name) in _SEEN_THROUGH]
    if through and what == "module":
        return Reference("module", str, through[0], enters_wrapper=True)
    if (container := _container_item(kind, name, position, what)) is not None:
        return container
    if shadowed or found_in(kind, name) is not None or not _looks_into_registries(kind):
        registry = _REGISTRIES[what]
        reachable = plain(kind, nn.Module, "__getattribute__")
        return Reference(what, lambda before: f"{before}.{registry}[{name!r}]", reachable, reads_registry=True)
    return attribute(name, kind=what)


def _looks_into_registries(kind: type) -> bool:
    """Return whether a class looks up missing attributes in the registries, as ``nn.Module`` does."""
    of_torch = str(namespace_of(kind).get("__module__")).partition(".")[0] == "torch"  # wrappers forward it
    return of_torch or plain(kind, nn.Module, "__getattr__", "__getattribute__")


def _container_item(kind: type, name: str, position: int, what: str) -> Reference | None:
    """Return the step ``[0]`` or ``['key']`` into PyTorch's containers: Sequential by position, the others by name."""
    if what == "module" and name.isdigit() and issubclass(kind, nn.Sequential):
        return item(position, "module", plain(kind, nn.Sequential, "__getitem__", "_get_item_by_idx"))
    if what == "module" and name.isdigit() and issubclass(kind, nn.ModuleList):
        return item(int(name), "module", plain(kind, nn.ModuleList, "__getitem__", "_get_abs_string_index"))
    if what == "parameter" and name.isdigit() and issubclass(kind, nn.ParameterList):
        return item(int(name), "parameter", plain(kind, nn.ParameterList, "__getitem__"))
    if what == "module" and issubclass(kind, nn.ModuleDict):
        return item(name, what, plain(kind, nn.ModuleDict, "__getitem__"))
    if what == "parameter" and issubclass(kind, nn.ParameterDict):
        return item(name, what, plain(kind, nn.ParameterDict, "__getitem__"))
    return None


def _unsharded(obj: Any) -> Held:
    for one in gathered_parameters(obj):
        inside = _path_inside(obj, one.module)
        if inside is not None:
            yield same, Reference("parameter", suffix(f"{inside}.{one.name}"), evaluates=False), one.gathered


def _path_inside(root: nn.Module, wanted: nn.Module) -> str | None:
    stack: list[tuple[str, nn.Module]] = [("", root)]
    seen: set[int] = set()
    while stack:
        path, module = stack.pop()
        if module is wanted:
            return path
        for position, (name, child) in enumerate(snapshot(attributes_of(module).get("_modules", {}))):
            if child is not None and id(child) not in seen:
                seen.add(id(child))
                stack.append((_registered(type(module), (name, position, "module", False)).write(path), child))
    return None


def held_by_optimizer(obj: Any) -> Held:
    """Yield an optimizer's state, each tensor under its parameter, then its groups and other attributes."""
    attributes, own = attributes_of(obj), partial(instance_attribute, type(obj))
    for parameter, entry in _entries(attributes.get("state")):
        if is_tensor(parameter):
            for key, one in _entries(entry):
                if type(one) not in ATOMS:
                    yield _state_step, (parameter, key), one
    for name, value in snapshot(attributes):
        if type(value) in ATOMS or type(name) is not str or name == "state":
            continue
        if is_hooks(name, value):
            yield from held_by_hooks(name, value, reads_plainly(type(obj)))
        else:
            yield own, name, value


def _state_step(found: tuple[torch.Tensor, object]) -> Reference:
    """Return the step into an optimizer's state. `byname.naming.names` puts the parameter's name into its source."""
    parameter, key = found
    evaluates = literal(key)
    written = key if evaluates else "?"
    pattern = suffix(f".state[*][{written!r}]")
    return Reference("state", suffix(".state[?]"), evaluates, parameter=id(parameter), key=written, wild=pattern)


def gradients_alone(tensors: Sequence[torch.Tensor]) -> list[Sequence[object] | None]:
    """Return the gradient, if any, of each tensor of PyTorch's own classes; None for one that may hold anything else.

    That is no leaf, or has attributes or hooks: to the collector any other tensor refers to nothing but its class.
    """
    try:
        if set(map(id, gc.get_referents(*tensors))) <= _CLASSES:
            return [
                None if not one.is_leaf else () if (gradient := one.grad) is None else (gradient,) for one in tensors
            ]
    except RuntimeError:  # see `fact`
        pass
    return [None] if len(tensors) == 1 else [found for one in tensors for found in gradients_alone([one])]


_CLASSES = {id(torch.Tensor), id(nn.Parameter)}


def held_by_tensor(obj: Any) -> Held:
    """Yield a tensor's gradient, its hooks, and the attributes that the program set on it.

    The ``__dict__`` of a tensor is read from its referents, because reading the attribute would create one.
    """
    gradient = fact(obj, "grad") if fact(obj, "is_leaf") or fact(obj, "retains_grad") else None
    if gradient is not None:
        yield same, attribute("grad", found_in(type(obj), "grad") is found_in(torch.Tensor, "grad")), gradient
    for held in gc.get_referents(obj):
        if type(held) is dict:
            yield from in_dict(held, partial(instance_attribute, type(obj)))
        elif type(held) is OrderedDict:
            for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
                if fact(obj, name) is held:
                    yield from held_by_hooks(name, held, found_in(type(obj), name) is found_in(torch.Tensor, name))
    if type(obj) not in PLAIN:
        yield from in_slots(slots_of(type(obj)), obj)


class Gathered(NamedTuple):
    """A gathered parameter, the module that has it, its name there, and the sharded parameter of the optimizer."""

    module: nn.Module
    name: str
    gathered: torch.Tensor
    sharded: torch.Tensor


def is_sharded(kind: type) -> bool:
    """Return whether a module of this class was given to ``fully_shard``."""
    return any(parent.__name__ == "FSDPModule" for parent in parents_of(kind))


def gathered_parameters(module: Any) -> Iterator[Gathered]:
    """Yield the gathered parameters that one sharded module has now.

    They are read from private fields of ``torch.distributed.fsdp`` (2.7 to 2.13), any of which may be missing.
    """
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    for group in groups:
        for one in getattr(group, "fsdp_params", ()):
            gathered = getattr(one, "_unsharded_param", None)
            info = getattr(one, "_module_info", None)
            if gathered is not None and info is not None:
                yield Gathered(info.module, info.param_name, gathered, one.sharded_param)


def is_hooks(name: str, value: object) -> bool:
    """Return whether an attribute is a hook registry that is not empty."""
    return type(value) is OrderedDict and len(value) > 0 and name.endswith("_hooks")


def held_by_hooks(registry: str, hooks: Any, evaluates: bool) -> Held:
    for key, value in snapshot(hooks):
        if type(value) not in ATOMS:
            yield _hook, (registry, key, evaluates), value


def _hook(found: tuple[str, object, bool]) -> Reference:
    registry, key, evaluates = found
    written = repr(key) if literal(key) else "?"
    return Reference(
        "hook",
        suffix(f".{registry}[{written}]"),
        evaluates and written != "?",
        reads_registry=True,
        wild=suffix(f".{registry}[*]"),
    )


def hooks_for_all() -> Iterator[tuple[str, str, object]]:
    """Yield PyTorch's registries of global hooks for modules and optimizers: module name, source, registry."""
    for module, name in _FOR_ALL:
        value = vars(sys.modules[module]).get(name)
        if is_hooks(name, value):
            yield module, f"{module}.{name}", value


_FOR_ALL = [
    (module, name)
    for module in ("torch.nn.modules.module", "torch.optim.optimizer")
    for name in vars(sys.modules[module])
    if name.startswith("_global_") and name.endswith("_hooks")
]
