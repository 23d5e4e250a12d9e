"""Suspicious losses: double-softmax, broadcast-loss, leaf-loss.

The graph shows a pattern that computes what it says, and hardly ever what was meant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch

from byname.diagnose.context import FailureContext, made_at
from byname.diagnose.finding import Finding, culprits_of, known_sites
from byname.naming.name import at, quote
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact, is_tensor
from byname.source.location import Site

__all__ = ["leaf_loss", "suspicious_losses"]

_SQUASHED = {
    "LogSoftmaxBackward": ("SoftmaxBackward", "softmax", "cross_entropy (log_softmax)"),
    "BinaryCrossEntropyWithLogitsBackward": ("SigmoidBackward", "sigmoid", "binary_cross_entropy_with_logits"),
}
"""Losses with a softmax or sigmoid of their own: the node before which it stands twice, and both in words."""

_COMPARING = {"MseLossBackward", "SmoothL1LossBackward", "HuberLossBackward"}
_MOVES = {"ViewBackward", "UnsafeViewBackward", "TransposeBackward", "PermuteBackward", "SqueezeBackward", "TBackward"}


def suspicious_losses(nodes: Iterable[Any], roots: Sequence[Any]) -> Iterator[Finding]:
    """Yield findings about the losses in a graph.

    Args:
        nodes: the nodes of the graph.
        roots: what backward is called on.
    """
    context: FailureContext | None = None
    for node in nodes:
        kind = _kind(node)
        if kind not in _SQUASHED and kind not in _COMPARING:
            continue
        given = _before(node)
        context = context or FailureContext(roots)
        if kind in _SQUASHED and _kind(given) == _SQUASHED[kind][0]:
            yield _twice(context, kind, node, given)
        elif kind in _COMPARING and _kind(given) == "ExpandBackward":
            yield from _broadcast(context, node, given)


def _kind(node: Any) -> str:
    return type(node).__name__.rstrip("0123456789")


def _before(node: Any) -> Any:
    """Return the node that computed the first input of another, past those that only move values."""
    given = node.next_functions[0][0]
    while _kind(given) in _MOVES:
        given = given.next_functions[0][0]
    return given


def _twice(context: FailureContext, kind: str, node: Any, given: Any) -> Finding:
    _, what, loss = _SQUASHED[kind]
    first, second = (context.site(context.walk.numbers[one]) for one in (given, node))
    message = (
        f"suspicious: {what}(){at(first)} is applied to what {loss}{at(second)} is given, which applies one of "
        "its own: the gradients become small, and the loss cannot go below a bound"
    )
    other = "nll_loss of log_softmax" if what == "softmax" else "binary_cross_entropy"
    remedy = f"leave out the {what}() and give the logits to the loss, or use {other}"
    return Finding("double-softmax", message, (), known_sites(first, second), remedy)


def _broadcast(context: FailureContext, node: Any, expanded: Any) -> Iterator[Finding]:
    before, after = tuple(expanded._saved_self_sym_sizes), tuple(expanded._input_metadata[0].shape)
    if before == after:
        return
    site = context.site(context.walk.numbers[node])
    message = (
        f"suspicious: the loss{at(site)} compares values of shape {before} with targets of another shape: both are "
        f"broadcast to {after}, so that each value is compared with several targets"
    )
    remedy = "give both the same shape, as by target.reshape(output.shape) or output.squeeze(-1)"
    yield Finding("broadcast-loss", message, (), known_sites(site), remedy)


def leaf_loss(root: Any, called: Site | None) -> Finding | None:
    """Return a finding about a loss that is computed from nothing: a number that was wrapped anew as a tensor.

    Args:
        root: what backward is called on.
        called: the line that calls it.
    """
    if not is_tensor(root) or issubclass(type(root), torch.nn.Parameter):
        return None
    with DisableTorchFunction():
        if not fact(root, "is_leaf") or root.numel() != 1:
            return None
    name, made = FailureContext([root]).name(root), made_at(root)
    message = (
        f"backward{at(called)} starts from {quote(name)}, which was made as a new tensor{at(made)} and is "
        "computed from nothing: no parameter gets a gradient from it"
    )
    remedy = "keep the tensor that the loss function returned, as it is: without .item(), float() and torch.tensor()"
    return Finding("leaf-loss", message, culprits_of(name), known_sites(made, called), remedy)
