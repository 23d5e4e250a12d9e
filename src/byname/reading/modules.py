"""Modules: the models and optimizers given to a function, and the modules, parameters and buffers of a model.

They are read from the registries (``_modules``, ``_parameters``, ``_buffers``), whatever the model's class overrides.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn

from byname.errors import NotAModuleError, NotAnOptimizerError
from byname.reading.objects import attributes_of, snapshot
from byname.reading.tensor import is_tensor


def models_of(model: Any) -> list[nn.Module]:
    """Return the modules given as ``model=``: none, one, or a list or tuple of them.

    Raises:
        NotAModuleError: one of them is not an ``nn.Module``.
    """
    given = [] if model is None else list(model) if type(model) in (list, tuple) else [model]
    for one in given:
        if not issubclass(type(one), nn.Module):
            hint = "; did you mean to call it, Model()?" if isinstance(one, type) else ""
            raise NotAModuleError(f"model= expects an nn.Module or a list of them, but got {_said(one)}{hint}")
    return given


def optimizers_of(optimizer: Any) -> list[Any]:
    """Return the optimizers given as ``optimizer=``: none, one, or a list or tuple of them.

    Raises:
        NotAnOptimizerError: one of them has no list of ``param_groups``.
    """
    given = [] if optimizer is None else list(optimizer) if type(optimizer) in (list, tuple) else [optimizer]
    for one in given:
        if isinstance(one, type) or not isinstance(getattr(one, "param_groups", None), list):
            raise NotAnOptimizerError(
                f"optimizer= expects a torch.optim.Optimizer (or an object with param_groups), or a list of them, "
                f"but got {_said(one)}"
            )
    return given


def parameters_of(optimizer: Any) -> list[torch.Tensor]:
    """Return the parameters of all groups of an optimizer."""
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _said(thing: Any) -> str:
    return f"the class {thing.__name__}" if isinstance(thing, type) else type(thing).__name__


def modules_in(model: nn.Module) -> list[nn.Module]:
    """Return a module and all its submodules, each once, in the order of their registration."""
    return [module for module, _ in _with_attributes(model)]


def parameters_in(model: nn.Module) -> list[torch.Tensor]:
    """Return the parameters of a module and all its submodules, each once."""
    found: dict[int, torch.Tensor] = {}
    for _, attributes in _with_attributes(model):
        for one in _registered(attributes, "_parameters"):
            if is_tensor(one):
                found.setdefault(id(one), one)
    return list(found.values())


def own_parameters(module: nn.Module) -> list[torch.Tensor]:
    """Return the parameters registered on a module itself, without those of its submodules."""
    return [one for one in registered(module, "_parameters") if is_tensor(one)]


def state_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each parameter and buffer of a module and all its submodules, after its key in ``state_dict()``."""
    waiting = [(module, "")]
    seen: set[int] = set()
    while waiting:
        one, prefix = waiting.pop()
        attributes: dict[str, Any] = _attributes(one, "__dict__")
        for registry in ("_parameters", "_buffers"):
            held = attributes.get(registry)
            for name, value in snapshot(held) if issubclass(type(held), dict) else ():
                if is_tensor(value):
                    yield f"{prefix}{name}", value
        inside = attributes.get("_modules")
        for name, child in snapshot(inside) if issubclass(type(inside), dict) else ():
            if issubclass(type(child), nn.Module) and id(child) not in seen:
                seen.add(id(child))
                waiting.append((child, f"{prefix}{name}."))


def registered(module: nn.Module, registry: str) -> list[Any]:
    """Return the values of one of a module's own registries: ``_parameters``, ``_buffers`` or ``_modules``."""
    return _registered(_attributes(module, "__dict__"), registry)


def _with_attributes(model: nn.Module) -> Iterator[tuple[nn.Module, dict[str, Any]]]:
    waiting, seen = [model], {id(model)}
    while waiting:
        module = waiting.pop()
        attributes: dict[str, Any] = _attributes(module, "__dict__")
        yield module, attributes
        fresh = []
        for child in _registered(attributes, "_modules"):
            if id(child) not in seen and issubclass(type(child), nn.Module):
                seen.add(id(child))
                fresh.append(child)
        waiting += reversed(fresh)


def _registered(attributes: dict[str, Any], registry: str) -> list[Any]:
    """Return the values of a registry, which other threads may be changing."""
    held = attributes.get(registry)
    return [value for _, value in snapshot(held)] if issubclass(type(held), dict) and held else []


_attributes = object.__getattribute__


def plain_containers(module: nn.Module) -> Iterator[tuple[str, str, list[Any], str]]:
    """Yield the lists, tuples and dicts of a module in which PyTorch does not look for modules and parameters.

    Returns:
        For each the name of the attribute, its kind, the modules or parameters in it, and the class to use instead.
    """
    for name, value in list(attributes_of(module).items()):
        if name.startswith("_") or type(value) not in (list, tuple, dict):
            continue
        inside = list(value.values() if type(value) is dict else value)
        modules = [one for one in inside if issubclass(type(one), nn.Module)]
        parameters = [one for one in inside if issubclass(type(one), nn.Parameter)]
        if modules or parameters:
            family = "Module" if modules else "Parameter"
            yield (
                name,
                type(value).__name__,
                modules or parameters,
                f"torch.nn.{family}{'Dict' if type(value) is dict else 'List'}",
            )


def parameters_held(held: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the parameters among some modules and parameters, and those of the modules."""
    for one in held:
        if issubclass(type(one), nn.Module):
            yield from parameters_in(one)
        else:
            yield one
