"""Call gradients: the gradients of the outputs of one call, and its own contributions to the gradients of its inputs.

The forward is not changed. After the call, its nodes that lead straight to one of its inputs are found in the graph.
Hooks on these nodes get the contribution of this call to the gradient of each input, without those of other uses of the
same tensor. The gradients of the call are complete when all of these nodes that the backward will run have run.

The hooks of a node must not reference the node itself or a later one: such a cycle would keep the graph alive until the
next garbage collection. So each hook knows only nodes that a backward runs after it, which were made earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from byname.errors import InterjectionError
from byname.reading.quiet import DisableTorchFunction
from byname.watch.boundary_edges import BoundaryEdge, BoundaryNode, BoundaryNodes, CallInputs, Edge
from byname.watch.value_gradients import (
    Removable,
    Reshaped,
    ViewGeometry,
    on_gradient,
    view_geometry_of,
    watch_the_base,
)


def note_arguments(inputs: Sequence[Tensor]) -> CallInputs:
    """Note the tensors among the arguments of a call that is about to begin; the call may change them in place."""
    edges: dict[Edge, int] = {}
    leaves: dict[int, int] = {}
    geometries: dict[Edge, tuple[int, ViewGeometry | Reshaped] | None] = {}
    with DisableTorchFunction():
        for number, tensor in enumerate(inputs):
            node = tensor.grad_fn
            if node is not None:
                if edges.setdefault((node, tensor.output_nr), number) == number and tensor._is_view():
                    _note_base(geometries, number, tensor)
            elif tensor.requires_grad:
                leaves.setdefault(id(tensor), number)
    return CallInputs(edges, leaves, geometries, tuple(inputs), _sequence_number())


def _note_base(geometries: dict[Edge, tuple[int, ViewGeometry | Reshaped] | None], number: int, tensor: Tensor) -> None:
    """Note the edge of the base of a view: if the call changes the view in place, the gradient flows there instead."""
    base = tensor._base
    if base is None or base.grad_fn is None or type(tensor) is not Tensor:
        return
    edge = (base.grad_fn, base.output_nr)
    geometry = view_geometry_of(tensor, base)
    geometries[edge] = None if edge in geometries or geometry is None else (number, geometry)


def follow(
    call_inputs: CallInputs, outputs: Sequence[Tensor], receive: Receive, missed: Callable[[], object] | None = None
) -> Followed | None:
    """Report the gradients of a call in every backward that passes through it.

    `receive` gets two tuples, one item for each input and for each output: the contribution of this call to the
    gradient of each input, and the gradient of each output. An item is None if no gradient flows. If a tensor was given
    twice, all of its gradient is at its first position. `receive` returns replacements for the first tuple, which fit
    (see `check_gradients`), or None; an item None keeps the gradient.

    An input that is returned unchanged, as by ``nn.Identity``, has only one gradient, that of the value as a whole. It
    is reported for both input and output. A tensor may leave the call in another way than as an output, for example in
    an attribute. Its gradient flows back through the call as well, and is part of the gradients of the inputs.

    For `missed` see `on_gradient`. Returns an object that stops the reports, or None if no gradient can flow back
    through this call.

    >>> x = torch.ones(2, requires_grad=True) * 1
    >>> call_inputs = note_arguments([x])
    >>> y = x * 3
    >>> followed = follow(call_inputs, [y], lambda inputs, outputs: (inputs[0] * 10,))
    >>> (x + y).sum().backward(inputs=[x.grad_fn.next_functions[0][0].variable])
    >>> x.grad_fn.next_functions[0][0].variable.grad          # 1 from the sum, ten times 3 from the call
    tensor([31., 31.])
    """
    with DisableTorchFunction():
        found = BoundaryNodes(call_inputs, outputs)
        if not found.events:
            return None
        followed = Followed(receive, call_inputs, len(outputs), len(found.events))
        _install(followed, found)
        for output in found.views if missed is not None else ():
            watch_the_base(output, missed)  # type: ignore[arg-type]
        return followed


def _install(followed: Followed, found: BoundaryNodes) -> None:
    """Hook the boundary nodes, the one that runs last first."""
    events = found.events
    later: Later | None = None
    for number in range(len(events) - 1, -1, -1):
        event = events[number]
        if event.leaf is not None:
            followed.watch_leaf(number, event)
        else:
            register = event.node.register_hook if event.input_edges else event.node.register_prehook
            register(followed.node_hook(number, event, later))
        later = number, event.node, later
    if len(events) > 1 and not _all_at_last_node(events):
        for (node, slot), number in found.call_inputs.edges.items():
            node.register_prehook(followed.input_hook(number, slot))


def _all_at_last_node(events: Sequence[BoundaryNode]) -> bool:
    """Return whether the gradients of all inputs leave by the node that runs last, where they can be changed."""
    input_edges = {edge.input for event in events for edge in (*event.input_edges, *event.passthrough_edges)}
    last = {edge.input for edge in (events[-1].input_edges or events[-1].passthrough_edges)}
    return input_edges == last


_sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr


Later: TypeAlias = tuple[int, Any, "Later | None"]
"""The number of a boundary node, the node, and the boundary nodes that a backward runs after it."""

Gradients: TypeAlias = tuple[Tensor | None, ...]
Receive: TypeAlias = Callable[[Gradients, Gradients], Gradients | None]
"""A function that is called with the gradients of the inputs and of the outputs; its result replaces the former."""


class _BackwardState:
    """The gradients of the call in one backward, as far as they are known.

    Attributes:
        done: the numbers of the boundary nodes that have run.
        inputs, outputs: the gradients; those of the inputs are sums of contributions.
        contributions: the number of contributions to the gradient of each input.
        final_inputs: the inputs whose gradients can no longer be changed.
        changes: for each input, the tensor that is still to be added to its gradient.
    """

    __slots__ = ("changes", "contributions", "done", "final_inputs", "inputs", "outputs", "reported")

    def __init__(self, inputs: int, outputs: int, leaves: frozenset[int]) -> None:
        self.done: set[int] = set()
        self.inputs: list[Tensor | None] = [None] * inputs
        self.contributions = [0] * inputs
        self.outputs: list[Tensor | None] = [None] * outputs
        self.final_inputs = set(leaves)  # the engine accumulates the gradient of a leaf as soon as it is complete
        self.changes: dict[int, Tensor] = {}
        self.reported = False

    def add_output_grads(
        self, outputs: Sequence[tuple[int, int, ViewGeometry | Reshaped | None]], gradients: Gradients
    ) -> None:
        for slot, output, geometry in outputs:
            gradient = gradients[slot]
            self.outputs[output] = gradient if geometry is None or gradient is None else geometry.extract(gradient)

    def add_passthrough_grads(self, passthrough_edges: Sequence[BoundaryEdge], gradients: Gradients) -> None:
        """Note the gradients of inputs that are outputs as well."""
        for slot, number, _ in passthrough_edges:
            self.inputs[number], self.contributions[number] = gradients[slot], 1

    def add_input_grads(self, input_edges: Sequence[BoundaryEdge], gradients: Gradients) -> None:
        for slot, number, geometry in input_edges:
            share = gradients[slot]
            if share is not None:
                share = share if geometry is None else geometry.extract(share)
                known = self.inputs[number]
                self.inputs[number] = share if known is None else known + share
                self.contributions[number] += 1


class Followed:
    """A call whose gradients are reported, and the hooks that collect them."""

    def __init__(self, receive: Receive, call_inputs: CallInputs, outputs: int, events: int) -> None:
        self._receive: Receive | None = receive
        self._inputs = len(call_inputs.tensors)
        self._leaves = frozenset(call_inputs.leaves.values())
        self._outputs = outputs
        self._events = events
        self._tasks: dict[int, _BackwardState] = {}
        self._on_leaves: list[Removable | None] = []

    def remove(self) -> None:
        """Stop reporting. The hooks on nodes are freed with the graph; those on leaves are removed."""
        self._receive = None
        self._tasks.clear()
        for hook in self._on_leaves:
            if hook is not None:
                hook.remove()
        self._on_leaves.clear()

    def leaves(self) -> list[Tensor]:
        """Return the leaves that have hooks and are still alive."""
        return [leaf for hook in self._on_leaves if hook is not None for leaf in hook.leaves()]

    @property
    def lasting(self) -> bool:
        """Whether there are hooks that are not freed with the graph, and so must be removed."""
        return bool(self._on_leaves)

    def watch_leaf(self, number: int, event: BoundaryNode) -> None:
        """Hook an output that is a leaf. Its gradient may come before or after those of the other nodes."""
        outputs, passthrough_edges = event.outputs, event.passthrough_edges

        def hook(gradient: Tensor) -> Tensor | None:
            task = self._task()
            if task is None:
                return None
            task.add_output_grads(outputs, (gradient,))
            task.add_passthrough_grads(passthrough_edges, (gradient,))
            task.done.add(number)
            new = self._report(task, (gradient,), passthrough_edges) if len(task.done) == self._events else None
            return None if new is None else new[0]

        if event.leaf is not None:
            self._on_leaves.append(on_gradient(event.leaf, hook))

    def node_hook(self, number: int, event: BoundaryNode, later: Later | None) -> Callable[..., Gradients | None]:
        """Return a hook, called with the gradients that a node passes on and gets; a pre-hook only with the latter."""
        outputs, input_edges, passthrough_edges = event.outputs, event.input_edges, event.passthrough_edges

        def hook(gradients: Gradients, arrived: Gradients | None = None) -> Gradients | None:
            task = self._task()
            if task is None:
                return None
            if arrived is None:
                task.add_output_grads(outputs, gradients)
                task.add_passthrough_grads(passthrough_edges, gradients)
            else:
                task.add_output_grads(outputs, arrived)
                task.add_input_grads(input_edges, gradients)
            return self._node_ran(task, number, later, gradients, input_edges or passthrough_edges)

        return hook

    def input_hook(self, input: int, slot: int) -> Callable[[Gradients], Gradients | None]:
        """Return a pre-hook on the node of an input, called with its whole gradient.

        It adds the change of a contribution that had left the call before the change was known.
        """

        def hook(gradients: Gradients) -> Gradients | None:
            task = self._tasks.get(_graph_task())
            if task is None:
                return None
            change = task.changes.pop(input, None)
            if change is None:
                task.final_inputs.add(input)
                return None
            whole = gradients[slot]
            return _with(gradients, slot, change if whole is None else whole + change)

        return hook

    def _task(self) -> _BackwardState | None:
        """Return the gradients of the backward that is running; None once reporting has stopped."""
        if self._receive is None:
            return None
        if self._events == 1:  # one node brings all gradients, so nothing has to be kept
            return _BackwardState(self._inputs, self._outputs, self._leaves)
        number = _graph_task()
        task = self._tasks.get(number)
        if task is not None and task.reported:
            raise InterjectionError(_OUT_OF_ORDER)
        if task is None:
            task = self._tasks[number] = _BackwardState(self._inputs, self._outputs, self._leaves)
            _engine.queue_callback(lambda: self._ended(number))
        return task

    def _node_ran(
        self,
        task: _BackwardState,
        number: int,
        later: Later | None,
        gradients: Gradients,
        input_edges: Sequence[BoundaryEdge],
    ) -> Gradients | None:
        """Report the gradients if they are complete; return what replaces those of the node, or None."""
        task.done.add(number)
        while later is not None:
            other, node, later = later
            if other not in task.done and _will_run(node):
                return None
        return self._report(task, gradients, input_edges)

    def _report(
        self, task: _BackwardState, gradients: Gradients, input_edges: Sequence[BoundaryEdge]
    ) -> Gradients | None:
        """Call `receive`, and apply the replacements that it returns."""
        receive = self._receive
        task.reported = True
        inputs, outputs = tuple(task.inputs), tuple(task.outputs)
        task.inputs, task.outputs = [], []
        try:
            new = None if receive is None else receive(inputs, outputs)
            return None if new is None else _deliver(task, inputs, new, gradients, input_edges)
        except BaseException:
            self._tasks.clear()
            raise

    def _ended(self, number: int) -> None:
        """Report the gradients at the end of a backward that did not run all nodes of the call."""
        task = self._tasks.get(number)
        try:
            if task is not None and not task.reported:
                self._report(task, (), ())
            if task is not None and task.changes:
                raise InterjectionError(_too_late(min(task.changes)))
        finally:
            self._tasks.pop(number, None)


def _deliver(
    task: _BackwardState, old: Gradients, new: Gradients, gradients: Gradients, input_edges: Sequence[BoundaryEdge]
) -> Gradients | None:
    """Change the gradients of inputs: at once if they leave by this node, otherwise when the input's node runs."""
    here = {edge.input: edge for edge in input_edges}
    changed = gradients
    for input, (was, wanted) in enumerate(zip(old, new, strict=True)):
        if wanted is None or wanted is was or was is None:
            continue
        if input in here:
            changed = _changed_here(changed, here[input], None if task.contributions[input] == 1 else was, wanted)
        elif input in task.final_inputs:
            raise InterjectionError(_too_late(input))
        else:
            task.changes[input] = wanted - was
    return None if changed is gradients else changed


