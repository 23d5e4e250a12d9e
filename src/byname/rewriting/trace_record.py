"""Trace record: what one traced forward leaves: its graph, its calls, and the conditions that it holds for."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from torch import fx, nn


@dataclass(slots=True, eq=False)
class Record:
    """One traced call.

    Attributes:
        path: the place, as in `byname.model.call_graph.Call`.
        operation: the function's name, or the class name of the module.
        kind: ``module`` or ``operation``.
        module: the module called, or the module that runs the operation.
        owner: the path of `module`.
        parent: the module call around this one.
        function: the function called; None for a module.
        inputs: the arguments, positional ones first, with nodes in place of values.
        outputs: the result, with nodes in place of values.
        first: the first node of the call.
        entered: whether the calls inside it are in the graph; False for an operation and a leaf module.
        calls: the number of calls of each function so far.
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
    """A traced forward: the graph, its calls in the order in which they began, and the conditions it holds for.

    Attributes:
        graph: the graph; each module call whose inside is in it ends with a call of `passed` per returned value.
        records: the calls.
        flags: the ``training`` flags that the forward branched on, by the module's path.
        switches: whether the graph switches grad mode.
        answers: the PyTorch state that the forward asked for, such as ``is_grad_enabled``, with its value.
        asked: whether it was made with the answers of an example.
    """

    graph: fx.Graph
    records: list[Record]
    flags: dict[str, bool]
    switches: bool
    answers: dict[str, Any] = field(default_factory=dict)
    asked: bool = False


def passed(value: Any) -> Any:
    """Return the value; in a graph, marks a module's result as its caller sees it."""
    return value
