"""Mixing: operations before a loss by which a sample depends on other samples, or a position on later ones."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Collection, Iterator
from itertools import islice
from typing import Any

import torch

from byname.autograd.slots import held_by_nodes
from byname.diagnose.causes.loss import Loss, dim_of, input_of, node_kind, shape_of
from byname.diagnose.context import node_of, value_of
from byname.diagnose.nonfinite.reasons import reading_values
from byname.diagnose.silent.topic import distinct
from byname.reading.tensor import is_tensor


def statistics_in(loss: Loss, batch: int) -> Iterator[tuple[Any, Any]]:
    """Yield nodes that combine samples with a number of all of them in front of a layer, and the nodes of that number.

    Nothing is yielded for code that treats evaluation differently, as batch norms do.
    """
    for node in loss.of_kinds(("SubBackward", "DivBackward", "AddBackward", "MulBackward")):
        first, second = (*node.next_functions, (None, 0))[:2]
        call, statistic = loss.call(node), _statistic(second[0], first[0], batch)
        is_joined = node_kind(node) in ("AddBackward", "MulBackward")
        if is_joined:  # in either order, and of more than rows: a node of a graph gets what is global, too
            statistic = statistic or _statistic(first[0], second[0], batch)
            statistic = None if statistic is None or len(shape_of(statistic.next_functions[0][0])) < 3 else statistic
        is_of_samples = statistic is not None and shape_of(node)[:1] == (batch,)
        code = call.line.code if is_of_samples and call is not None and call.module and not call.inside else None
        words = "" if code is None else " ".join([*code.co_names, *code.co_varnames])
        is_used = code is not None and (_feeds_a_layer(loss, node) or _stays_apart(loss, node, statistic, batch))
        if is_used and not _EVALUATES.search(words):
            yield node, statistic


_STATISTICS = "Mean Sum Max Min Amax Amin Std Var LinalgVectorNorm".split()
_EACH = "Add Sub Mul Div Sqrt Rsqrt Clamp ClampMin Pow Abs Relu Tanh Sigmoid"
_BETWEEN = f"{_EACH} Unsqueeze Squeeze Expand View UnsafeView Select".split()
_EVALUATES = re.compile(r"running|moving|training|momentum|grad_enabled")
"""Words of code that computes differently in evaluation."""


def _statistic(below: Any, above: Any, batch: int) -> Any:
    """Return the node that reduces all samples to the number below a sample, if it is computed from that; else None."""
    for _ in range(6):
        if node_kind(below).removesuffix("Backward") in _STATISTICS:
            break
        below = _between(below)
    given = below.next_functions[0][0] if node_kind(below).removesuffix("Backward") in _STATISTICS else None
    if given is None or shape_of(given)[:1] != (batch,) or not given.next_functions:
        return None
    size, dims = len(shape_of(given)), getattr(below, "_saved_dim", None)
    dims = (dims,) if isinstance(dims, int) else dims
    origins = [{*_before(one)} for one in (given, above)]
    return below if (not dims or {0, (1 << 64) - size} & {*dims}) and origins[0] & origins[1] else None


def _between(node: Any) -> Any:
    """Return the node in front of a layer, or of one that works on each number by itself; None of any other."""
    kind = node_kind(node)
    if kind in _LAYERS and len(node.next_functions) > _LAYERS[kind]:
        return node.next_functions[_LAYERS[kind]][0]
    is_known = kind.removesuffix("Backward") in _BETWEEN
    return next((one for one, _ in node.next_functions if one is not None), None) if is_known else None


def _before(node: Any) -> Iterator[Any]:
    """Yield a node, and those before it that work on each number by itself."""
    for _ in range(6):
        if node is not None:
            yield node
            node = _between(node)


def _feeds_a_layer(loss: Loss, node: Any) -> bool:
    """Return whether a linear or convolutional layer is given a node's result, before any reduction."""
    uses = loss.uses(node, lambda _, user: node_kind(user).removesuffix("Backward") not in (*_STATISTICS, *_MIXES))
    for one, user in islice(uses, _FEW):
        kind = node_kind(user)
        if kind in _LAYERS and user.next_functions[_LAYERS[kind]][0] is one:
            return _is_weight(user.next_functions[2 if kind == "AddmmBackward" else 1][0])
    return False


def _stays_apart(loss: Loss, node: Any, statistic: Any, batch: int) -> bool:
    """Return whether samples divided by a norm are used one by one, and not compared feature by feature (z.T @ z)."""
    if node_kind(statistic) != "LinalgVectorNormBackward" or shape_of(node).count(batch) != 1:
        return False
    uses = [user for _, user in loss.uses(node, lambda _, user: node_kind(user) in _TURNS)]
    is_apart = all(node_kind(user) in _TURNS or shape_of(user)[:1] in ((), (batch,)) for user in uses)
    return is_apart and not _is_weight(node.next_functions[0][0])


_TURNS = ("TBackward", "TransposeBackward")


