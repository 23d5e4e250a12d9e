"""Future: attention, layers and convolutions by which a position sees later ones."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator
from typing import Any

import torch

from byname.autograd.slots import held_by_nodes
from byname.diagnose.causes.loss import Loss, kind_of
from byname.diagnose.nonfinite.reasons import looking

SOFTMAXES = ("SoftmaxBackward", "SafeSoftmaxBackward")
_ATTENDS, _QUERIES = re.compile("ScaledDotProduct|(Safe)?SoftmaxBackward"), ("result", "query")


def attended(loss: Loss) -> list[tuple[int, ...]]:
    """Return how many positions see how many, of each attention in the graph."""
    every = [node for kind, nodes in loss.nodes.items() if _ATTENDS.match(kind) for node in nodes]
    held = [(slot, tuple(one.shape)) for _, slot, one in held_by_nodes(every) if slot in _QUERIES]
    return [shape[-2:] if slot == "result" else (shape[-2],) * 2 for slot, shape in held]


def computed_from(loss: Loss, words: torch.Tensor) -> set[Any] | None:
    """Return the nodes that are computed from some words; None if no embedding of them is in the graph."""
    walk, same = loss.context.walk, words.flatten().tolist()
    held = held_by_nodes(list(loss.of_kinds(("EmbeddingBackward",))))
    with looking():
        found = [node for node, slot, one in held if slot == "indices" and one.flatten().tolist() == same]
    waiting = [walk.numbers[node] for node in found]
    known = {*waiting}
    for number in waiting:
        users = {*walk.users[number]} - known
        known |= users
        waiting += users
    return {walk.nodes[number] for number in known} if found else None


def compares_only(node: Any, known: Collection[Any]) -> bool:
    """Return whether attention compares positions of one sequence: what it multiplies is all among some nodes."""
    if kind_of(node).startswith("ScaledDotProduct"):
        return all(one in known for one, _ in node.next_functions[:2])
    waiting = [node]
    for one in waiting:
        below = [other for other, _ in one.next_functions if other is not None]
        if kind_of(one) not in _PRODUCTS:
            waiting += below if len(waiting) < 64 else ()
        elif len(below) > 1 and all(other in known for other in below[-2:]):
            return True
    return False


_PRODUCTS = ("BmmBackward", "MmBackward", "BaddbmmBackward", "AddmmBackward")


def reaches_later(node: Any) -> bool:
    """Return whether a convolution of one dimension weights later positions: a mask may leave none of them."""
    first = node._saved_padding[0] // node._saved_dilation[0] + 1
    with looking():
        return bool(node._saved_padding[0] and node._saved_weight.detach()[..., first:].any())


def seeing_later(loss: Loss, length: int) -> Iterator[tuple[Any, bool]]:
    """Yield the nodes of attention in which a position gets something from later ones, and whether of the next only."""
    for node, slot, held in held_by_nodes(list(loss.of_kinds(SOFTMAXES))):
        if slot == "result" and tuple(held.shape[-2:]) == (length, length) and length > 2:
            yield from _above(node, held.detach())
    for node in (one for kind, nodes in loss.nodes.items() if kind.startswith("ScaledDotProduct") for one in nodes):
        held_by = {slot: held for _, slot, held in held_by_nodes([node])}
        shapes = [held_by[slot].shape[-2] for slot in ("query", "key") if slot in held_by]
        if shapes == [length, length] and length > 2 and not getattr(node, "_saved_is_causal", True):
            mask = held_by.get("attn_mask", held_by.get("attn_bias"))
            seen = (
                torch.ones(length, length) if mask is None else mask if mask.dtype == torch.bool else mask > -math.inf
            )
            yield from _above(node, seen.float())


def _above(node: Any, weights: torch.Tensor) -> Iterator[tuple[Any, bool]]:
    """Yield the node if there are weights above the diagonal, and whether they are all next to it.

    Nothing is yielded where only the positions of a prefix see each other: they may be in no loss.
    """
    seen = weights.nan_to_num().reshape(-1, *weights.shape[-2:]).amax(0) > 1e-6
    last = int(seen.any(0).nonzero().amax()) if seen.any() else 0
    if last and bool(seen[last - 1, last]):
        yield node, not bool(seen.triu(2).any())
