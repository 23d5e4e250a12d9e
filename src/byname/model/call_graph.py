"""The call graph of one run: the calls of modules and functions, and which tensors go from one to the next."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from byname.model.operations import is_elementary

__all__ = ["Call", "Flow", "is_place"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a module or of a PyTorch function. It holds the module, and numbers in place of tensors.

    Attributes:
        path: the place: ``layers.0.attn``, ``layers.0.attn.softmax_1``; empty for the model itself. The second call of
            a shared module has the same path.
        operation: the class of the module (``Linear``), or the function's name (``softmax``).
        kind: ``module`` or ``operation``.
        module: the module called, or the one that runs the operation.
        parent: which of `Flow.calls` is the module call in which it happened; None for the model's own call.
        call: how many calls this place had before.
        inputs: the numbers of the tensors that go in. A tensor has one number for each state: a change in place gives
            it a new one.
        outputs: the numbers of the tensors that come out.
        shapes: the sizes of these.
        function: the PyTorch function called; None for a module.
        elementary: whether it is one step of the flow of data: an operation, or a module of ``torch.nn`` in which no
            other module ran. What happens inside such a module is no step of its own.
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


@dataclass(frozen=True, slots=True)
class Flow:
    """The calls of one run, in the order in which they began.

    Attributes:
        calls: all of them.
        sources: what the tensors are that no call made, by number: ``input x``, ``layers.0.weight``.
        unseen: for tensors made where no function mode sees it, such as in an autograd function of the user: the
            numbers of those that they were made from.
    """

    calls: tuple[Call, ...]
    sources: dict[int, str]
    unseen: dict[int, tuple[int, ...]]


def is_place(call: Call) -> bool:
    """Whether a call is a place of its own: not so what a module of ``torch.nn`` calls inside."""
    return call.kind == "module" or not is_elementary(call.module)
