"""Spots: the resolved places of a path in a model, and the removal of duplicates among them."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, TypeAlias

from torch import nn

from byname.errors import BadArgumentError
from byname.model.called_functions import function_at
from byname.model.module_tree import REGISTRY
from byname.place import Segments, after_a_name

Kind: TypeAlias = Literal["module", "input", "parameter", "buffer", "computed", "variable", "operation"]


class Spot(NamedTuple):
    """One resolved place of a model.

    Attributes:
        kind: the kind of place; ``computed`` is a tensor in the place of a parameter, which the module holds or, if
            there is no name, returns.
        path: the path without items and without ``.grad``. The last name of an operation's path may have wildcards.
        module: the module that is called, or that owns the place.
        name: the name of the parameter, buffer, variable or operation; ``return`` for the return value of a method.
        method: the method that has the variable, or the function that the module calls; for an operation that function.
        items: the items or attributes of the value that are wanted; may have wildcards.
        gradient: whether the gradient of the value is wanted.
        exact: whether the path can match only this place.
        without: items of the value that are observed under other paths.
        nth: the assignment of the variable that is meant in each call, from 0, or -1 for the last; None for all.
    """

    kind: Kind
    path: str
    module: nn.Module
    name: str = ""
    method: str = ""
    items: Segments = ()
    gradient: bool = False
    exact: bool = True
    without: tuple[Segments, ...] = ()
    nth: int | None = None

    @property
    def full(self) -> str:
        """The path with items and ``.grad``."""
        return self.of_item(self.items) if self.items or self.gradient else self.path

    def of_item(self, items: Segments) -> str:
        """Return the path of an item of the value, or of the item's gradient."""
        return self.path + after_a_name(items) + (".grad" if self.gradient else "")


def output_of(path: str, module: nn.Module, exact: bool, items: Segments = ()) -> Spot:
    """Return the output of a module as a place; many are made at a time, and arguments by name take twice as long."""
    return Spot("module", path or "forward", module, "", "", items, False, exact)


@dataclass(slots=True)
class Resolution:
    """The places that a ``where=`` argument means.

    Attributes:
        spots: the places.
        notes: how an ambiguous path was read.
        operations: the places that are operations, by the path that was asked for.
        requests: each part of the argument, with its places.
    """

    spots: list[Spot]
    notes: list[str] = field(default_factory=list)
    operations: dict[str, list[Spot]] = field(default_factory=dict)
    requests: list[tuple[object, list[Spot]]] = field(default_factory=list)


def deduplicate(spots: Iterable[Spot], *, reads: bool = False) -> tuple[list[Spot], list[Spot], list[str]]:
    """Return each place once, the first spot of each spot's place, and notes on places that have several names.

    An item that an earlier path already covers is left out of later paths to the same value. If the values are only
    read, a module, a buffer and the gradient of a parameter may appear under each path that was asked for.
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
            if spot.exact and spot.full != first.full:
                notes.append(note_on_name(spot, first))
            continue
        if spot.items:
            others = items.setdefault(value, [])
            without = tuple(one.items for one in others)
            found[value, spot.items] = spot._replace(without=without)
            others.append(spot)
    return [*found.values()], firsts, notes


def note_on_name(spot: Spot, first: Spot) -> str:
    return f"`{spot.full}` is the same place as `{first.full}`, and is reported once, as `{first.full}`"


def _value_of(spot: Spot, reads: bool) -> tuple[Hashable, ...]:
    """Return a key of the value at a place, without its items."""
    if spot.kind == "variable":
        try:
            return id(function_at(spot.module, spot.method)), id(spot.module), spot.name, spot.nth
        except BadArgumentError:  # it has no Python code; the error is raised when the variable is subscribed to
            return spot.method, id(spot.module), spot.name, spot.nth
    if spot.kind == "operation":
        return spot.kind, id(spot.module), spot.path
    if reads and spot.kind == "module" and spot.exact:
        return spot.kind, id(spot.module), spot.path
    if not reads and (spot.kind == "buffer" or (spot.kind == "parameter" and spot.gradient)):
        return spot.kind, id(spot.module.__dict__[REGISTRY[spot.kind]].get(spot.name))
    return spot.kind, id(spot.module), spot.name
