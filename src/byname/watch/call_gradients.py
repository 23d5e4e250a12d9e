"""Call gradients: what comes to the outputs of one call, and what it alone adds to its inputs' gradients.

Nothing is put into the forward. After the call, the nodes that it made and that lead straight to one of its inputs are
found in the graph; hooks on these nodes see the call's own share of each input's gradient, apart from what other uses
of the same tensor add. When all of them that this backward will run have run, the call's gradients are complete.

The hooks of a node must not lead to the node itself or to one made later: such a cycle would keep the graph alive until
the next garbage collection. So each hook knows only nodes that come after it in a backward, which were made earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

from byname.errors import InterjectionError
from byname.reading.quiet import DisableTorchFunction
from byname.watch.boundary_edges import Door, Edge, Entered, Event, Found
from byname.watch.value_gradients import (
    Removable,
    Reshaped,
    Window,
    of_thread,
    on_gradient,
    watch_the_base,
    window_of,
)

__all__ = ["Followed", "Gradients", "Later", "Receive", "before", "follow"]


def before(inputs: Sequence[Tensor]) -> Entered:
    """Note what enters a call that is about to begin: afterwards an in-place operation may have changed it.

    Args:
        inputs: the tensors of the call, in order.
    """
    edges: dict[Edge, int] = {}
    leaves: dict[int, int] = {}
    windows: dict[Edge, tuple[int, Window | Reshaped] | None] = {}
    with DisableTorchFunction():
        for number, tensor in enumerate(inputs):
            node = tensor.grad_fn
            if node is not None:
                if edges.setdefault((node, tensor.output_nr), number) == number and tensor._is_view():
                    _note_base(windows, number, tensor)
            elif tensor.requires_grad:
                leaves.setdefault(id(tensor), number)
    return Entered(edges, leaves, windows, tuple(inputs), _sequence_number())


def _note_base(windows: dict[Edge, tuple[int, Window | Reshaped] | None], number: int, tensor: Tensor) -> None:
    """Notes where a gradient goes if the call changes this view in place: past its own edge, to the base's."""
    base = tensor._base
    if base is None or base.grad_fn is None or type(tensor) is not Tensor:
        return
    edge = (base.grad_fn, base.output_nr)
    window = window_of(tensor, base)
    windows[edge] = None if edge in windows or window is None else (number, window)


def follow(
    entered: Entered, outputs: Sequence[Tensor], receive: Receive, missed: Callable[[], object] | None = None
) -> Followed | None:
    """Report the call's own gradients in every backward that passes through it.

    `receive` gets two tuples, aligned with the inputs and the outputs: what this call adds to the gradient of each
    input, and what came to each output. None stands where nothing flows; for a tensor given twice the first place has
    it all. What `receive` returns takes the place of the first; None there keeps what it was.

    An input that is returned as it is, as by ``nn.Identity``, has only one gradient: the whole one of that value, which
    is told as that of input and output. A tensor that leaves the call by another way than its outputs (it was stored in
    an attribute, say) sends its gradient back through the call, too, and that is part of what is told.

    Args:
        entered: what `before` returned.
        outputs: the tensors that the call returned, in order.
        receive: is called once a backward.
        missed: is called in a backward that had a gradient of an output out of reach; see `on_gradient`.

    Returns:
        What stops it, or None if no gradient can flow back through this call.

    >>> x = torch.ones(2, requires_grad=True) * 1
    >>> entered = before([x])
    >>> y = x * 3
    >>> followed = follow(entered, [y], lambda inputs, outputs: (inputs[0] * 10,))
    >>> (x + y).sum().backward(inputs=[x.grad_fn.next_functions[0][0].variable])
    >>> x.grad_fn.next_functions[0][0].variable.grad          # 1 from the sum, ten times 3 from the call
    tensor([31., 31.])
    """
    with DisableTorchFunction():
        found = Found(entered, outputs)
        if not found.events:
            return None
        followed = Followed(receive, entered, len(outputs), len(found.events))
        _install(followed, found)
        for output in found.views if missed is not None else ():
            watch_the_base(output, missed)  # type: ignore[arg-type]
        return followed


def _install(followed: Followed, found: Found) -> None:
    """Hook the nodes, the last first."""
    of_thread.latest.forget()
    events = found.events
    later: Later | None = None
    for number in range(len(events) - 1, -1, -1):
        event = events[number]
        if event.leaf is not None:
            followed.watch_leaf(number, event)
            later = Later(number, event.node, later)
            continue
        if event.doors:
            event.node.register_hook(followed.leaving(number, event, later))
        else:
            event.node.register_prehook(followed.arriving(number, event, later))
        later = Later(number, event.node, later)
    if len(events) > 1 and not _told_at_the_last_door(events):
        for (node, slot), number in found.entered.edges.items():
            node.register_prehook(followed.passing(number, slot))


def _told_at_the_last_door(events: Sequence[Event]) -> bool:
    """Whether all inputs' gradients leave by the node that runs last, so that they can be changed there."""
    doors = {door.input for event in events for door in (*event.doors, *event.passed)}
    last = {door.input for door in (events[-1].doors or events[-1].passed)}
    return doors == last


