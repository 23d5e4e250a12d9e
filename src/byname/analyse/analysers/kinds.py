"""Is a place of a model the output of a module, a parameter, or a gradient?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from byname.model.module_tree import modules_by_path
from byname.model.spot import Spot

__all__ = ["Kind", "Kinds"]


class Kind(NamedTuple):
    """What is at a place.

    Attributes:
        output: whether what a module returns passes there, or an item or the gradient of that.
        parameter: whether it is a parameter, or the gradient of one.
        gradient: whether the path asks for the gradient, so that the value told is one.
    """

    output: bool
    parameter: bool
    gradient: bool


class Kinds:
    """Tells the kinds of the places of one model by their paths.

    Args:
        model: the module that the paths start from.
        spots: what was asked for.
    """

    def __init__(self, model: nn.Module, spots: Sequence[Spot]) -> None:
        self._model = model
        self._spots = [(spot.kind, spot.path) for spot in spots if spot.gradient]
        self._modules: dict[str, nn.Module] = {}
        self._known: dict[str, Kind] = {}

    def of(self, path: str, module: nn.Module) -> Kind:
        """The kind of a place.

        Args:
            path: without wildcards.
            module: the one that is called, or owns the value.
        """
        known = self._known.get(path)
        if known is None:
            known = self._known[path] = self._found(path, module)
        return known

    def _found(self, path: str, module: nn.Module) -> Kind:
        gradient = path.endswith(".grad") and any(
            kind == "operation" or path.startswith(start) for kind, start in self._spots
        )  # a variable may be called so, too
        plain = path.removesuffix(".grad") if gradient else path
        modules = self._modules = self._modules or modules_by_path(self._model)
        owner, _, name = plain.rpartition(".")
        output = modules.get(_without_items(plain)) is module
        parameter = modules.get(owner) is module and name in module.__dict__.get("_parameters", ())
        return Kind(output, parameter, gradient)


def _without_items(path: str) -> str:
    """The path of a module, of the output of which it may be an item; empty for the model itself."""
    path = path.partition("[")[0]
    return "" if path == "forward" else path.removesuffix(".forward")
