"""Call graph: the calls of modules and functions in one run, and the calls that the data of another call reaches.

Distances are counted in elementary calls.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from byname.model.operations import ATTENTIONS, MOVES, PARTS_OF_ATTENTION, is_leaf_module
from byname.source.location import Instruction


class ModelCall(NamedTuple):
    """One call of a module or of a PyTorch function. Holds the module, but tensor ids instead of tensors.

    Attributes:
        path: the place: ``layers.0.attn``, ``layers.0.attn.softmax_1``; empty for the model itself. The second call of
            a shared module has the same path.
        operation: the class name of the module (``Linear``) or the name of the function (``softmax``).
        kind: ``module`` or ``operation``.
        module: the module called, or the module that runs the operation.
        parent: the index in `Flow.calls` of the module call around this one; None for the model's own call.
        call: the number of earlier calls of this place.
        inputs: the ids of the input tensors. A tensor gets a new id whenever it is changed in place.
        outputs: the ids of the output tensors, and of the tensors that the call changed in place.
        shapes: the shapes of the outputs.
        function: the PyTorch function called; None for a module.
        elementary: whether the call is one step of the data flow: a leaf module, or an operation outside leaf modules.
        line: the instruction of the program that makes the call; None if there is none, as in a `torch.nn.Sequential`
            that is the model.
        inside: for an operation, its paths in the functions of the module that run around it, the innermost first:
            ``layers.0.attn.rotate.cat``. Known for the functions that `trace` was asked about.
        given: for a module, its arguments, each as it is written after ``.input`` (``[1]``, ``['mask']``), with the
            shapes of the tensors in it. The first has an empty label.
    """

    path: str
    operation: str
    kind: str
    module: nn.Module
    parent: int | None = None
    call: int = 0
    inputs: tuple[int, ...] = ()
    outputs: tuple[int, ...] = ()
    shapes: tuple[tuple[int, ...], ...] = ()
    function: Any = None
    elementary: bool = True
    line: Instruction | None = None
    inside: tuple[str, ...] = ()
    given: tuple[tuple[str, tuple[tuple[int, ...], ...]], ...] = ()


@dataclass(frozen=True, slots=True)
class Flow:
    """The calls of one run, in the order in which they began.

    Attributes:
        calls: all calls.
        sources: by tensor id, the names of the tensors that no call made: ``input x``, ``layers.0.weight``.
        unseen: by tensor id, for tensors made where no function mode sees it, such as in a custom
            `torch.autograd.Function`: the ids of the tensors that they were made from.
    """

    calls: tuple[ModelCall, ...]
    sources: dict[int, str]
    unseen: dict[int, tuple[int, ...]]


def is_place(call: ModelCall) -> bool:
    """Return whether a call is a place of its own: a module, or an operation outside leaf modules."""
    return call.kind == "module" or not is_leaf_module(call.module)


def with_parts_of_attention(flow: Flow) -> Flow:
    """Return a call graph in which each call of attention is followed by its steps, as in a run that takes them."""
    calls: list[ModelCall] = []
    places: list[int] = []
    for call in flow.calls:
        places.append(len(calls))
        calls.append(call if call.parent is None else call._replace(parent=places[call.parent]))
        if call.kind == "operation" and call.operation in ATTENTIONS:
            step = call if call.parent is None or is_place(call) else flow.calls[call.parent]
            whole = calls[-1]._replace(inputs=step.inputs, outputs=step.outputs, shapes=(), elementary=False)
            calls += [whole._replace(path=f"{call.path}.{part}", operation=part) for part in PARTS_OF_ATTENTION]
    return Flow(tuple(calls), flow.sources, flow.unseen)


def connected(
    verb: str, flow: Flow, these: Collection[int], others: Collection[int], within: int | None = None
) -> frozenset[int]:
    """Return the indices of those of `these` that the flow of data connects with `others`.

    A call is at distance 1 from another if an output of the other is one of its inputs; each elementary call in between
    adds 1. For ``after`` and ``before``, distances up to `within` count, or all if that is None. For ``next_after`` and
    ``first_before`` the nearest to each of `others` does, where functions that only give the same elements in another
    shape, order, precision or place are no steps; of several equally near, the first or the last in the order of the
    run.
    """
    reached_from = _reached_before if verb in ("before", "first_before") else _reached_after
    if verb in ("after", "before"):
        reached = reached_from(flow, others, lambda call: 1)
        most = _UNREACHED - 1 if within is None else within
        return frozenset(index for index in these if reached.get(index, _UNREACHED) <= most)
    sign = -1 if verb == "first_before" else 1
    nearest: set[int] = set()
    for other in others:
        reached = reached_from(flow, (other,), _step)
        found = [(reached[index], sign * index) for index in these if reached.get(index, _UNREACHED) < _UNREACHED]
        nearest.update(sign * index for _, index in sorted(found)[:1])
    return frozenset(nearest)


def _step(call: ModelCall) -> int:
    return 0 if call.kind == "operation" and call.operation in MOVES else 1


def _reached_after(flow: Flow, others: Collection[int], step: Callable[[ModelCall], int]) -> dict[int, int]:
    """Return the distance of each call from the nearest of `others`; `step` gives the steps of a call."""
    made_from: defaultdict[int, list[int]] = defaultdict(list)
    for number, origins in flow.unseen.items():
        for origin in origins:
            made_from[origin].append(number)
    distances = _Distances(made_from)
    reached = {}
    for index, begins in _moments(flow.calls):
        call = flow.calls[index]
        if begins:
            before = distances.least(call.inputs)
            reached[index] = before + 1
            if call.elementary:
                distances.lower(call.outputs, before + step(call))
        elif index in others:
            distances.lower(_own(call), 0)
    return reached


def _reached_before(flow: Flow, others: Collection[int], step: Callable[[ModelCall], int]) -> dict[int, int]:
    """Return the distance of each call to the nearest of `others` that its data reaches."""
    distances = _Distances(flow.unseen)
    reached = {}
    for index, begins in reversed(list(_moments(flow.calls))):
        call = flow.calls[index]
        if begins:
            if call.elementary:
                distances.lower(call.inputs, distances.least(call.outputs) + step(call))
            if index in others:
                distances.lower(call.inputs, 1)
        else:
            reached[index] = distances.least(_own(call))
    return reached


_UNREACHED = 1 << 60


class _Distances:
    """The distance of each tensor from the start; `unseen` are the tensors one step further, where no call is seen."""

    def __init__(self, unseen: Mapping[int, Collection[int]]) -> None:
        self._unseen = unseen
        self._of: dict[int, int] = {}

    def least(self, numbers: Collection[int]) -> int:
        return min((self._of.get(number, _UNREACHED) for number in numbers), default=_UNREACHED)

    def lower(self, numbers: Collection[int], distance: int) -> None:
        """Lower the distance of some tensors, and of those that they lead to unseen."""
        waiting = [(number, distance) for number in numbers]
        while waiting:
            number, far = waiting.pop()
            if far < self._of.get(number, _UNREACHED):
                self._of[number] = far
                waiting += [(one, far + 1) for one in self._unseen.get(number, ())]


def _own(call: ModelCall) -> Collection[int]:
    """Return the outputs of a call without the inputs that it passes on; all outputs if it only passes inputs on."""
    return [number for number in call.outputs if number not in call.inputs] or call.outputs


def _moments(calls: tuple[ModelCall, ...]) -> Iterator[tuple[int, bool]]:
    """Yield (index, True) when a call begins and (index, False) when it ends, in the order of the run."""
    running: list[int] = []
    for index, call in enumerate(calls):
        while running and running[-1] != call.parent:
            yield running.pop(), False
        yield index, True
        running.append(index)
    while running:
        yield running.pop(), False
