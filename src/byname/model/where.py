"""Where: the places, modules and selectors that the argument ``where`` of a call means in a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from torch import nn

from byname.errors import BadArgumentError, NoMatchError, NotAModuleError
from byname.model.call_graph import Flow, ModelCall
from byname.model.module_tree import REGISTRY, called_in, is_script, modules_by_path, unseen_in_script, unwrap_module
from byname.model.resolve import never_called, resolve
from byname.model.selectors import Selector
from byname.model.spot import Resolution, Spot, deduplicate, output_of
from byname.model.states import states_of, with_paths
from byname.place import Place, as_place
from byname.reading.objects import parents_of


def unwrapped(model: Any) -> nn.Module:
    """Return the module inside wrappers for several processes or devices, or inside a compiled module."""
    if not isinstance(model, nn.Module):
        raise NotAModuleError(f"expected a model (an nn.Module), got {type(model).__name__}")
    inner, _ = unwrap_module(model)
    if is_script(inner):
        raise BadArgumentError(
            "TorchScript runs this model and ignores hooks: attach to the module that was scripted or traced"
        )
    return inner


def resolve_where(where: Any, model: nn.Module, *, reads: bool = False) -> tuple[Resolution, list[Selector]]:
    """Return the places that ``where`` means, and the selectors in it, which are resolved when the model runs."""
    resolution, selectors = Resolution([]), []
    for one in parts_of(where, model):
        if isinstance(one, Selector):
            if not one.only_states:
                selectors.append(one)
            if not one.about_states:
                continue
        found = states_of(one, model, reads=reads) if isinstance(one, Selector) else _resolve(one, model)
        found.spots = without_scripts(found.spots)
        resolution.requests.append((one, found.spots))
        resolution.spots += found.spots
        resolution.notes += found.notes
        operations = [spot for spot in found.spots if spot.kind == "operation"]
        if operations:
            resolution.operations[str(one)] = operations
    if len(resolution.requests) > 1 or any(spot.items or spot.kind != "module" for spot in resolution.spots):
        resolution.spots, firsts, notes = deduplicate(resolution.spots, reads=reads)
        rest = iter(firsts)
        resolution.requests = [(asked, list(islice(rest, len(spots)))) for asked, spots in resolution.requests]
        resolution.notes += notes
    return resolution, [*dict.fromkeys(selectors)]


def parts_of(where: Any, model: nn.Module) -> tuple[Any, ...]:
    """Return the parts of a ``where``: paths, selectors, classes of modules, and modules; parameters by their paths."""
    if isinstance(where, str | Selector):
        return (where,)
    where = with_paths(where, model)
    if isinstance(where, (*_PARTS, type)):
        where = (where,)
    several = isinstance(where, Sequence | set | frozenset)
    wrong = [repr(one)[:80] for one in where if not _is_part(one)] if several else [type(where).__name__]
    if wrong or not where:
        hint = "; only byname.record takes a mapping, from places to their options" * isinstance(where, Mapping)
        raise BadArgumentError(
            "where= takes a path such as 'layers.*.attn', a selector such as byname.select.relu, a class of modules, a "
            "module, a parameter, or a sequence of these, "
            f"not {wrong[0] if wrong else f'an empty {type(where).__name__}'}{hint}"
        )
    return tuple(where)


_PARTS = (str, Place, Selector, nn.Module)


def _is_part(one: Any) -> bool:
    return isinstance(one, _PARTS) or (isinstance(one, type) and nn.Module in parents_of(one))


def _resolve(where: Any, model: nn.Module) -> Resolution:
    if isinstance(where, str | Place):
        return resolve(as_place(where), model)
    alone, modules = isinstance(where, nn.Module), modules_by_path(model)
    if alone:
        where = unwrap_module(where)[0]
    found = [(path, one) for path, one in modules.items() if (one is where if alone else isinstance(one, where))]
    if not found:
        named = f"this {type(where).__name__}" if alone else where.__name__
        classes = sorted({type(module).__name__ for module in modules.values()})
        raise NoMatchError(f"{named} is not in this {type(model).__name__}, which has {', '.join(classes)}")
    called = called_in(dict(found))
    if not called:
        raise NoMatchError(never_called(*found[0]))
    return Resolution([output_of(path, module, alone) for path, module in called])


def modules_of(model: nn.Module, where: Any) -> dict[str, nn.Module]:
    """Return the modules that a ``where`` means, by path; the model does not run."""
    resolution, selectors = resolve_where(where, model)
    for spot in resolution.spots:
        if spot.kind != "module" or spot.items or spot.gradient:
            verbs = _FOR_STATES if spot.kind in REGISTRY else _FOR_VALUES
            raise BadArgumentError(f"`{spot.full}` is not a module; {verbs} the one there")
    found = {spot.path: spot.module for spot in resolution.spots}
    for selector in selectors:
        found.update(_selected(selector, model))
    return found


_FOR_STATES = "byname.interject and byname.patch put another value in the place of"
_FOR_VALUES = f"byname.rewrite, {_FOR_STATES}"


def _selected(selector: Selector, model: nn.Module) -> dict[str, nn.Module]:
    if selector.needs_example:
        raise BadArgumentError(
            f"{selector} depends on how the model runs, which is unknown here; give the paths of the modules"
        )
    calls = calls_of(modules_by_path(model))
    try:
        found = selector.matches(Flow(tuple(calls), {}, {}))
        return {calls[index].path or "forward": calls[index].module for index in found}
    except NoMatchError:
        raise NoMatchError(
            f"{selector} matches no module of this {type(model).__name__}; if it means functions, {_FOR_VALUES} theirs"
        ) from None


def calls_of(modules: dict[str, nn.Module]) -> list[ModelCall]:
    """Return a call of each module that can be called, with neither inputs nor outputs."""
    return [ModelCall(path, type(one).__name__, "module", one) for path, one in called_in(modules)]


def without_scripts(spots: list[Spot]) -> list[Spot]:
    """Return the places that can be observed, without those in scripted modules that wildcards matched."""
    if not any(map(is_script, {type(spot.module): spot.module for spot in spots}.values())):
        return spots
    lost = [spot for spot in spots if is_script(spot.module)]
    for spot in lost:
        if spot.exact or len(lost) == len(spots):
            raise BadArgumentError(unseen_in_script(spot.full, spot.module))
    return [spot for spot in spots if spot not in lost]
