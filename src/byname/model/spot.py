"""Spots: the places that a path means in a model, with all that is needed to get at them, each once."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from torch import nn

from byname.errors import BadArgumentError
from byname.model.methods import method_of
from byname.place import Segment, join

__all__ = ["Kind", "Meaning", "Spot", "each_once"]

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


def each_once(spots: Iterable[Spot], *, reads: bool = False) -> tuple[list[Spot], list[Spot], list[str]]:
    """Each place once, under the first of its names; of each that was given the first; and notes on the other names.

    Of items of one value, those that an earlier path means are left out of the later ones.

    Args:
        spots: places.
        reads: whether nothing is changed. A module, the one gradient of a parameter and a buffer may then be told under
            each name that was asked for.
    """
    found: dict[Hashable, Spot] = {}
    items: dict[Hashable, list[Spot]] = {}
    firsts: list[Spot] = []
    notes: list[str] = []
    for spot in spots:
        value = (spot.gradient, *_value_of(spot, reads))
        first = found.setdefault((value, spot.items), spot)
        firsts.append(first)
        if first is not spot:
            if spot.alone and spot.full != first.full:
                notes.append(f"`{spot.full}` is the same place as `{first.full}`, and is told once, as `{first.full}`")
            continue
        if spot.items:
            others = items.setdefault(value, [])
            without = tuple(one.items for one in others)
            found[value, spot.items] = replace(spot, without=without)
            others.append(spot)
    return [*found.values()], firsts, notes


def _value_of(spot: Spot, reads: bool) -> tuple[Hashable, ...]:
    """What is told of at a place, apart from items of it."""
    if spot.kind == "variable":
        try:
            return id(method_of(spot.module, spot.method)), id(spot.module), spot.name
        except BadArgumentError:  # it has no Python code, and that is said when it is to be listened to
            return spot.method, id(spot.module), spot.name
    if spot.kind == "operation":
        return spot.kind, id(spot.module), spot.path
    if reads and spot.kind == "module" and spot.alone:
        return spot.kind, id(spot.module), spot.path
    if not reads and (spot.kind == "buffer" or (spot.kind == "parameter" and spot.gradient)):
        registry = "_buffers" if spot.kind == "buffer" else "_parameters"
        return spot.kind, id(spot.module.__dict__[registry].get(spot.name))
    return spot.kind, id(spot.module), spot.name
