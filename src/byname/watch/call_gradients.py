"""What gradient does one call pass back: what comes to its outputs, and what it alone adds to its inputs' gradients?

Nothing is put into the forward. After the call, the nodes that it made and that lead straight to one of its inputs are
found in the graph; hooks on these nodes see the call's own share of each input's gradient, apart from what other uses
of the same tensor add. When all of them that this backward will run have run, the call's gradients are complete.

The hooks of a node must not lead to the node itself or to one made later: such a cycle would keep the graph alive until
the next garbage collection. So each hook knows only nodes that come after it in a backward, which were made earlier.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from byname.reading.quiet import DisableTorchFunction
from byname.watch.boundary_edges import Edge, Entered, Event, Found
from byname.watch.followed import Followed, Later, Receive
from byname.watch.value_gradients import watch_the_base
from byname.watch.view_geometry import Reshaped, Window, window_of

__all__ = ["before", "follow"]


def before(inputs: Sequence[Tensor]) -> Entered:
    """Notes what enters a call that is about to begin: afterwards an in-place operation may have changed it.

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
    """Has the call's own gradients told in every backward that passes through it.

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
    """Hooks the nodes, the last first."""
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
