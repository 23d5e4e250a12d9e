"""Which models is watching tested on, and what do their places hold?

Each model comes with the same forward written once more by hand, in plain PyTorch, that notes at every step what the
places of the model must hold there. A change at a place is written into that forward, so that its effect is known too.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map_only

_FILES = "nanogpt unet control containers stock resnet python_ways contexts sharing".split()


class Note:
    """What a forward by hand tells: ``note(value, *paths)`` says that these places hold the value.

    At the place `where` the value is changed, or its gradient.
    """

    def __init__(self, where: str | None = None, change: Callable[[Any], Any] = lambda value: value):
        self.places: dict[str, list[Any]] = {}
        self.gradients: dict[str, list[Any]] = {}
        self._where, self._change = where, change

    def __call__(self, value: Any, *paths: str) -> Any:
        for path in paths:
            self.places.setdefault(path, []).append(copied(value))
            if path == self._where:
                value = self._change(value)
            if isinstance(value, torch.Tensor) and value.requires_grad:
                self._watch_gradient(path, value)
        return value

    def _watch_gradient(self, path: str, value: torch.Tensor) -> None:
        received = self.gradients.setdefault(path, [])
        value.register_hook(lambda gradient: received.append(gradient.detach().clone()))
        if f"{path}.grad" == self._where:
            value.register_hook(self._change)


def copied(value: Any) -> Any:
    """As it is now: what happens in place later does not show."""
    return tree_map_only(torch.Tensor, lambda tensor: tensor.detach().clone(), value)


@dataclass(frozen=True)
class Specimen:
    """A model with known truth.

    ``by_hand(model, note, *args, **kwargs)`` is its forward written once more; ``edits`` are places with a change.
    """

    name: str
    make: Callable[[], nn.Module]
    example: Callable[[], tuple[Any, ...]]
    by_hand: Callable[..., Any]
    edits: tuple[tuple[str, Callable[[Any], Any]], ...]
    keywords: Callable[[], dict[str, Any]] = dict
    fast_path: bool = False  # without gradients, PyTorch takes a kernel of its own, of other rounding

    def model(self) -> nn.Module:
        """A new one, always of the same numbers."""
        torch.default_generator.manual_seed(0)
        return shaken(self.make())

    def inputs(self) -> tuple[tuple[Any, ...], dict[str, Any]]:
        torch.default_generator.manual_seed(1)
        return self.example(), self.keywords()


def shaken(model: nn.Module, seed: int = 2) -> nn.Module:
    """The model with every number moved: where a head starts as zeros, all outputs would be equal."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
        for module in model.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.running_mean.copy_(torch.randn(module.running_mean.shape, generator=generator))
                module.running_var.copy_(torch.rand(module.running_var.shape, generator=generator) + 0.5)
    return model


def specimens() -> Iterator[Specimen]:
    """All of them."""
    for file in _FILES:
        yield from import_module(f"models.{file}").SPECIMENS
