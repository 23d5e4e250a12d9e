"""Flat: operations whose derivative is 0 everywhere, or where they were called, and what to write instead."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from byname.autograd.slots import held_by_nodes
from byname.diagnose.causes.loss import Loss, dim_of, node_kind, shape_of
from byname.diagnose.nonfinite.reasons import can_read, is_zero, reading_values
from byname.reading.tensor import is_tensor
from byname.source.location import Site


class FlatOperation(NamedTuple):
    """An operation whose derivative is 0 everywhere, such as ``round``, and the line that calls it."""

    operation: str
    site: Site | None
    of_one: bool = False  # a softmax along a dimension with one element, whose result is always the same
    dead: bool = False  # a relu that gave only zeros, a clamp of values beyond its bounds only, or a factor of 0
    of_equals: bool = False  # an exp of a difference of equal results, such as PPO's ratio


_CHOICES = (
    "a choice has no gradient: draw by torch.distributions.RelaxedBernoulli(...).rsample() or F.gumbel_softmax(), or "
    "weight the log-probability of what was drawn (REINFORCE)"
)
DRAWN = {
    "normal": "draw by mean + std * torch.randn_like(std), or by torch.distributions.Normal(mean, std).rsample()",
    "bernoulli": _CHOICES,
    "poisson": _CHOICES,
    (_NEAREST := "nearest grid_sample"): "call it with mode='bilinear', which has a derivative by its grid",
}
"""What to write instead of an operation that draws values, or picks the nearest."""

_FLAT = {
    *("RoundBackward", "FloorBackward", "CeilBackward", "TruncBackward", "SignBackward"),
    *("NormalBackward", "BernoulliBackward", "PoissonBackward"),
}
"""Nodes of operations whose derivative is 0 everywhere, without the number of the overload."""


def flat_operation_in(loss: Loss) -> FlatOperation | None:
    """Return the first operation in the graph of a loss whose derivative is 0 everywhere, or a relu that is dead."""
    for node in loss.context.nodes:
        kind = node_kind(node)
        is_nearest = kind.startswith("GridSampler") and node._saved_interpolation_mode == 1
        if kind in _FLAT or (is_nearest and node.next_functions[1][0] is not None):
            return FlatOperation(_NEAREST if is_nearest else kind.removesuffix("Backward").lower(), loss.site(node))
        shape = shape_of(node) if kind in _SOFTMAX else ()
        if shape and shape[dim_of(node)] == 1:
            return FlatOperation(_SOFTMAX[kind], loss.site(node), of_one=True)
    for node, slot, held in held_by_nodes(list(loss.of_kinds((*_CLAMPS, *_MAY_BE_FLAT)))):
        kind = "clamp" if node_kind(node) in _CLAMPS else node_kind(node).removesuffix("Backward").lower()
        is_dead = kind == "relu" and slot == "result" and is_zero(held)
        is_dead = is_dead or (kind == "clamp" and slot == "self" and _is_outside(node, held))
        if is_dead or (kind == "mul" and not held.dim() and not held.requires_grad and is_zero(held)):  # dropout, p=1
            return FlatOperation(kind, loss.site(node), dead=True)
        if kind == "exp" and slot == "result" and _is_of_equals(node, held):
            return FlatOperation("exp", loss.site(node), of_equals=True)
    return None


_MAY_BE_FLAT = ("ReluBackward", "ExpBackward", "MulBackward")
_CLAMPS = ("ClampBackward", "ClampMinBackward", "ClampMaxBackward", "HardtanhBackward")


def _is_outside(node: Any, given: torch.Tensor) -> bool:
    """Return whether all numbers that a clamp is given are beyond its bounds."""
    low, high = (getattr(node, f"_saved_{end}", getattr(node, f"_saved_{end}_val", None)) for end in ("min", "max"))
    with reading_values():
        is_known = not is_tensor(low) and not is_tensor(high) and can_read(given) and given.numel() > 0
        return is_known and bool((given.clamp(low, high) != given).all())


def _is_of_equals(node: Any, result: torch.Tensor) -> bool:
    """Return whether an exponential is of a difference of equal values, both with a graph: their gradients cancel."""
    minus = node.next_functions[0][0]
    if node_kind(minus) != "SubBackward" or any(one is None for one, _ in minus.next_functions):
        return False
    with reading_values():
        return can_read(result) and bool((result == 1).all())


_SOFTMAX = {"SoftmaxBackward": "softmax", "LogSoftmaxBackward": "log_softmax"}
