"""Boundary edges: the nodes by which gradients enter a call on their way back, and those by which they leave it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from byname.watch.value_gradients import Reshaped, Window, hidden_base

__all__ = ["Door", "Edge", "Entered", "Event", "Found"]

Edge: TypeAlias = tuple[Any, int]
"""A node, and which of its outputs."""


class Entered(NamedTuple):
    """What has entered a call: how gradients would flow back to it. To be used up by `follow`.

    Attributes:
        edges: the edges of the inputs that require a gradient: number of the input, the first where it is given twice.
        leaves: those that are leaves, by identity: number of the input.
        windows: for the bases of inputs that are views: number of the input, and where it lies.
        tensors: the inputs, so that they stay the same objects until the call has ended.
        since: nodes with this sequence number or a higher one are made by the call.
    """

    edges: dict[Edge, int]
    leaves: dict[int, int]
    windows: dict[Edge, tuple[int, Window | Reshaped] | None]
    tensors: tuple[Tensor, ...]
    since: int


class Event:
    """A node whose run tells something of the call.

    Attributes:
        node: the node; for a leaf, that which accumulates its gradient.
        outputs: which of its gradients come to which outputs of the call.
        doors: which of the gradients that it passes on go to which inputs of the call.
        passed: which of its gradients come to inputs that are outputs, too.
        leaf: the leaf, if an output is one.
    """

    __slots__ = ("doors", "leaf", "node", "outputs", "passed")

    def __init__(self, node: Any, leaf: Tensor | None = None) -> None:
        self.node = node
        self.leaf = leaf
        self.outputs: list[tuple[int, int, Window | Reshaped | None]] = []
        self.doors: list[Door] = []
        self.passed: list[Door] = []


class Door(NamedTuple):
    """Where the gradient of an input leaves a node.

    Attributes:
        slot: which gradient of the node's.
        input: which input of the call.
        window: the part of the gradient that is meant, or None for all of it.
    """

    slot: int
    input: int
    window: Window | Reshaped | None


class Found:
    """The nodes of a call that matter, those that a backward runs first in front.

    Attributes:
        entered: what has entered the call.
        events: the nodes.
        views: the outputs of which a gradient may go past their own node, to that of the tensor they are views of.
    """

    def __init__(self, entered: Entered, outputs: Sequence[Tensor]) -> None:
        self.entered = entered
        self.views: list[Tensor] = []
        self._events: dict[Any, Event] = {}
        self._leaves: list[Event] = []
        roots = [self._output(number, output) for number, output in enumerate(outputs) if output.requires_grad]
        if entered.edges or entered.leaves:
            self._walk(list(dict.fromkeys(node for node in roots if node is not None)))
        made = [*self._events.values()]
        if len(made) > 1:
            made.sort(key=lambda event: event.node._sequence_nr(), reverse=True)
        self.events = [*made, *self._leaves]

    def _output(self, number: int, output: Tensor) -> Any:
        """Notes an output; the node to walk from, None where the call has not made it."""
        node = output.grad_fn
        if node is None:
            event = Event(_accumulator(output), output)
            event.outputs.append((0, number, None))
            if id(output) in self.entered.leaves:
                event.passed.append(Door(0, self.entered.leaves[id(output)], None))
            self._leaves.append(event)
            return None
        passed = self.entered.edges.get((node, output.output_nr))
        if passed is not None:
            self._event(node).passed.append(Door(output.output_nr, passed, None))
        self._home(number, output)
        return node if node._sequence_nr() >= self.entered.since else None

    def _home(self, number: int, output: Tensor) -> None:
        """Notes at which node the gradient of an output arrives."""
        hidden = hidden_base(output) if output._is_view() else None
        if hidden is not None and hidden[0].grad_fn._sequence_nr() >= self.entered.since:  # type: ignore[union-attr]
            base, window = hidden
            self._event(base.grad_fn).outputs.append((base.output_nr, number, window))
        else:
            self._event(output.grad_fn).outputs.append((output.output_nr, number, None))
            if output._is_view():
                self.views.append(output)

    def _walk(self, nodes: list[Any]) -> None:
        """Goes back through the nodes that the call has made, to those that lead to an input."""
        edges, leaves, windows, _, since = self.entered
        seen = set(nodes)
        while nodes:
            node = nodes.pop()
            for slot, edge in enumerate(node.next_functions):
                following = edge[0]
                if following is None:
                    continue
                if edge in edges:
                    self._event(node).doors.append(Door(slot, edges[edge], None))
                elif edge in windows and type(node).__name__ == "CopySlices":
                    self._changed_view(node, slot, windows[edge])
                elif leaves and type(following).__name__ == "AccumulateGrad":
                    number = leaves.get(id(following.variable))
                    if number is not None:
                        self._event(node).doors.append(Door(slot, number, None))
                elif following not in seen and following._sequence_nr() >= since:
                    seen.add(following)
                    nodes.append(following)

    def _changed_view(self, node: Any, slot: int, found: tuple[int, Window | Reshaped] | None) -> None:
        if found is not None:  # it is where two inputs are views of the same tensor: whose the share is cannot be told
            self._event(node).doors.append(Door(slot, *found))

    def _event(self, node: Any) -> Event:
        event = self._events.get(node)
        if event is None:
            event = self._events[node] = Event(node)
        return event


def _accumulator(leaf: Tensor) -> Any:
    """Return the node that accumulates the gradient of a leaf."""
    with torch.enable_grad():
        return leaf.view_as(leaf).grad_fn.next_functions[0][0]  # type: ignore[union-attr]
