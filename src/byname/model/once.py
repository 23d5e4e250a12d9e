"""Which places are one place? A place is told of once, however many names lead to it."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import replace

from byname.errors import BadArgumentError
from byname.model.methods import method_of
from byname.model.spot import Spot

__all__ = ["each_once"]


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