def _changed_here(gradients: Gradients, edge: BoundaryEdge, was: Tensor | None, wanted: Tensor) -> Gradients:
    """Return the gradients of a node, one of them changed so that the sum of all contributions is `wanted`.

    `was` is the sum so far, or None if this contribution is the only one.
    """
    share = gradients[edge.slot]
    if share is None:
        raise InterjectionError(_too_late(edge.input))
    if was is not None:
        wanted = wanted - (was - (share if edge.geometry is None else edge.geometry.extract(share)))
    return _with(gradients, edge.slot, wanted if edge.geometry is None else edge.geometry.with_part(share, wanted))


def _with(gradients: Gradients, index: int, new: Tensor) -> Gradients:
    return (*gradients[:index], new, *gradients[index + 1 :])


def _too_late(input: int) -> str:
    return (
        f"autograd had already passed on the gradient of input {input} when the last gradient of this call arrived; "
        "change it at that value's own `.grad`"
    )


_OUT_OF_ORDER = (
    "this backward runs the nodes of one call in several threads, or in another order than they were made: "
    "byname cannot separate the gradients of this call"
)


def _will_run(node: Any) -> bool:
    """Return whether the backward that is running will run a node, or has run it."""
    try:
        return _will_engine_execute(node)
    except RuntimeError:  # raised for a leaf that is an input of `autograd.grad`
        return True


_will_engine_execute: Callable[[Any], bool] = torch._C._will_engine_execute_node
_graph_task: Callable[[], int] = torch._C._current_graph_task_id
_engine: Any = torch.autograd.Variable._execution_engine
