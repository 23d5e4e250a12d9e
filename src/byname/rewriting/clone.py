"""Clone: a copy of a model that shares its tensors, the constants beside its modules, and what its containers hold."""

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

__all__ = ["HELD", "Contents", "Held", "check_contents", "contents_of", "mirror", "tensors_of"]

M = TypeVar("M", bound=nn.Module)

_CONTAINERS = (list, dict, set, tuple, OrderedDict)


def mirror(model: M, *, dropped: tuple[type, ...] = ()) -> M:
    """A model of new module objects that hold the very parameters and buffers of another.

    Training flags, attributes and hooks are those of the model, and from then on apart: setting them on one does not
    show on the other. Lists, dicts and sets held by modules are copied, with what they hold.

    Args:
        model: is only read.
        dropped: the classes of hooks that do not come along.
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
    """The value with each module in it replaced by its twin."""
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
    """Refuses a function kept by a module that would go on with the original: no twin can be put into a closure."""
    for cell in function.__closure__ or ():
        try:
            inside = cell.cell_contents
        except ValueError:  # the cell is empty
            continue
        owner = inside.__self__ if type(inside) is MethodType else inside
        if id(owner) in copies and owner is not copies[id(owner)]:
            raise RewriteError(
                f"a module keeps the function {function.__qualname__}, which has a {type(owner).__name__} of the model "
                "in its closure, and would go on with that one. byname.interject(model, where, interjection) works on "
                "the model as it is"
            )


def _drop(held: dict[str, Any], registry: str, kinds: tuple[type, ...]) -> None:
    """Leaves hooks of some classes out, and the flags that belong to them."""
    hooks = held.get(registry) or {}
    for key in [key for key, hook in hooks.items() if type(hook) in kinds]:
        for name in (registry, f"{registry}_with_kwargs", f"{registry}_always_called"):
            held.get(name, {}).pop(key, None)


HELD = "_byname"
"""The attribute of a rewritten model that holds all this."""


class Held(nn.Module):
    """Things that a graph reads as attributes: constants, functions of the user, interjections, the model itself.

    It is a module only because ``torch.fx`` looks for what it calls in modules; it is not registered in the model, and
    what it holds is not registered in it.
    """

    def keep(self, thing: Any, name: str = "constant") -> str:
        """Holds a thing and gives the name of the attribute.

        Args:
            thing: anything.
            name: what the attribute's name begins with.
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
        """All it holds, but the model."""
        own = {*nn.Module().__dict__, "root"}
        return {key: thing for key, thing in self.__dict__.items() if key not in own}


def tensors_of(model: nn.Module) -> dict[int, str]:
    """The path of each tensor that a module of the model holds: parameters, buffers, and plain attributes."""
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
    """What is in the lists, dicts and sets that the modules of a model hold as attributes."""
    found: Contents = {}
    for path, module in model.named_modules():
        for name, value in module.__dict__.items():
            if name not in _REGISTRIES and type(value) in (list, dict, set):
                items = [*value, *value.values()] if isinstance(value, dict) else value
                found[f"{path}.{name}" if path else name] = [id(item) for item in items]
    return found


_REGISTRIES = frozenset(nn.Module().__dict__)


def check_contents(before: Contents, model: nn.Module) -> None:
    """Refuses a forward that puts something into a list or dict of a module, which would happen only once."""
    now = contents_of(model)
    for path, items in before.items():
        if now.get(path) != items:
            raise Untraceable(f"changes what is in `{path}`, which would happen only once")
