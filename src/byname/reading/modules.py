"""Modules: the models and optimizers given to a function, and the modules, parameters and buffers of a model.

They are read from the registries (``_modules``, ``_parameters``, ``_buffers``), past all overrides of a class.
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
    """Return the modules given as ``model=``: none, one, or a list or tuple of them."""
    given = [] if model is None else list(model) if type(model) in (list, tuple) else [model]
    for one in given:
        if not issubclass(type(one), nn.Module):
            hint = "; did you mean to call it, Model()?" if isinstance(one, type) else ""
            raise NotAModuleError(f"model= expects an nn.Module or a list of them, but got {_said(one)}{hint}")
    return given


def optimizers_of(optimizer: Any) -> list[Any]:
    """Return the optimizers given as ``optimizer=``: none, one, or a list or tuple of them."""
    given = [] if optimizer is None else list(optimizer) if type(optimizer) in (list, tuple) else [optimizer]
    for one in given:
        if isinstance(one, type) or not isinstance(getattr(one, "param_groups", None), list):
            raise NotAnOptimizerError(
                f"optimizer= expects a torch.optim.Optimizer (or an object with param_groups), or a list of them, "
                f"but got {_said(one)}"
            )
    return given


def parameters_of(optimizer: Any) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _said(thing: Any) -> str:
    return f"the class {thing.__name__}" if isinstance(thing, type) else type(thing).__name__


def modules_in(model: nn.Module) -> list[nn.Module]:
    """Return a module and all its submodules, each once, in the order of their registration."""
    return [module for module, _ in _with_prefixes(model)]


def parameters_in(model: nn.Module) -> list[torch.Tensor]:
    """Return the parameters of a module and all its submodules, each once."""
    return list({id(one): one for module in modules_in(model) for one in own_parameters(module)}.values())


def own_parameters(module: nn.Module) -> list[torch.Tensor]:
    """Return the parameters registered on a module itself, without those of its submodules."""
    return [one for one in registered(module, "_parameters") if is_tensor(one)]


def state_of(module: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield each parameter and buffer of a module and all its submodules, after its key in ``state_dict()``."""
    for owner, prefix in _with_prefixes(module):
        for name, value in [*_entries(owner, "_parameters"), *_entries(owner, "_buffers")]:
            if is_tensor(value):
                yield f"{prefix}{name}", value


def registered(module: nn.Module, registry: str) -> list[Any]:
    """Return the values of one of a module's own registries: ``_parameters``, ``_buffers`` or ``_modules``."""
    return [value for _, value in _entries(module, registry)]


def _with_prefixes(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield a module and all its submodules, each once, with the prefix of its ``state_dict()``."""
    waiting, seen = [(model, "")], {id(model)}
    while waiting:
        module, prefix = waiting.pop()
        yield module, prefix
        fresh = []
        for name, child in _entries(module, "_modules"):
            if id(child) not in seen and issubclass(type(child), nn.Module):
                seen.add(id(child))
                fresh.append((child, f"{prefix}{name}."))
        waiting += reversed(fresh)


def _entries(module: nn.Module, registry: str) -> list[tuple[str, Any]]:
    held = object.__getattribute__(module, "__dict__").get(registry)
    return snapshot(held) if issubclass(type(held), dict) and held else []


def plain_containers(module: nn.Module) -> Iterator[tuple[str, str, list[Any], str]]:
    """Yield the lists, tuples and dicts of a module whose modules and parameters PyTorch does not register.

    For each, yield the name of the attribute, its kind, the modules or parameters in it, and the class to use instead.
    """
    for name, value in list(attributes_of(module).items()):
        if name.startswith("_") or type(value) not in (list, tuple, dict):
            continue
        inside = list(value.values() if type(value) is dict else value)
        modules = [one for one in inside if issubclass(type(one), nn.Module)]
        parameters = [one for one in inside if issubclass(type(one), nn.Parameter)]
        if modules or parameters:
            instead = f"torch.nn.{'Module' if modules else 'Parameter'}{'Dict' if type(value) is dict else 'List'}"
            yield name, type(value).__name__, modules or parameters, instead


def parameters_held(held: Iterable[Any]) -> Iterator[torch.Tensor]:
    """Yield the parameters of some modules, and those given directly."""
    for one in held:
        yield from parameters_in(one) if issubclass(type(one), nn.Module) else (one,)
