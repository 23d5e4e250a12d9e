"""Match: the traced calls that a ``where=`` selects, and a trace as the call graph that selectors read."""

from __future__ import annotations

import difflib
import itertools
import operator
from collections.abc import Mapping, Sequence
from typing import Any

from torch import fx, nn

from byname.errors import NoMatchError, RewriteError
from byname.model.call_graph import Flow, ModelCall
from byname.model.module_tree import modules_by_path
from byname.model.selectors import Selector
from byname.model.spot import Spot
from byname.model.where import meaning_of, parts_of
from byname.place import parse
from byname.reading.functions import is_in_place
from byname.rewriting.trace_record import Record, Trace, passed
from byname.table import listed


def classes_in(where: Any) -> tuple[type[nn.Module], ...]:
    """Return the module classes in a ``where=``."""
    return tuple(one for one in parts_of(where) if isinstance(one, type))


def chosen(where: Any, model: nn.Module, traces: Sequence[Trace]) -> dict[str, str]:
    """Return the paths of the selected calls, each with the name that the interjection receives.

    Args:
        where: as in `byname.rewrite`.
        model: the model itself, not a clone.
        traces: the known traces of the model.

    Raises:
        NoMatchError: a part of `where` matches no call; the message names the closest.
        RewriteError: a part of `where` is not a call, such as a local variable.
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


def flow_of(trace: Trace, modules: Mapping[str, nn.Module]) -> Flow:
    """Return the call graph of a trace.

    Args:
        trace: a trace without interjections.
        modules: the modules of the model, by path.
    """
    numbers = _Numbers(trace)
    index = {id(record): number for number, record in enumerate(trace.records)}
    counts: dict[str, itertools.count[int]] = {}
    calls = []
    for record in trace.records:
        calls.append(
            ModelCall(
                path=record.path,
                operation=record.operation,
                kind=record.kind,
                module=modules.get(record.owner, record.module),
                parent=index[id(record.parent)] if record.parent is not None else None,
                call=next(counts.setdefault(record.path, itertools.count())),
                inputs=numbers.inputs[id(record)],
                outputs=numbers.outputs(record),
                function=record.function,
                elementary=not record.entered,
            )
        )
    return Flow(tuple(calls), {}, numbers.unseen)


class _Numbers:
    """Tensor ids: a number for each value and for each state of a value changed in place, in the order of the graph."""

    def __init__(self, trace: Trace) -> None:
        self.inputs: dict[int, tuple[int, ...]] = {}
        self.unseen: dict[int, tuple[int, ...]] = {}
        self._now: dict[fx.Node, int] = {}
        self._made: dict[fx.Node, int] = {}
        self._count = itertools.count()
        beginning: dict[fx.Node, list[Record]] = {}
        for record in trace.records:
            if record.first is not None:
                beginning.setdefault(record.first, []).append(record)
        calls = {record.outputs: record for record in trace.records if not record.entered}
        for node in trace.graph.nodes:
            for record in beginning.get(node, ()):
                self.inputs[id(record)] = self._of(record.inputs)
            self._give(node, calls.get(node))
        for record in trace.records:
            self.inputs.setdefault(id(record), ())

    def outputs(self, record: Record) -> tuple[int, ...]:
        found: list[int] = []
        fx.node.map_arg(_argument(record.outputs), lambda node: found.append(self._made[node]))
        return tuple(dict.fromkeys(found))

    def _of(self, values: Any) -> tuple[int, ...]:
        found: list[int] = []
        fx.node.map_arg(_argument(values), lambda node: found.append(self._now[node]))
        return tuple(dict.fromkeys(found))

    def _give(self, node: fx.Node, call: Record | None) -> None:
        first = node.args[0] if node.args else None
        if isinstance(first, fx.Node) and (node.target is passed or (call is None and node.target is operator.getitem)):
            self._now[node] = self._made[node] = self._now[first]
            return
        number = self._now[node] = self._made[node] = next(self._count)
        if call is None and node.all_input_nodes:
            self.unseen[number] = tuple(dict.fromkeys(self._now[one] for one in node.all_input_nodes))
        elif call is not None and isinstance(first, fx.Node) and changes(node, call):
            self._now[first] = number


def _argument(values: Any) -> Any:
    """Return values as an argument of a node, with None in place of values that are not nodes."""
    return fx.node.map_aggregate(values, lambda one: one if isinstance(one, fx.Node) else None)


def changes(node: fx.Node, call: Record) -> bool:
    """Return whether a call changes its first argument in place."""
    if call.kind == "module":
        return getattr(call.module, "inplace", False) is True
    return is_in_place(call.operation) or node.kwargs.get("inplace") is True
