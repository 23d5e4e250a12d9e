"""Clone: a clone of a model that shares its parameters, the constants of its graphs, and checks of its containers."""

from __future__ import annotations

from collections import OrderedDict
from functools import partial
from types import FunctionType, MethodType
from typing import Any, TypeVar

import torch
from torch import nn

from byname.errors import RewriteError
from byname.reading.modules import modules_in
from byname.rewriting.proxies import Untraceable

M = TypeVar("M", bound=nn.Module)

_CONTAINERS = (list, dict, set, tuple, OrderedDict)


def mirror(model: M, *, dropped: tuple[type, ...] = ()) -> M:
    """Return a clone of a model: new module objects that share the model's parameters and buffers.

    Training flags, attributes and hooks are copied; setting them on one does not change the other. Lists, dicts and
    sets that modules hold are copied too, at every depth.

    Args:
        model: the model; only read.
        dropped: the classes of hooks that are left out.
    """
    originals = [one for one in modules_in(model) if not isinstance(one, torch.jit.ScriptModule)]
    twins: dict[int, Any] = {id(one): object.__new__(type(one)) for one in originals}
    copies = dict(twins)
    for one in originals:
        held = twins[id(one)].__dict__
        for name, value in one.__dict__.items():
            held[name] = _copied(value, copies)
        for registry in ("_forward_hooks", "_forward_pre_hooks"):
            _drop(held, registry, dropped)
    return twins[id(model)]  # type: ignore[no-any-return]


def _copied(value: Any, copies: dict[int, Any]) -> Any:
    """Return the value with each module in it replaced by its clone."""
    if id(value) in copies:
        return copies[id(value)]
    kind = type(value)
    if kind is MethodType and id(value.__self__) in copies:
        return MethodType(value.__func__, copies[id(value.__self__)])
    if kind is partial:
        given = [_copied(one, copies) for one in value.args]
        named = {name: _copied(one, copies) for name, one in value.keywords.items()}
        return partial(_copied(value.func, copies), *given, **named)
    if kind is FunctionType:
        _refuse_closures(value, copies)
    if kind not in _CONTAINERS:
        return value
    if kind is tuple:
        parts = tuple(_copied(one, copies) for one in value)
        same = all(part is one for part, one in zip(parts, value, strict=True))
        copies[id(value)] = value if same else parts
        return copies[id(value)]
    new = copies[id(value)] = kind()
    if kind is set:
        new.update(_copied(one, copies) for one in value)
    elif kind is list:
        new.extend(_copied(one, copies) for one in value)
    else:
        new.update((key, _copied(one, copies)) for key, one in value.items())
    return new


def _refuse_closures(function: FunctionType, copies: dict[int, Any]) -> None:
    """Refuse a function whose closure holds a module of the model: the clone would call the original module.

    Raises:
        RewriteError: there is such a module.
    """
    for cell in function.__closure__ or ():
        try:
            inside = cell.cell_contents
        except ValueError:  # an empty cell
            continue
        owner = inside.__self__ if type(inside) is MethodType else inside
        if id(owner) in copies and owner is not copies[id(owner)]:
            raise RewriteError(
                f"a module keeps the function {function.__qualname__}, which has a {type(owner).__name__} of the model "
                "in its closure, and would go on with that one. byname.interject(model, where, interjection) works on "
                "the model as it is"
            )


def _drop(held: dict[str, Any], registry: str, kinds: tuple[type, ...]) -> None:
    """Remove the hooks of some classes, and their flags."""
    hooks = held.get(registry) or {}
    for key in [key for key, hook in hooks.items() if issubclass(type(hook), kinds)]:
        for name in (registry, f"{registry}_with_kwargs", f"{registry}_always_called"):
            held.get(name, {}).pop(key, None)


HELD = "_byname"
"""The attribute of a rewritten model that holds its constants."""


class Held(nn.Module):
    """The constants of a graph: objects that it reads as attributes, user functions, interjections, the model itself.

    It is a module because ``torch.fx`` looks up call targets in modules. It is not registered as a child of the model,
    nor are its contents registered as its children.
    """

    def keep(self, thing: Any, name: str = "constant") -> str:
        """Keep an object and return the name of its attribute; an object kept before keeps its name.

        Args:
            thing: any object.
            name: the start of the attribute's name.
        """
        for key, held in self.__dict__.items():
            if held is thing and not key.startswith("_"):
                return key
        key, count = name, 0
        while key in self.__dict__ or hasattr(type(self), key):
            count += 1
            key = f"{name}_{count}"
        self.__dict__[key] = thing
        return key

    def things(self) -> dict[str, Any]:
        """Return the constants by name, without the model."""
        own = {*nn.Module().__dict__, "root"}
        return {key: thing for key, thing in self.__dict__.items() if key not in own}


def tensors_of(model: nn.Module) -> dict[int, str]:
    """Return the path of each tensor that the model's modules hold, by id: parameters, buffers, plain attributes."""
    found: dict[int, str] = {}
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        held = object.__getattribute__(module, "__dict__")
        for registry in (held["_parameters"], held["_buffers"], held):
            for name, value in registry.items():
                if isinstance(value, torch.Tensor):
                    found.setdefault(id(value), prefix + name)
    return found


Contents = dict[str, list[int]]


def contents_of(model: nn.Module) -> Contents:
    """Return the ids of the items in each list, dict and set that the modules hold as attributes, by path."""
    found: Contents = {}
    for path, module in model.named_modules():
        for name, value in module.__dict__.items():
            if name not in _REGISTRIES and type(value) in (list, dict, set):
                items = [*value, *value.values()] if isinstance(value, dict) else value
                found[f"{path}.{name}" if path else name] = [id(item) for item in items]
    return found


_REGISTRIES = frozenset(nn.Module().__dict__)


def check_contents(before: Contents, model: nn.Module) -> None:
    """Raise `Untraceable` if the forward changed a list, dict or set of a module: a graph would not repeat that."""
    now = contents_of(model)
    for path, items in before.items():
        if now.get(path) != items:
            raise Untraceable(f"changes what is in `{path}`, which would happen only once")
