"""Which modules and parameters are in a model? Read from its registries, past whatever its class has overridden."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import nn

from byname.card import is_tensor
from byname.naming.reading import attributes_of, snapshot

__all__ = ["modules_in", "own_parameters", "parameters_in"]


def modules_in(model: nn.Module) -> Iterator[nn.Module]:
    """A module and all inside it, each once, in the order in which they were registered."""
    waiting, seen = [model], {id(model)}
    while waiting:
        module = waiting.pop()
        yield module
        children = [child for _, child in snapshot(attributes_of(module).get("_modules", {}))]
        fresh = [child for child in children if issubclass(type(child), nn.Module) and id(child) not in seen]
        seen.update(map(id, fresh))
        waiting += reversed(fresh)


def parameters_in(model: nn.Module) -> list[torch.Tensor]:
    """The parameters of a module and of all inside it, each once."""
    every = (one for module in modules_in(model) for one in own_parameters(module))
    return list({id(one): one for one in every}.values())


def own_parameters(module: nn.Module) -> list[torch.Tensor]:
    """The parameters that a module has itself."""
    return [one for _, one in snapshot(attributes_of(module).get("_parameters", {})) if is_tensor(one)]
