"""What can be recorded besides places? Whatever computes figures of places, as analysers do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeGuard

from torch import nn

__all__ = ["Analysed", "is_analyser", "named"]


class Figures(Protocol):
    """What was found at the places."""

    def by_path(self, name: str) -> Mapping[str, Any]:
        """The figures by paths such as ``fc1.<name>.mean``."""


class Analysed(Protocol):
    """Computes figures of what passes at places of a model.

    Attributes:
        enabled: whether it is to be given what passes.
    """

    enabled: bool

    @property
    def watching(self) -> bool:
        """Whether it is at places of some model."""

    def result(self) -> Figures:
        """The figures as they are now."""


def is_analyser(one: Any) -> TypeGuard[Analysed]:
    """Whether it computes figures; it is told by its class, so that no code of a model's runs."""
    kind = type(one)
    return not issubclass(kind, str | nn.Module | type) and hasattr(kind, "watching") and hasattr(kind, "result")


def named(where: Any) -> Any:
    """What is asked for with the names of analysers in their place, for messages: they print as their results."""
    if is_analyser(where):
        return type(where).__name__
    if isinstance(where, list | tuple | set | dict):
        return [named(one) for one in where]
    return where
