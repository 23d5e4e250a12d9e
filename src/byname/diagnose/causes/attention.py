"""Attention: masks of a softmax that leave nothing out, and a softmax over the wrong dimension."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from byname.autograd.slots import held_by_nodes
from byname.diagnose.cause import Cause, Facts
from byname.diagnose.causes.loss import MOST_NUMBERS, Loss, dim_of, is_first, node_kind, shape_of
from byname.diagnose.nonfinite.reasons import is_readable, reading_values


def _softmaxes(loss: Loss, kinds: Iterable[str] = ("SoftmaxBackward",)) -> dict[Any, Any]:
    """Return the softmaxes by the node that gives them their scores."""
    return {node.next_functions[0][0]: node for node in loss.of_kinds(kinds)}


def _masks_of_rows(loss: Loss) -> Iterator[Facts]:
    """Yield masks that are broadcast along the dimension of a softmax, and so leave none of its values out."""
    softmaxes = _softmaxes(loss)
    for node, slot, mask in held_by_nodes([one for one in softmaxes if node_kind(one) in _MASKS]):
        if slot in ("mask", "condition") and mask.numel() <= MOST_NUMBERS and is_readable(mask):
            dim = dim_of(softmaxes[node]) - len(shape_of(node))
            with reading_values():
                is_flat = -dim > mask.dim() or mask.shape[dim] == 1 or mask.stride(dim) == 0
                is_mixed = bool(mask.any()) and not bool(mask.all())
            site = None if _summed_along_others(loss, softmaxes[node]) else loss.site(node)
            is_left_out = site is not None and _LEFT_OUT.search(site.statement)
            if is_flat and is_mixed and is_left_out and shape_of(node)[dim] > 1:
                yield loss.between(node, softmaxes[node], dim=dim, shape=str(tuple(mask.shape)))


def _filled_in(nodes: Iterable[Any]) -> Iterator[tuple[Any, torch.Tensor]]:
    """Yield nodes that fill in values, or multiply them by 0 and 1, with a mask of those that they replace."""
    for node, slot, held in held_by_nodes([one for one in nodes if node_kind(one) in (_MASKS[0], "MulBackward")]):
        if slot == "mask":
            yield node, held
        elif slot in ("self", "other") and held.numel() <= MOST_NUMBERS and is_readable(held):
            with reading_values():
                if bool(((held == 0) | (held == 1)).all()):
                    yield node, held.detach() == 0


def _masks_that_weigh(loss: Loss) -> Iterator[Facts]:
    """Yield masks whose values get a weight from the softmax like all others."""
    softmaxes = _softmaxes(loss, _WEIGHED)
    results = {node: one for node, slot, one in held_by_nodes(softmaxes.values()) if slot == _WEIGHED[node_kind(node)]}
    for node, mask in [one for one in _filled_in(softmaxes) if softmaxes[one[0]] in results]:
        result, dim = results[softmaxes[node]], dim_of(softmaxes[node])
        if result.numel() <= MOST_NUMBERS and is_readable(result):
            with reading_values():
                result = result if node_kind(softmaxes[node]) == "SoftmaxBackward" else result.softmax(dim)
                every = mask.expand_as(result)
                mixed = every.any(dim) & ~every.all(dim)
                masked, kept = (result.where(one, 0).sum(dim)[mixed] / one.sum(dim)[mixed] for one in (every, ~every))
                share = float(result.where(every, 0).sum(dim)[mixed].mean())  # NaN if there is no such row
                if bool((masked > _LITTLE * kept).double().mean() > _MOST):  # two masks may leave nothing of some rows
                    yield loss.between(node, softmaxes[node], share=f"{share:.0%}")


_LITTLE, _MOST = 0.05, 0.9
"""The share of the mean weight of other values, up to which one that is masked counts as left out; and of rows."""
_WEIGHED = {"SoftmaxBackward": "result", "LogSoftmaxBackward": "result", "LogsumexpBackward": "self"}
"""Nodes that weigh scores, each with the slot of the weights, or of what has them as its softmax."""
_MASKS = ("MaskedFillBackward", "WhereBackward")
_LEFT_OUT = re.compile(r"inf\b|finfo|- ?\d+(\.\d*)?e\d|-\d{3,}")
"""Large negative numbers, which stand for what a softmax should leave out."""


def _over_queries(loss: Loss) -> Iterator[Facts]:
    """Yield a softmax of products over their rows, whose result another product sums up along the columns."""
    for node in loss.of_kinds(("SoftmaxBackward",)):
        product = _summed_along_others(loss, node)
        if product is not None:
            yield loss.between(node, product, dim=dim_of(node), shape=str(shape_of(node)))


def _summed_along_others(loss: Loss, node: Any) -> Any:
    """Return the product that sums up along the columns what a softmax makes of products over their rows, if any."""
    shape, given = shape_of(node), node
    for _ in range(_BETWEEN if dim_of(node) == len(shape) - 2 > 0 else 0):
        given = next((one for one, _ in given.next_functions if one is not None), None)
        if node_kind(given) not in (*_KEPT, *_SCALED):
            break
    uses = loss.uses(node, lambda _, user: node_kind(user) in _KEPT and shape_of(user)[-2:] == shape[-2:])
    for one, user in uses if node_kind(given) in _PRODUCTS else ():
        if node_kind(user) in _PRODUCTS and user.next_functions[0][0] is one:
            return user
    return None


_BETWEEN = 8
"""Operations between a product and its softmax, such as a division and a mask."""
_PRODUCTS = ("BmmBackward", "MmBackward")
_KEPT = ("ExpandBackward", "ViewBackward", "UnsafeViewBackward", "NativeDropoutBackward", "MulBackward")
_SCALED = ("DivBackward", "AddBackward", *_MASKS)

# fmt: off
ATTENTION: tuple[Cause[Loss], ...] = (
    Cause("softmax-over-queries", is_first, _over_queries,
        "suspicious: the softmax{given:at} is over dimension {dim} of shape {shape}, the queries, and the product"
        "{used:at} sums up over the keys: the weights of a query do not sum up to 1",
        "take the softmax over the keys: dim=-1"),
    Cause("mask-without-effect", is_first, _masks_of_rows,
        "suspicious: the mask{given:at}, shape {shape}, is the same along dimension {dim}, over which the softmax"
        "{used:at} goes: it leaves no value out, and where it masks a whole row, the weights of that row become equal",
        "broadcast it along another dimension: mask[:, None, :] masks keys, mask[:, :, None] queries; it is right for "
        "rows that nothing uses later"),
    Cause("mask-without-effect", is_first, _masks_that_weigh,
        "suspicious: the mask{given:at} leaves out nothing: the softmax{used:at} gives {share} of the weight to the "
        "values that it fills in, as to 0 or 1e-9",
        "fill in float('-inf') or -1e9, which gets no weight"),
)
# fmt: on
"""Causes that concern the softmax of an attention."""
