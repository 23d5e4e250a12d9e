"""Boundary edges: the nodes at which a backward enters a call, and the edges by which it leaves it to the inputs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

from torch import Tensor
from torch.autograd.graph import get_gradient_edge

from byname.watch.value_gradients import Reshaped, ViewGeometry, hidden_base_target

Edge: TypeAlias = tuple[Any, int]
"""A node and the number of one of its outputs, as in ``next_functions``."""


class CallInputs(NamedTuple):
    """The inputs of a call, and the edges by which gradients flow back to them; the argument of `follow`.

    Attributes:
        edges: for the edge of each input with a ``grad_fn``, the number of the input; the first number for a tensor
            that is given twice.
        leaves: for the ``id`` of each input that is a leaf and requires grad, the number of the input.
        geometries: for the edge of the base of each input that is a view, the number of the input and its geometry;
            None if two inputs are views of the same base, or the geometry cannot be used.
        tensors: the inputs, kept alive until the call has ended so that their identities hold.
        since: the call makes the nodes with this sequence number or a higher one.
    """

    edges: dict[Edge, int]
    leaves: dict[int, int]
    geometries: dict[Edge, tuple[int, ViewGeometry | Reshaped] | None]
    tensors: tuple[Tensor, ...]
    since: int


class BoundaryNode:
    """A boundary node of a call: it gets the gradient of an output, or passes on the gradient of an input.

    Attributes:
        node: the node; for a leaf, the one that accumulates its gradient.
        outputs: for each output whose gradient the node gets: the index of the gradient, the number of the output, and
            the view geometry if the gradient is that of a base.
        input_edges: the gradients that the node passes on to inputs of the call.
        passthrough_edges: the gradients that the node gets for inputs that are outputs as well.
        leaf: the leaf, if the output is one.
    """

    __slots__ = ("input_edges", "leaf", "node", "outputs", "passthrough_edges")

    def __init__(self, node: Any, leaf: Tensor | None = None) -> None:
        self.node = node
        self.leaf = leaf
        self.outputs: list[tuple[int, int, ViewGeometry | Reshaped | None]] = []
        self.input_edges: list[BoundaryEdge] = []
        self.passthrough_edges: list[BoundaryEdge] = []


class BoundaryEdge(NamedTuple):
    """A boundary edge: the gradient of a node, at an index among its gradients, that belongs to an input of the call.

    The window is the view geometry of the input in the gradient; None if all of the gradient belongs to the input.
    """

    slot: int
    input: int
    geometry: ViewGeometry | Reshaped | None


class BoundaryNodes:
    """The boundary nodes of a call.

    Attributes:
        events: the nodes, in the order in which a backward runs them; those of leaves last.
        views: outputs that are views; their gradients may bypass their own node and go to that of the base.
    """

    def __init__(self, call_inputs: CallInputs, outputs: Sequence[Tensor]) -> None:
        self.call_inputs = call_inputs
        self.views: list[Tensor] = []
        self._events: dict[Any, BoundaryNode] = {}
        self._leaves: list[BoundaryNode] = []
        roots = [self._output(number, output) for number, output in enumerate(outputs) if output.requires_grad]
        if call_inputs.edges or call_inputs.leaves:
            self._walk(list(dict.fromkeys(node for node in roots if node is not None)))
        made = [*self._events.values()]
        if len(made) > 1:
            made.sort(key=lambda event: event.node._sequence_nr(), reverse=True)
        self.events = [*made, *self._leaves]

    def _output(self, number: int, output: Tensor) -> Any:
        """Note an output; return its node to walk from, or None if the call has not made this node."""
        node = output.grad_fn
        if node is None:
            event = BoundaryNode(get_gradient_edge(output).node, output)
            event.outputs.append((0, number, None))
            if id(output) in self.call_inputs.leaves:
                event.passthrough_edges.append(BoundaryEdge(0, self.call_inputs.leaves[id(output)], None))
            self._leaves.append(event)
            return None
        passthrough_edges = self.call_inputs.edges.get((node, output.output_nr))
        if passthrough_edges is not None:
            self._event(node).passthrough_edges.append(BoundaryEdge(output.output_nr, passthrough_edges, None))
        self._home(number, output)
        return node if node._sequence_nr() >= self.call_inputs.since else None

    def _home(self, number: int, output: Tensor) -> None:
        home = hidden_base_target(output) if output._is_view() else None
        if home is not None and home[0]._sequence_nr() >= self.call_inputs.since:
            node, slot, geometry = home
            self._event(node).outputs.append((slot, number, geometry))
        else:
            self._event(output.grad_fn).outputs.append((output.output_nr, number, None))
            if output._is_view():
                self.views.append(output)

    def _walk(self, nodes: list[Any]) -> None:
        """Walk back through the nodes that the call has made, and note those that lead to an input."""
        edges, leaves, geometries, _, since = self.call_inputs
        seen = set(nodes)
        while nodes:
            node = nodes.pop()
            for slot, edge in enumerate(node.next_functions):
                following = edge[0]
                if following is None:
                    continue
                if edge in edges:
                    self._event(node).input_edges.append(BoundaryEdge(slot, edges[edge], None))
                elif edge in geometries and type(node).__name__ == "CopySlices":
                    changed = geometries[edge]
                    if changed is not None:  # of two views of one base the parts are not separable
                        self._event(node).input_edges.append(BoundaryEdge(slot, *changed))
                elif leaves and type(following).__name__ == "AccumulateGrad":
                    number = leaves.get(id(following.variable))
                    if number is not None:
                        self._event(node).input_edges.append(BoundaryEdge(slot, number, None))
                elif following not in seen and following._sequence_nr() >= since:
                    seen.add(following)
                    nodes.append(following)

    def _event(self, node: Any) -> BoundaryNode:
        event = self._events.get(node)
        if event is None:
            event = self._events[node] = BoundaryNode(node)
        return event
