"""What is a forward that was traced? Its graph, and the calls in it, each with its nodes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torch import fx, nn

__all__ = ["Record", "Trace", "passed"]


@dataclass(slots=True, eq=False)
class Record:
    """One call that was traced.

    Attributes:
        path: the place, as in `byname.tracing.tracer.Call`.
        operation: the function's name, or that of the module's class.
        kind: ``module`` or ``operation``.
        module: the module called, or the one that runs the operation.
        owner: its path.
        parent: the call in which it happened.
        function: the function called.
        inputs: the arguments, positional ones first, with nodes in place of values.
        outputs: what it gave, with nodes in place of values.
        first: the first node of it.
        entered: whether its own calls are in the graph; False for an operation and for a leaf.
        calls: how many functions of each name it has called.
    """

    path: str
    operation: str
    kind: str
    module: nn.Module
    owner: str
    parent: Record | None
    function: Any = None
    inputs: tuple[Any, ...] = ()
    outputs: Any = None
    first: fx.Node | None = None
    entered: bool = False
    calls: Counter[str] = field(default_factory=Counter)


@dataclass(slots=True)
class Trace:
    """A forward that was traced: the graph, its calls in the order in which they began, and what it depends on.

    Attributes:
        graph: ends every module call whose inside is in the graph with a call of `passed` for each value returned.
        records: the calls.
        flags: the ``training`` flags on which a decision depended, by the module's path.
        switches: whether the graph switches the recording of gradients.
        answers: what PyTorch was asked, such as ``is_grad_enabled``, with what it said.
    """

    graph: fx.Graph
    records: list[Record]
    flags: dict[str, bool]
    switches: bool
    answers: dict[str, Any] = field(default_factory=dict)


def passed(value: Any) -> Any:
    """The value itself: what a module returns, as its caller sees it."""
    return value
