"""What does a path mean in a model? One place, or the places of one owner, with all that is needed to get at it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from torch import nn

from byname.place import Segment, join

__all__ = ["Kind", "Meaning", "Spot"]

Kind: TypeAlias = Literal["module", "parameter", "buffer", "variable", "operation"]


@dataclass(frozen=True, slots=True)
class Spot:
    """A place of a model.

    Attributes:
        kind: what is there.
        path: its path without items and without ``.grad``. That of an operation may have wildcards in its last name.
        module: the module called, or the one that owns it.
        name: the name of the parameter, buffer, variable or operation; ``return`` stands for what a method returns.
        method: the method that has the variable.
        items: which items or attributes of the value are meant; may have wildcards.
        gradient: whether the gradient of the value is meant.
        alone: whether the path that was asked for can match only this place.
        without: items of the value that are told under other paths.
    """

    kind: Kind
    path: str
    module: nn.Module
    name: str = ""
    method: str = ""
    items: tuple[Segment, ...] = ()
    gradient: bool = False
    alone: bool = True
    without: tuple[tuple[Segment, ...], ...] = ()

    @property
    def full(self) -> str:
        """The path with items and ``.grad``."""
        return self.of_item(self.items)

    def of_item(self, items: tuple[Segment, ...]) -> str:
        """The path of an item of the value, or of its gradient."""
        return self.path + _joined(items) + (".grad" if self.gradient else "")

    def with_gradient(self) -> Spot:
        """The same place, of which the gradient is meant."""
        return replace(self, gradient=True)


def _joined(items: tuple[Segment, ...]) -> str:
    text = join(items)
    return f".{text}" if text and not text.startswith("[") else text


@dataclass(slots=True)
class Meaning:
    """What a path means.

    Attributes:
        spots: the places.
        notes: how it was read, where it could be read in several ways.
        operations: those of the places that are operations, by the path that was asked for.
        asked: what was asked for, each with its places.
    """

    spots: list[Spot]
    notes: list[str] = field(default_factory=list)
    operations: dict[str, list[Spot]] = field(default_factory=dict)
    asked: list[tuple[object, list[Spot]]] = field(default_factory=list)