_sequence_number: Callable[[], int] = torch._C._autograd._get_sequence_nr


Gradients: TypeAlias = tuple[Tensor | None, ...]
Receive: TypeAlias = Callable[[Gradients, Gradients], Gradients | None]
"""Is given the gradients of the inputs and of the outputs; what it returns takes the place of the former."""


class Later:
    """An event and those that come after it in a backward."""

    __slots__ = ("following", "node", "number")

    def __init__(self, number: int, node: Any, following: Later | None) -> None:
        self.number = number
        self.node = node
        self.following = following


class _Task:
    """What one backward has brought so far.

    Attributes:
        done: the events that have been.
        inputs, outputs: the gradients; those of the inputs are sums of shares.
        shares: of how many.
        gone: inputs whose gradients have gone where nothing can change them.
        changes: what is to be added to the gradients of inputs on their way.
        told: whether `receive` has been called.
    """

    __slots__ = ("changes", "done", "gone", "inputs", "outputs", "shares", "told")

    def __init__(self, inputs: int, outputs: int, leaves: frozenset[int]) -> None:
        self.done: set[int] = set()
        self.inputs: list[Tensor | None] = [None] * inputs
        self.shares = [0] * inputs
        self.outputs: list[Tensor | None] = [None] * outputs
        self.gone = set(leaves)  # the engine accumulates the gradient of a leaf as soon as it is complete
        self.changes: dict[int, Tensor] = {}
        self.told = False

    def arrive(self, outputs: Sequence[tuple[int, int, Window | Reshaped | None]], gradients: Gradients) -> None:
        """Gradients come to outputs of the call."""
        for slot, output, window in outputs:
            gradient = gradients[slot]
            self.outputs[output] = gradient if window is None or gradient is None else window.cut(gradient)

    def leave(self, doors: Sequence[Door], gradients: Gradients) -> None:
        """Shares of the gradients of inputs leave a node."""
        for slot, number, window in doors:
            share = gradients[slot]
            if share is not None:
                share = share if window is None else window.cut(share)
                known = self.inputs[number]
                self.inputs[number] = share if known is None else known + share
                self.shares[number] += 1


class Followed:
    """A call whose gradients are waited for.

    Args:
        receive: is told them.
        entered: what has entered the call.
        outputs: how many tensors it returned.
        events: how many nodes there are to wait for.
    """

    def __init__(self, receive: Receive, entered: Entered, outputs: int, events: int) -> None:
        self._receive: Receive | None = receive
        self._inputs = len(entered.tensors)
        self._leaves = frozenset(entered.leaves.values())
        self._outputs = outputs
        self._events = events
        self._tasks: dict[int, _Task] = {}
        self._on_leaves: list[Removable | None] = []

    def remove(self) -> None:
        """Tells nothing any more. The hooks go with the graph, except where the call returned a leaf."""
        self._receive = None
        self._tasks.clear()
        for hook in self._on_leaves:
            if hook is not None:
                hook.remove()
        self._on_leaves.clear()

    def leaves(self) -> list[Tensor]:
        """The leaves that have hooks, as far as they are still alive."""
        return [leaf for hook in self._on_leaves if hook is not None for leaf in hook.leaves()]

    @property
    def lasting(self) -> bool:
        """Whether something has to be removed that does not go with the graph."""
        return bool(self._on_leaves)

    def watch_leaf(self, number: int, event: Event) -> None:
        """Waits for the gradient of an output that is a leaf: when it comes says nothing of the other nodes."""
        outputs, doors = event.outputs, event.passed

        def hook(gradient: Tensor) -> Tensor | None:
            task = self._task()
            if task is None:
                return None
            for _, output, _ in outputs:
                task.outputs[output] = gradient
            for door in doors:
                task.inputs[door.input], task.shares[door.input] = gradient, 1
            task.done.add(number)
            new = self._tell(task, (gradient,), doors) if len(task.done) == self._events else None
            return None if new is None else new[0]

        if event.leaf is not None:
            self._on_leaves.append(on_gradient(event.leaf, hook))

    def arriving(self, number: int, event: Event, later: Later | None) -> Callable[[Gradients], Gradients | None]:
        """A hook for the gradients that come to a node."""
        outputs, passed = event.outputs, event.passed

        def hook(gradients: Gradients) -> Gradients | None:
            task = self._task()
            if task is None:
                return None
            task.arrive(outputs, gradients)
            for door in passed:
                task.inputs[door.input], task.shares[door.input] = gradients[door.slot], 1
            return self._happened(task, number, later, gradients, passed)

        return hook

    def leaving(
        self, number: int, event: Event, later: Later | None
    ) -> Callable[[Gradients, Gradients], Gradients | None]:
        """A hook for the gradients that leave a node."""
        outputs, doors = event.outputs, event.doors

        def hook(gradients: Gradients, arrived: Gradients) -> Gradients | None:
            task = self._task()
            if task is None:
                return None
            task.arrive(outputs, arrived)
            task.leave(doors, gradients)
            return self._happened(task, number, later, gradients, doors)

        return hook

    def passing(self, input: int, slot: int) -> Callable[[Gradients], Gradients | None]:
        """A hook for the whole gradient of an input, where a change is added that came too late for its door."""

        def hook(gradients: Gradients) -> Gradients | None:
            task = self._tasks.get(_graph_task())
            if task is None:
                return None
            change = task.changes.pop(input, None)
            if change is None:
                task.gone.add(input)
                return None
            whole = gradients[slot]
            return _with(gradients, slot, change if whole is None else whole + change)

        return hook

    def _task(self) -> _Task | None:
        """What the backward that runs now has brought; None once nobody wants to know."""
        if self._receive is None:
            return None
        if self._events == 1:  # that is all of it: nothing has to be kept
            return _Task(self._inputs, self._outputs, self._leaves)
        number = _graph_task()
        task = self._tasks.get(number)
        if task is not None and task.told:
            raise InterjectionError(_OUT_OF_ORDER)
        if task is None:
            task = self._tasks[number] = _Task(self._inputs, self._outputs, self._leaves)
            _engine.queue_callback(lambda: self._ended(number))
        return task

    def _happened(
        self, task: _Task, number: int, later: Later | None, gradients: Gradients, doors: Sequence[Door]
    ) -> Gradients | None:
        """Tells the gradients if nothing more is to come; what the node is to pass on instead, or None."""
        task.done.add(number)
        while later is not None:
            if later.number not in task.done and _will_run(later.node):
                return None
            later = later.following
        return self._tell(task, gradients, doors)

    def _tell(self, task: _Task, gradients: Gradients, doors: Sequence[Door]) -> Gradients | None:
        """Calls `receive`, and delivers what it returns."""
        receive = self._receive
        task.told = True
        inputs, outputs = tuple(task.inputs), tuple(task.outputs)
        task.inputs, task.outputs = [], []
        try:
            new = None if receive is None else receive(inputs, outputs)
            return None if new is None else _deliver(task, inputs, new, gradients, doors)
        except BaseException:
            self._tasks.clear()
            raise

    def _ended(self, number: int) -> None:
        """A backward has ended. What has not been told is told now: this backward has not run all of the call."""
        task = self._tasks.get(number)
        try:
            if task is not None and not task.told:
                self._tell(task, (), ())
            if task is not None and task.changes:
                raise InterjectionError(_too_late(min(task.changes)))
        finally:
            self._tasks.pop(number, None)