def _is_weight(node: Any) -> bool:
    """Return whether a node is that of a parameter, or None, for a tensor without a graph."""
    node = node.next_functions[0][0] if node_kind(node) == "TBackward" else node
    return node is None or node_kind(node) == "AccumulateGrad"


_FEW, _MIXES = 64, ("Exp", "Mm", "Bmm")
_LAYERS = {"AddmmBackward": 1, "ConvolutionBackward": 0, "MmBackward": 0}
"""Nodes of layers, and which of their arguments is the input."""

_BY_SAMPLE = re.compile(r"self(\.\w+)+\[:\s*(\w+\.size\(0\)|\w+\.shape\[0\]|len\(\w+\))\]")


def positions_by_sample(loss: Loss, first: Collection[tuple[int, ...]]) -> Iterator[Any]:
    """Yield nodes that add ``self.pe[:x.size(0)]``, of shape ``(n, 1, d)``, to what has one of some shapes."""
    for node in loss.of_kinds(("AddBackward",)):
        call = loss.call(node) if shape_of(node) in first else None
        module = None if call is None or call.module is None else call.module()
        made = None if call is None else node_of(call.line)
        for part in [getattr(made, name, None) for name in ("left", "right", "value")]:
            if isinstance(part, ast.Subscript) and _BY_SAMPLE.fullmatch(ast.unparse(part)):
                table = value_of(part.value, {"self": module})
                if is_tensor(table) and table.dim() == 3 and table.shape[1] == 1:
                    yield node


SOFTMAXES = ("SoftmaxBackward", "SafeSoftmaxBackward")
_ATTENDS, _QUERIES = re.compile("ScaledDotProduct|(Safe)?SoftmaxBackward"), ("result", "query")


def attending(loss: Loss, length: int) -> list[Any]:
    """Return the nodes of attention in which so many positions see so many."""
    every = [node for kind, nodes in loss.nodes.items() if _ATTENDS.match(kind) for node in nodes]
    held = [(node, slot, tuple(one.shape)) for node, slot, one in held_by_nodes(every) if slot in _QUERIES]
    both = [(node, shape[-2:] if slot == "result" else (shape[-2],) * 2) for node, slot, shape in held]
    return [node for node, shape in both if shape == (length, length)]


def computed_from(loss: Loss, words: torch.Tensor) -> set[Any] | None:
    """Return the nodes that are computed from some words; None if no embedding of them is in the graph."""
    walk, same = loss.context.walk, words.flatten().tolist()
    held = held_by_nodes(list(loss.of_kinds(("EmbeddingBackward",))))
    with reading_values():
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
    if node_kind(node).startswith("ScaledDotProduct"):
        return all(one in known for one, _ in node.next_functions[:2])
    waiting = [node]
    for one in waiting:
        below = [other for other, _ in one.next_functions if other is not None]
        if node_kind(one) not in _PRODUCTS:
            waiting += below if len(waiting) < 64 else ()
        elif len(below) > 1 and all(other in known for other in below[-2:]):
            return True
    return False


def is_summed_up(loss: Loss, node: Any, length: int) -> bool:
    """Return whether a layer is given one vector of all positions in place of a node's result, as a latent is made."""
    waiting, known = [node], {node}
    for one in waiting:
        users = loss.users(one)
        if not users:
            return False
        follow = [user for user in users if user not in known and not _sums_up(loss, one, user, length)]
        known.update(follow)
        waiting += follow
    return True


def _sums_up(loss: Loss, node: Any, user: Any, length: int) -> bool:
    reduces = node_kind(user).removesuffix("Backward") in (*_STATISTICS, "Select")
    return reduces and length in shape_of(node) and length not in shape_of(user) and _feeds_a_layer(loss, user)


_PRODUCTS = ("BmmBackward", "MmBackward", "BaddbmmBackward", "AddmmBackward")


def reaches_later(node: Any) -> bool:
    """Return whether a convolution of one dimension weights later positions: a mask may leave none of them."""
    first = node._saved_padding[0] // node._saved_dilation[0] + 1
    with reading_values():
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
            mask = torch.ones(length, length, device="cpu") if mask is None else mask
            seen = mask if mask.dtype == torch.bool else mask > -math.inf
            yield from _above(node, seen.float().expand(*seen.shape[:-2], length, length))


def _above(node: Any, weights: torch.Tensor) -> Iterator[tuple[Any, bool]]:
    """Yield the node, and whether the next position only is seen; nothing where just a prefix sees itself."""
    seen = weights.nan_to_num().reshape(-1, *weights.shape[-2:]).amax(0) > 1e-6
    last = int(seen.any(0).nonzero().amax()) if seen.any() else 0
    if last and bool(seen[last - 1, last]):
        yield node, not bool(seen.triu(2).any())


