"""Graph: the nodes and edges behind a tensor as plain data, and the shortest path from it to another tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import torch

from byname.autograd.describe import Describer
from byname.autograd.leaves import Leaves, find_leaves, leaf_names, leaves_among
from byname.autograd.pause import backward_paused
from byname.autograd.saved import Saved, find_saved, rows_among, slots_now
from byname.autograd.walk import Walk
from byname.errors import NotATensorError
from byname.naming.name import Name
from byname.naming.names import Searches
from byname.naming.reference_path import Names
from byname.naming.search import Targets
from byname.reading.quiet import DisableTorchFunction, collection_paused
from byname.reading.tensor import fact, is_tensor
from byname.source.location import Located, Site
from byname.table import Alias, Column, Rows, Tabled, counted
from byname.text import quoted_for_dot


@dataclass(frozen=True, slots=True)
class GraphNode(Located, Tabled):
    """One node of a graph.

    Attributes:
        number: its number, from 1 in the order of distance from the root.
        name: PyTorch's name, such as ``AddmmBackward0``.
        tensor: the program's name of its result (for an ``AccumulateGrad``, of the leaf); empty without a name.
        distance: the fewest steps from a root.
        site: the location of the call that made it; None when unknown.
        hides: a text that says which part of the graph it hides; empty when it hides nothing.
        goes_to: the numbers of the nodes that receive its gradients.

    Each column of the table is an attribute, ``made at`` as ``made_at``.
    """

    number: int
    name: str
    tensor: str
    distance: int
    site: Site | None
    hides: str = ""
    goes_to: tuple[int, ...] = ()

    node = Alias[int]("number")

    columns = (
        Column("node"),
        Column("name"),
        Column("tensor"),
        Column("distance", drop_order=4),
        Column("goes_to", read=lambda node: node.goes_to or None),
        Column("made_at", drop_order=5),
        Column("caller", drop_order=3),
        Column("statement", drop_order=2),
        Column("hides", drop_order=1),
    )


@dataclass(frozen=True, slots=True)
class Edge:
    """An edge: the gradient flows from node `source` to node `target`, for input `index` (from 0) of the source."""

    source: int
    target: int
    index: int


class Graph(Rows[GraphNode]):
    """A graph at one moment: its nodes and edges, leaves and saved tensors. It keeps neither tensors nor nodes alive.

    A graph can have a million nodes, so the objects for nodes and edges are created on access.

    Attributes:
        leaves: the result of `byname.leaves`.
        saved: the result of `byname.saved`.
    """

    _row = GraphNode

    def __init__(self, fields: list[_Fields], goes_to: list[list[int]], leaves: Leaves, saved: Saved) -> None:
        self._fields = fields
        self._goes_to = goes_to
        self.leaves = leaves
        self.saved = saved

    def __len__(self) -> int:
        return len(self._fields)

    @cached_property
    def nodes(self) -> tuple[GraphNode, ...]:
        """The nodes, nearest to the root first."""
        rows = zip(self._fields, self._goes_to[1:], strict=True)
        return tuple(
            [
                GraphNode(number, name, str(tensor or ""), distance, site, hides, tuple(filter(None, row)))
                for (number, name, tensor, distance, site, hides), row in rows
            ]
        )

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """The edges, in the order of their source nodes."""
        rows = enumerate(self._goes_to)
        return tuple([Edge(source, target, at) for source, row in rows for at, target in enumerate(row) if target])

    @property
    def opaque(self) -> tuple[GraphNode, ...]:
        """The nodes that hide others, as `GraphNode.hides` describes."""
        return tuple(node for node in self.nodes if node.hides)

    @property
    def items(self) -> Sequence[GraphNode]:  # type: ignore[override]
        """The nodes."""
        return self.nodes

    def to_dot(self) -> str:
        """Return the graph in the DOT language of Graphviz, with the names of leaves and the source lines of nodes."""
        leaf_names = {leaf.number: f"{leaf.name}\n{leaf.card}" for leaf in self.leaves}
        lines = ["digraph byname {", "  rankdir=BT;", '  node [shape=box, fontname="sans-serif"];']
        for node in self.nodes:
            place = f"\n{node.site}" if node.site else ""
            result = f"{node.tensor}\n" if node.tensor else ""
            words = leaf_names.get(node.number) or f"{result}{node.name}{place}"
            style = ", style=filled, fillcolor=lightyellow" if node.number in leaf_names else ""
            lines.append(f"  n{node.number} [label={quoted_for_dot(words)}{style}];")
        lines += [f"  n{edge.target} -> n{edge.source};" for edge in self.edges]
        return "\n".join([*lines, "}"])

    def _title(self) -> str:
        leaves = counted(len(self.leaves), "leaf", "leaves")
        edges = sum(len(row) - row.count(0) for row in self._goes_to)
        return f"{counted(len(self), 'node')}, {counted(edges, 'edge')}, {leaves}"

    def _notes(self) -> Sequence[str]:
        return self.leaves.opaque


@dataclass(frozen=True, slots=True)
class Step(Located, Tabled):
    """One node on the path from a root to a tensor. Each column of the table is an attribute.

    Attributes:
        node: PyTorch's name of the node.
        index: the input of the node through which the path continues; None at the end of the path.
        site: the location of the call that made the node; None when unknown.
    """

    node: str
    index: int | None
    site: Site | None = None

    columns = (
        Column("node"),
        Column("index"),
        Column("made_at", drop_order=3),
        Column("caller", drop_order=2),
        Column("statement", drop_order=1),
    )


@dataclass(frozen=True, slots=True, repr=False)
class GraphPath(Rows[Step]):
    """The path from a root to a tensor, node by node. Prints as a table; ``rows()`` has the values."""

    items: tuple[Step, ...]
    _row = Step

    def _title(self) -> str:
        return f"{counted(len(self.items), 'node')} from {self.items[0].node} to {self.items[-1].node}"


def graph(root: Any) -> Graph:
    """Return the autograd graph behind a tensor: nodes, edges, leaves, saved tensors.

    Args:
        root: a tensor, a ``grad_fn``, or a sequence of these.

    Returns:
        `Graph`, a sequence of `GraphNode`, nearest to the root first.

    Raises:
        NotATensorError: `root` is neither tensor nor node.
        NoGraphError: `root` belongs to no graph.

    >>> import byname, torch
    >>> x = torch.ones(3, requires_grad=True)
    >>> seen = byname.graph((x * x).sum())
    >>> [node.name for node in seen.nodes]
    ['SumBackward0', 'MulBackward0', 'AccumulateGrad']
    >>> [(edge.source, edge.target, edge.index) for edge in seen.edges]
    [(1, 2, 0), (2, 3, 0), (2, 3, 1)]
    """
    with collection_paused():  # until all that the search held is freed, so that the collector has none of it to visit
        return _graph_of(Walk(root), Searches())


def _graph_of(walk: Walk, searches: Searches) -> Graph:
    with backward_paused(), DisableTorchFunction():
        index = find_leaves(walk, searches)
        slots = slots_now(walk)  # after `find_leaves`, which counts the references to leaves: slots hold some
        named = leaf_names(walk, index)
        leaves = leaves_among(walk, index, named)
        describer = Describer(walk, searches.find(Targets(), deep=False))
        living = ((number, describer.living_result(number)) for number in describer.living)
        tensors: dict[int, Name | Names] = {number: name for number, name in living if name is not None}
        tensors |= {number: names for number, names in named.items() if not names.is_unnamed}
        saved = rows_among(walk, slots, find_saved(slots or (), searches))
        return Graph(_fields_of(walk, tensors), walk.rows, leaves, saved)


_Fields: TypeAlias = tuple[int, str, Name | Names | None, int, Site | None, str]
"""The first fields of a `GraphNode`, before `goes_to`, with the name not yet as text."""


def _fields_of(walk: Walk, tensors: Mapping[int, Name | Names]) -> list[_Fields]:
    hidden = dict(walk.opaque())
    site: Callable[[int], Site | None] = walk.site if walk.lookup else lambda number: None
    name, distances = walk.name, walk.distances()
    return [
        (number, name(number), tensors.get(number), distances[number], site(number), hidden.get(number, ""))
        for number in range(1, len(walk.nodes))
    ]


def path(root: Any, tensor: torch.Tensor) -> GraphPath | None:
    """Return the shortest path of a gradient from a root back to a tensor.

    Args:
        root: a tensor, a ``grad_fn``, or a sequence of these.
        tensor: a leaf, or any tensor computed on the way.

    Returns:
        `GraphPath`, a sequence of the nodes passed, from the root's to the tensor's own; None when no gradient of the
        root reaches the tensor.

    Raises:
        NotATensorError: `root` is neither tensor nor node, or `tensor` is no tensor.
        NoGraphError: `root` belongs to no graph.

    >>> import byname, torch
    >>> x = torch.ones(3, requires_grad=True)
    >>> loss = (x * 2).sum()
    >>> [(step.node, step.index) for step in byname.path(loss, x)]
    [('SumBackward0', 0), ('MulBackward0', 0), ('AccumulateGrad', None)]
    """
    if not is_tensor(tensor):
        raise NotATensorError(f"path() expects a tensor to lead to, but got {type(tensor).__name__}")
    walk = Walk(root)
    with DisableTorchFunction():
        node = fact(tensor, "grad_fn")
        if node is not None:
            number = walk.numbers.get(node)
        else:
            number = next((number for number in walk.leaf_numbers if walk.nodes[number].variable is tensor), None)
    return None if number is None else GraphPath(_way_down(walk, number))


def _way_down(walk: Walk, number: int) -> tuple[Step, ...]:
    """Return the steps from the root to a node, found from the node up by users that are one step nearer the root."""
    users: dict[int, tuple[int, int]] = {}
    distances = walk.distances()
    for user, row in enumerate(walk.rows):
        for index, below in enumerate(row):
            if below and distances[below] == distances[user] + 1:
                users.setdefault(below, (user, index))
    steps = [Step(walk.name(number), None, walk.site(number))]
    while distances[number]:
        number, index = users[number]
        steps.append(Step(walk.name(number), index, walk.site(number)))
    return tuple(reversed(steps))