def _deliver(
    task: _Task, old: Gradients, new: Gradients, gradients: Gradients, doors: Sequence[Door]
) -> Gradients | None:
    """Changes the gradients of inputs: here, if they leave by this node, else on their way."""
    if type(new) is not tuple or len(new) != len(old):
        raise InterjectionError(f"expected a tuple of {len(old)} gradients, one for each input, got {_told(new)}")
    here = {door.input: door for door in doors}
    changed = gradients
    for input, (was, wanted) in enumerate(zip(old, new, strict=True)):
        if wanted is None or wanted is was:
            continue
        if was is None:
            raise InterjectionError(f"input {input} has no gradient that could be changed: nothing flows to it")
        if input in here:
            changed = _changed_here(changed, here[input], None if task.shares[input] == 1 else was, wanted)
        elif input in task.gone:
            raise InterjectionError(_too_late(input))
        else:
            task.changes[input] = wanted - was
    return None if changed is gradients else changed


def _changed_here(gradients: Gradients, door: Door, was: Tensor | None, wanted: Tensor) -> Gradients:
    """The gradients of a node with that of one door changed so that the sum of all shares is what is wanted.

    `was` is the sum so far, None where this door's share is the only one.
    """
    share = gradients[door.slot]
    if share is None:
        raise InterjectionError(_too_late(door.input))
    if was is not None:
        wanted = wanted - (was - (share if door.window is None else door.window.cut(share)))
    return _with(gradients, door.slot, wanted if door.window is None else door.window.pasted(share, wanted))


def _with(gradients: Gradients, index: int, new: Tensor) -> Gradients:
    return (*gradients[:index], new, *gradients[index + 1 :])


def _too_late(input: int) -> str:
    return (
        f"the gradient of input {input} cannot be changed together with the others: it has gone on before the last of "
        "them was known. Change it where that value is made, at the place's `.grad`"
    )


_OUT_OF_ORDER = (
    "this backward runs the nodes of one call in several threads, or in an order that is not that of their making: "
    "the call's own gradients cannot be told from the outside"
)


def _told(value: Any) -> str:
    return f"{len(value)}" if type(value) is tuple else type(value).__name__


def _will_run(node: Any) -> bool:
    """Whether the backward that runs now will run a node, or has."""
    try:
        return _will_engine_execute(node)
    except RuntimeError:  # PyTorch refuses to say for a leaf of which `autograd.grad` was asked for the gradient
        return True


_will_engine_execute: Callable[[Any], bool] = torch._C._will_engine_execute_node
_graph_task: Callable[[], int] = torch._C._current_graph_task_id
_engine: Any = torch.autograd.Variable._execution_engine
