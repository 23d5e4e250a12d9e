"""Statistics: numbers of a whole batch that a module combines each sample with."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from byname.diagnose.causes.loss import Loss, kind_of, shape_of


def statistics_in(loss: Loss, batch: int) -> Iterator[tuple[Any, Any]]:
    """Yield nodes that combine samples with a number of all of them in front of a layer, and the nodes of that number.

    Nothing is yielded for code that treats evaluation differently, as batch norms do.
    """
    for node in loss.of_kinds(("SubBackward", "DivBackward")):
        first, second = (*node.next_functions, (None, 0))[:2]
        call, statistic = loss.context.lookup.call(node), _statistic(second[0], first[0], batch)
        is_of_samples = statistic is not None and shape_of(node)[:1] == (batch,)
        code = call.line.code if is_of_samples and call is not None and call.module and not call.inside else None
        words = "" if code is None else " ".join([*code.co_names, *code.co_varnames])
        if code is not None and not _EVALUATES.search(words) and _feeds_a_layer(loss, node):
            yield node, statistic


_STATISTICS = "Mean Sum Max Min Amax Amin Std Var LinalgVectorNorm".split()
_BETWEEN = "Add Sub Mul Div Sqrt Rsqrt Clamp ClampMin Pow Abs Unsqueeze Squeeze Expand View Select".split()
_EVALUATES = re.compile(r"running|moving|training|momentum|grad_enabled")
"""Words of code that computes differently in evaluation."""


def _statistic(below: Any, above: Any, batch: int) -> Any:
    """Return the node that reduces all samples to the number below a sample, if it is computed from that; else None."""
    for _ in range(6):
        if kind_of(below).removesuffix("Backward") in _STATISTICS:
            break
        below = _between(below)
    given = below.next_functions[0][0] if kind_of(below).removesuffix("Backward") in _STATISTICS else None
    if given is None or shape_of(given)[:1] != (batch,) or not given.next_functions:
        return None
    size, dims = len(shape_of(given)), getattr(below, "_saved_dim", None)
    dims = (dims,) if isinstance(dims, int) else dims
    origins = [{*_before(one)} for one in (given, above)]
    return below if (not dims or {0, (1 << 64) - size} & {*dims}) and origins[0] & origins[1] else None


def _between(node: Any) -> Any:
    """Return the node in front of one that works on each number by itself; None of any other."""
    is_known = kind_of(node).removesuffix("Backward") in _BETWEEN
    return next((one for one, _ in node.next_functions if one is not None), None) if is_known else None


def _before(node: Any) -> Iterator[Any]:
    """Yield a node, and those before it that work on each number by itself."""
    for _ in range(6):
        if node is not None:
            yield node
            node = _between(node)


def _feeds_a_layer(loss: Loss, node: Any) -> bool:
    """Return whether a linear or convolutional layer is given a node's result, before any reduction."""
    walk, waiting = loss.context.walk, [node]
    for one in waiting:
        for user in [walk.nodes[number] for number in walk.users[walk.numbers[one]]]:
            kind = kind_of(user)
            if kind in _LAYERS and user.next_functions[_LAYERS[kind]][0] is one:
                return _is_weight(user.next_functions[2 if kind == "AddmmBackward" else 1][0])
            if len(waiting) < 24 and kind.removesuffix("Backward") not in (*_STATISTICS, "Exp", "Mm", "Bmm"):
                waiting.append(user)
    return False


def _is_weight(node: Any) -> bool:
    """Return whether a node is that of a parameter, or None, for a tensor without a graph."""
    node = node.next_functions[0][0] if kind_of(node) == "TBackward" else node
    return node is None or kind_of(node) == "AccumulateGrad"


_LAYERS = {"AddmmBackward": 1, "ConvolutionBackward": 0, "MmBackward": 0}
"""Nodes of layers, and which of their arguments is the input."""
