"""Which calls of a graph does a ``where`` mean? Read as for `byname.interject`, and matched with what was traced."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any

from torch import nn

from byname.errors import NoMatchError, RewriteError
from byname.model.module_tree import modules_by_path
from byname.model.selectors import Selector
from byname.model.spot import Spot
from byname.model.where import meaning_of, parts_of
from byname.place import parse
from byname.rewriting.flowing import flow_of
from byname.rewriting.trace_records import Record, Trace
from byname.table import listed

__all__ = ["chosen", "classes_in"]


def classes_in(where: Any) -> tuple[type[nn.Module], ...]:
    """The classes of modules in a ``where``."""
    return tuple(one for one in parts_of(where) if isinstance(one, type))


def chosen(where: Any, model: nn.Module, traces: Sequence[Trace]) -> dict[str, str]:
    """The paths of the calls that are meant, each with the name under which the interjection is told of it.

    Args:
        where: as in `byname.rewrite`.
        model: the model that was traced, not a mirror of it.
        traces: of it, for the ways to call it that are known.

    Raises:
        NoMatchError: if a part of ``where`` matches none of the calls; the closest are named.
        RewriteError: if it means what is no call, such as a local variable.
    """
    modules = modules_by_path(model)
    paths = {id(module): path for path, module in modules.items()}
    records = [record for trace in traces for record in trace.records]
    found: dict[str, str] = {}
    for one in parts_of(where):
        meaning, selectors = meaning_of(one, model)
        matched: dict[str, str] = {}
        for spot in meaning.spots:
            _refuse_other_than_calls(spot)
            matched.update(_of_spot(spot, paths[id(spot.module)], records))
        for selector in selectors:
            matched.update(_of_selector(selector, traces, modules))
        if not matched:
            raise NoMatchError(_unmatched(one, meaning.spots, records, modules))
        found |= {path: name for path, name in matched.items() if path not in found}
    return found


def _refuse_other_than_calls(spot: Spot) -> None:
    what = "the gradient of a value" if spot.gradient else f"a {spot.kind}"
    if spot.gradient or spot.kind not in ("module", "operation") or spot.items:
        if spot.items and not spot.gradient:
            what = "an item of a value"
        raise RewriteError(
            f"`{spot.full}` is {what}; rewrite reaches what modules and functions return. "
            "byname.interject(model, where, interjection) reaches it"
        )


def _of_spot(spot: Spot, path: str, records: Sequence[Record]) -> dict[str, str]:
    if spot.kind == "module":
        return {path: spot.path} if any(one.kind == "module" and one.path == path for one in records) else {}
    pattern = parse(spot.path)
    return {one.path: one.path for one in records if one.kind == "operation" and pattern.matches(one.path)}


def _of_selector(selector: Selector, traces: Sequence[Trace], modules: dict[str, nn.Module]) -> dict[str, str]:
    found: dict[str, str] = {}
    for trace in traces:
        flow = flow_of(trace, modules)
        for index in selector.matches(flow):
            path = flow.calls[index].path
            found[path] = path or "forward"
    return found


def _unmatched(where: Any, spots: Sequence[Spot], records: Sequence[Record], modules: dict[str, nn.Module]) -> str:
    asked = f"`{where}`" if isinstance(where, str) else getattr(where, "__name__", repr(where))
    known = list(dict.fromkeys(record.path or "forward" for record in records))
    closed = next((modules[one.path] for one in records if not one.entered and _inside(where, one, modules)), None)
    if closed is not None:
        return (
            f"{asked} is inside of a {type(closed).__name__}, which a graph keeps as one call. "
            "byname.interject(model, where, interjection) reaches it"
        )
    if spots and spots[0].kind == "module":
        return f"{asked} is not called in the forward that was traced; example= traces another way to call the model"
    close = difflib.get_close_matches(str(where), known, n=3, cutoff=0.4)
    named = listed([f"`{one}`" for one in close or known], 5)
    return f"{asked} matches nothing in the graph; {'close to it:' if close else 'in it are'} {named}"


def _inside(where: Any, record: Record, modules: dict[str, nn.Module]) -> bool:
    return (
        isinstance(where, str)
        and record.kind == "module"
        and record.path in modules
        and bool(record.path)
        and where.startswith(f"{record.path}.")
    )