def swaps(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Return whether a view has the shape of a transpose: ``(b, a, ...)``, or ``(b, a * c)``, of ``(a, b, c)``."""
    if len(before) < 2 or before[0] == before[1] or 1 in before[:2]:
        return False
    joined = (before[1], before[0] * math.prod(before[2:]))
    return after == (before[1], before[0], *before[2:]) or after == joined


def mixes_channels(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Return whether a view makes ``(b, c, h, w)`` of ``(b, h, w, c)`` without a permutation."""
    if len(before) != 4 or before[3] in (1, *before[1:3]) or before[1] * before[2] == 1:
        return False
    return after == (before[0], before[3], *before[1:3])


def mixes_heads(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Return whether a view makes ``(b, heads, t, d)`` of ``(b, t, c)``, or the other way, without a transpose."""
    joined, parts = (before, after) if len(before) == 3 else (after, before)
    if len(joined) != 3 or len(parts) != 4 or 1 in parts[1:3] or parts[1] == parts[2]:
        return False
    return joined == (parts[0], parts[2], parts[1] * parts[3])


def mixes_steps(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Return whether a view makes ``(b, w, c * h)`` of ``(b, c, h, w)``, or ``(b, t, c)`` of ``(b, c, t)``."""
    is_turned = len(before) > 2 == len(after) - 1 and after == (before[0], before[-1], math.prod(before[1:-1]))
    return is_turned and min(after[1:]) > 1 and after[1] not in (before[1], after[2])


def leads(batch: int, before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Return whether a view puts the batch first, which was behind dimensions that no part of it can be in."""
    if batch < 2 or after[:1] != (batch,) or before.count(batch) != 1 or after.count(batch) != 1:
        return False
    ahead = math.prod(before[: before.index(batch)])
    return ahead > 1 and ahead % batch != 0


def leaves_out_the_last(loss: Loss, length: int) -> bool:
    """Return whether a loss takes all positions but the last: then the first target is the second position."""
    cut = [one for one in loss.of_kinds(("SliceBackward",)) if length in tuple(one._saved_self_sym_sizes)[:2]]
    kept = [one for one in cut if one._saved_dim < 2 and one._saved_self_sym_sizes[one._saved_dim] == length]
    return bool(kept) and all(one._saved_start == 0 and one._saved_end in (length - 1, (1 << 64) - 1) for one in kept)


def predicts_each(loss: Loss, ids: torch.Tensor) -> bool:
    """Return whether a linear layer computes the scores of each word from what belongs to its position."""
    given: Any = next(map(input_of, loss.of_kinds(("LogSoftmaxBackward",))), None)
    given = input_of(given) if node_kind(given) == "AddBackward" else given  # of the bias
    repeats = [*loss.of_kinds(("ExpandBackward", "RepeatBackward"))]
    shapes = [(shape_of(one), tuple(one._saved_self_sym_sizes)) for one in repeats]
    is_layer = node_kind(given) in ("AddmmBackward", "MmBackward") and shape_of(given)[0] == ids.numel()
    pairs = [one for one in loss.of_kinds(("CatBackward",)) if len(one.next_functions) == 2 and dim_of(one) < 2]
    longer = [shape_of(one)[dim_of(one)] - ids.shape[dim_of(one)] for one in pairs]  # an image comes before its caption
    is_layer = is_layer and {0, 1}.isdisjoint(longer)
    return is_layer and all(after[:2] != tuple(ids.shape) or before == after for after, before in shapes)


def numbered(series: torch.Tensor | None) -> list[torch.Tensor]:
    """Return a number for each position of some series of numbers, and 0 for one with only zeros."""
    if series is None or series.dim() != 3:
        return []
    return [(series != 0).any(-1).long() * (torch.arange(series.shape[1], device=series.device) % 7 + 1)]


def is_shifted(given: torch.Tensor, values: torch.Tensor, dim: int = 1) -> bool:
    """Return whether some values are others shifted by one along a dimension, but for those ignored, by -1 or -100."""
    later, length = given.narrow(dim, 1, given.shape[dim] - 1), given.shape[dim]
    cut = values.numel() == later.numel()
    if length < 3 or not (cut or values.numel() == given.numel()):
        return False
    aligned = values.reshape(later.shape if cut else given.shape)
    first = aligned.narrow(dim, 0, length - 1)
    ignored = (first < 0) & (first.dtype == torch.long)  # as padding is
    is_later = torch.equal(first.where(~ignored, later), later) and bool(ignored.float().mean() < 0.75)
    return is_later and (cut or not torch.equal(aligned, given))


def padding_of(ids: torch.Tensor) -> int | None:
    """Return the number that fills the ends of rows of different lengths, and occurs nowhere else."""
    if ids.dim() != 2 or ids.shape[0] < 2 or ids.shape[1] < 3:
        return None
    value = int(ids[:, -1].mode().values)
    filled = ids == value
    lengths = (~filled).sum(1)
    runs = torch.arange(ids.shape[1], device=ids.device) >= lengths[:, None]
    several = distinct(lengths) > 1 and distinct(ids[~filled]) > 2
    many = 2 * int(filled[:, -1].sum()) >= len(ids) and int((~filled).sum(1).min()) + 2 <= ids.shape[1]
    return value if value >= 0 and several and many and bool((filled == runs).all()) else None
