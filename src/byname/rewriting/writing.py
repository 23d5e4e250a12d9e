"""How is a graph copied or pickled? As a list of its nodes, with numbers for what they refer to."""

from __future__ import annotations

import importlib
import sys
from dataclasses import dataclass
from typing import Any

from torch import fx

__all__ = ["read", "written"]


@dataclass(frozen=True, slots=True)
class _Reference:
    """Another node of the same graph, by its number."""

    number: int


@dataclass(frozen=True, slots=True)
class _Function:
    """A function of a module, for those that do not know their own name, such as ``max_pool2d`` of PyTorch 2.13."""

    module: str
    name: str

    @classmethod
    def of(cls, target: Any) -> Any:
        """The function by its name, or itself where that does not lead to it."""
        module, name = getattr(target, "__module__", None), getattr(target, "__name__", None)
        if isinstance(module, str) and isinstance(name, str) and getattr(sys.modules.get(module), name, None) is target:
            return cls(module, name)
        return target

    def itself(self) -> Any:
        """The function."""
        return getattr(importlib.import_module(self.module), self.name)


Line = tuple[str, str, Any, Any, Any]


def written(graph: fx.Graph) -> list[Line]:
    """A graph as plain data: for each node its kind, name, target and arguments."""
    numbers = {node: number for number, node in enumerate(graph.nodes)}

    def refer(value: Any) -> Any:
        return _Reference(numbers[value]) if isinstance(value, fx.Node) else value

    def line(node: fx.Node) -> Line:
        given = (_plain(fx.node.map_aggregate(one, refer)) for one in (node.args, node.kwargs))
        return (node.op, node.name, _Function.of(node.target), *given)

    return [line(node) for node in graph.nodes]


def read(lines: list[Line]) -> fx.Graph:
    """The graph again."""
    graph = fx.Graph()
    nodes: list[fx.Node] = []

    def referred(value: Any) -> Any:
        return nodes[value.number] if isinstance(value, _Reference) else value

    for op, name, target, args, kwargs in lines:
        function = target.itself() if isinstance(target, _Function) else target
        given = fx.node.map_aggregate(args, referred), fx.node.map_aggregate(kwargs, referred)
        nodes.append(graph.create_node(op, function, *given, name=name))
    return graph


def _plain(value: Any) -> Any:
    """Without the containers of ``torch.fx``, which deny that they can be copied."""
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(_plain(one) for one in value)
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    return value
