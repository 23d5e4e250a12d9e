"""Call graph: the calls of modules and functions in one run, and the tensors that pass from one to the next."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from byname.model.operations import ATTENTIONS, PARTS_OF_ATTENTION, is_elementary
from byname.source.location import Instruction


@dataclass(frozen=True, slots=True)
class ModelCall:
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
    return call.kind == "module" or not is_elementary(call.module)


def with_parts_of_attention(flow: Flow) -> Flow:
    """Return a call graph in which each call of attention is followed by its steps, as in a run that takes them."""
    calls: list[ModelCall] = []
    places: list[int] = []
    for call in flow.calls:
        places.append(len(calls))
        calls.append(call if call.parent is None else replace(call, parent=places[call.parent]))
        if call.kind == "operation" and call.operation in ATTENTIONS:
            step = call if call.parent is None or is_place(call) else flow.calls[call.parent]
            calls += [_part_of_attention(calls[-1], step, part) for part in PARTS_OF_ATTENTION]
    return Flow(tuple(calls), flow.sources, flow.unseen)


def _part_of_attention(call: ModelCall, step: ModelCall, part: str) -> ModelCall:
    """Return a part of a call, that lies in the data flow where the elementary call does that it belongs to."""
    path, inputs, outputs = f"{call.path}.{part}", step.inputs, step.outputs
    return replace(call, path=path, operation=part, inputs=inputs, outputs=outputs, shapes=(), elementary=False)
