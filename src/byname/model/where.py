"""The ``where`` of a call: the places and the selectors that it means in a model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from torch import nn

from byname.errors import BadArgumentError, NoMatchError, NotAModuleError
from byname.model.module_tree import inside_of, is_called, is_script, modules_by_path, unseen_in_script
from byname.model.resolve import never_called, resolve
from byname.model.selectors import Selector
from byname.model.spot import Meaning, Spot, each_once
from byname.place import Place, parse
from byname.reading.objects import parents_of


def unwrapped(model: Any) -> nn.Module:
    """The module inside of wrappers for several processes or devices, and of compiled ones."""
    if not isinstance(model, nn.Module):
        raise NotAModuleError(f"a model is an nn.Module; this is {type(model).__name__}")
    inner, _ = inside_of(model)
    if is_script(inner):
        raise BadArgumentError(
            "TorchScript runs this model, and knows no hooks: attach to the module that was scripted or traced"
        )
    return inner


def meaning_of(where: Any, model: nn.Module, *, reads: bool = False) -> tuple[Meaning, list[Selector]]:
    """The places that ``where`` means, and the selectors in it, which are told only by what the model calls.

    Args:
        where: as in `attach`.
        model: the module that paths start from.
        reads: as in `attach`.
    """
    meaning, selectors = Meaning([]), []
    for one in parts_of(where):
        if isinstance(one, Selector):
            selectors.append(one)
            continue
        found = _meaning(one, model)
        found.spots = without_scripts(found.spots)
        meaning.asked.append((one, found.spots))
        meaning.spots += found.spots
        meaning.notes += found.notes
        operations = [spot for spot in found.spots if spot.kind == "operation"]
        if operations:
            meaning.operations[str(one)] = operations
    meaning.spots, firsts, notes = each_once(meaning.spots, reads=reads)
    rest = iter(firsts)
    meaning.asked = [(asked, list(islice(rest, len(spots)))) for asked, spots in meaning.asked]
    meaning.notes += notes
    return meaning, [*dict.fromkeys(selectors)]


def parts_of(where: Any) -> tuple[Any, ...]:
    """The parts of a ``where``: paths, selectors, classes of modules, and modules.

    Raises:
        BadArgumentError: if it is empty, or has something else in it.
    """
    if isinstance(where, str | Place | Selector | nn.Module | type):
        where = (where,)
    several = isinstance(where, Sequence | set | frozenset)
    wrong = [repr(one)[:80] for one in where if not _is_part(one)] if several else [type(where).__name__]
    if wrong or not where:
        hint = "; byname.record alone takes a mapping, from places to their options" * isinstance(where, Mapping)
        hint += "; `list` makes a list of it" * isinstance(where, Iterator)
        raise BadArgumentError(
            "where= is a path such as 'layers.*.attn', a selector such as byname.select.relu, a class of modules, a "
            f"module, or a sequence of these, not {wrong[0] if wrong else f'an empty {type(where).__name__}'}{hint}"
        )
    return tuple(where)


def _is_part(one: Any) -> bool:
    return isinstance(one, str | Place | Selector | nn.Module) or (
        isinstance(one, type) and nn.Module in parents_of(one)
    )


def _meaning(where: Any, model: nn.Module) -> Meaning:
    if isinstance(where, str):
        return resolve(parse(where), model)
    if isinstance(where, Place):
        return resolve(where, model)
    alone, modules = isinstance(where, nn.Module), modules_by_path(model)
    if alone:
        where = inside_of(where)[0]
    found = [(path, one) for path, one in modules.items() if (one is where if alone else isinstance(one, where))]
    if not found:
        named = f"this {type(where).__name__}" if alone else where.__name__
        classes = sorted({type(module).__name__ for module in modules.values()})
        raise NoMatchError(f"{named} is not in this {type(model).__name__}, which has {', '.join(classes)}")
    uncalled = never_called(*found[0])
    found = [(path, module) for path, module in found if is_called(module)]
    if not found:
        raise NoMatchError(uncalled)
    return Meaning([Spot("module", path or "forward", module, alone=alone) for path, module in found])


def without_scripts(spots: list[Spot]) -> list[Spot]:
    """The places that can be got at, where some were asked for by wildcards.

    Raises:
        BadArgumentError: for a place in a scripted module that was asked for by its own path.
    """
    lost = [spot for spot in spots if is_script(spot.module) and spot.kind not in ("parameter", "buffer")]
    for spot in lost:
        if spot.alone or len(lost) == len(spots):
            raise BadArgumentError(unseen_in_script(spot.full, spot.module))
    return [spot for spot in spots if spot not in lost] if lost else spots
