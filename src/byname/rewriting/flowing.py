"""How do the calls of a trace look to a selector? As those of a run, with numbers for the values that go between."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Mapping
from typing import Any

from torch import fx, nn

from byname.model.call_graph import Call, Flow
from byname.rewriting.trace_records import Record, Trace, passed

__all__ = ["changes", "flow_of"]

_CHANGING = frozenset({"setitem", "iand", "ior", "ixor", "ilshift", "irshift"})


def flow_of(trace: Trace, modules: Mapping[str, nn.Module]) -> Flow:
    """The calls of a trace.

    Args:
        trace: before anything is inserted.
        modules: those of the model, by path.
    """
    numbers = _Numbers(trace)
    index = {id(record): number for number, record in enumerate(trace.records)}
    counts: dict[str, itertools.count[int]] = {}
    calls = []
    for record in trace.records:
        calls.append(
            Call(
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
    """A number for each state of each value, given in the order of the graph."""

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
    """Values as an argument of a node: what is no node does not matter here."""
    return fx.node.map_aggregate(values, lambda one: one if isinstance(one, fx.Node) else None)


def changes(node: fx.Node, call: Record) -> bool:
    """Whether a call changes its first argument in place."""
    if call.kind == "module":
        return getattr(call.module, "inplace", False) is True
    name = call.operation
    return name in _CHANGING or (name.endswith("_") and not name.endswith("__")) or node.kwargs.get("inplace") is True
