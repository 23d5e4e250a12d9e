"""Sequences: samples that mix, a future that leaks, padding that is learned, and masks that are inverted."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from byname.autograd.slots import held_by_nodes
from byname.diagnose.causes.loss import Loss
from byname.diagnose.followed_optimizer import FollowedOptimizer
from byname.diagnose.nonfinite.reasons import looking
from byname.diagnose.silent.topic import HeardCall, Topic, distinct, row, values_of
from byname.reading.frames import Line
from byname.reading.objects import attributes_of

# fmt: off
VIEW_MIXES = row("view-mixes",
    "a view{noticed:at} gives values of shape {before} the shape {after}: it deals them out anew in the order of "
    "memory, and does not transpose: samples mix, and the output of one depends on others",
    "swap the dimensions: x.transpose(0, 1), then reshape what follows")
SOFTMAX_MIXES = row("softmax-over-batch",
    "suspicious: softmax{noticed:at} is over dimension 0 of shape {shape}, which is the batch: the weights of each "
    "sample depend on the other samples",
    "take the softmax over another dimension, such as dim=1 or dim=-1")
LAYER_MIXES = row("batch-as-time",
    "{kind} is given values of shape {shape}{noticed:at}, and takes the first dimension for the time: it is the batch, "
    "so that samples mix and each depends on others",
    "{kind}(..., batch_first=True), or transpose(0, 1) before and after it")
FUTURE_LEAKS = row("future-leak",
    "the targets{shifted:at} are the inputs shifted by one, and {what}{noticed:at} lets a position see later ones: it "
    "sees the next token, its own target{how}", "{remedy}")
PADDING_LEARNED = row("loss-over-padding",
    "suspicious: the mean of cross_entropy(){noticed:at} takes in the padding: {padded} of {all} targets are {value}, "
    "which fills the ends of the inputs, too", "cross_entropy(..., ignore_index={value})")
MASK_INVERTED = row("mask-inverted",
    "suspicious: the mask{noticed:at} keeps only the positions of padding, at which the {of} is {value}, and leaves "
    "out all others: it seems to be inverted", "negate it: ~mask, or != in place of ==")
# fmt: on

_STEPS = 2
"""Steps in which sequences are looked at."""
_BY_TIME = (nn.RNNBase, nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
_MASKS = ("key_padding_mask", "src_key_padding_mask", "memory_key_padding_mask", "tgt_key_padding_mask")
_CAUSAL = "give the attention a causal mask: is_causal=True, or a mask from torch.triu(..., diagonal=1)"
_DIAGONAL = "the diagonal of the mask is off by one: tril() keeps it, and triu(diagonal=1) is what lies above it"


class _Layer(NamedTuple):
    """A recurrent or attending module that was called: its class, the shape it was given, and the line."""

    kind: str
    shape: tuple[int, ...]
    batch_first: bool
    bidirectional: bool
    line: Line


class Sequences(Topic):
    """Watches the inputs, targets and graphs of the first steps. What it copies, it drops after them."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._shape: tuple[int, ...] = ()
        self._ids: list[torch.Tensor] = []
        self._layers: list[_Layer] = []
        self._batch = 0
        self._shifted: Line | None = None
        self._length = 0
        self._targets: list[torch.Tensor] = []

    @property
    def _looks(self) -> bool:
        return self._watch.made < _STEPS and torch.is_grad_enabled()

    def ran(self, call: HeardCall) -> None:
        """Note the inputs of the outermost modules, and the layers that know a time."""
        given = call.tensors if self._looks else []
        if given and not call.depth:
            self._shape, self._layers, self._batch = tuple(given[0].shape), [], 0
            words = [one for one in given if one.dtype == torch.long and one.dim() == 2]
            self._ids = [values for one in words if (values := values_of(one)) is not None]
        if given and issubclass(type(call.called), _BY_TIME):
            own = attributes_of(call.called)
            is_first = attributes_of(own["_modules"].get("self_attn", call.called)).get("batch_first")
            facts = tuple(given[0].shape), bool(is_first), bool(own.get("bidirectional")), call.line
            self._layers.append(_Layer(type(call.called).__name__, *facts))
        for mask in (values_of(call.kwargs.get(name)) for name in (_MASKS if given and call.kwargs else ())):
            if mask is not None and mask.dtype == torch.bool:
                self._compare(~mask, call.line.site)

    def heard(self, call: HeardCall) -> None:
        """Compare the targets of a loss with the inputs."""
        target = call.targets if self._looks else None
        if target is None or not self._shape:
            return
        per_sample = target.dim() == 1 or (target.dim() == 2 and target.shape[1:] != self._shape[1:2])
        if len(self._shape) > 1 and per_sample and len(target) == self._shape[0] == call.given(0, "input").shape[0]:
            self._batch = self._shape[0]
        values, reduction = values_of(target), call.kwargs.get("reduction", "mean")
        if values is None or values.dtype != torch.long:
            return
        self._targets += [values] if reduction == "none" else []
        for ids in [one for one in self._ids if one.numel() == values.numel() and one.shape[1] > 2]:
            aligned = values.reshape(ids.shape)
            if torch.equal(aligned[:, :-1], ids[:, 1:]) and distinct(ids) > 2 and not torch.equal(aligned, ids):
                alone = [one.shape[1] for one in self._ids].count(
                    ids.shape[1]
                ) == 1  # else attention may be to the other
                self._shifted, self._length = (call.line, ids.shape[1]) if alone else (None, 0)
            takes_all = call.kwargs.get("ignore_index", -100) < 0 and call.kwargs.get("weight") is None
            if call.called is F.cross_entropy and reduction == "mean" and takes_all:
                self._look_for_padding(ids, aligned, call.line)

    def _look_for_padding(self, ids: torch.Tensor, target: torch.Tensor, line: Line) -> None:
        value, count = _padding(ids), target.numel()
        padded = 0 if value is None else int((target == value).sum())
        if padded >= 0.15 * count and bool((target[ids.eq(value or 0)].eq(value or 0)).all()):
            self.say(PADDING_LEARNED, line.site, padded=padded, all=count, value=value)

    def backward(self, loss: Loss) -> None:
        """Look at the graph of the first losses."""
        if not self._looks:
            return
        with looking():
            self._look_at_views(loss)
            self._look_at_softmaxes(loss)
            if self._shifted is not None:
                self._look_for_the_future(loss, self._shifted)
            if self._targets or self._ids:
                self._look_at_masks(loss)
        for layer in self._layers if self._batch > 1 else ():
            if len(layer.shape) == 3 and not layer.batch_first and layer.shape[0] == self._batch != layer.shape[1] > 1:
                self.say(LAYER_MIXES, layer.line.site, kind=layer.kind, shape=str(layer.shape))

    def before_step(self, followed: FollowedOptimizer) -> None:
        """Forget what was copied."""
        self._targets, self._ids, self._shifted = [], [], None

    def _look_at_views(self, loss: Loss) -> None:
        for node in loss.of_kinds(("ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward")):
            before, after = tuple(node._saved_self_sym_sizes), tuple(node._input_metadata[0].shape)
            call, leading = loss.context.lookup.call(node), self._shape[:2]
            is_batch = (self._batch,) == before[1:2] == after[:1] != before[:1]
            is_known = is_batch or leading in (before[:2], after[:2])
            if call is not None and not call.inside and is_known and _swaps(before, after):
                self.say(VIEW_MIXES, loss.site(node), before=str(before), after=str(after))

    def _look_at_softmaxes(self, loss: Loss) -> None:
        for node in loss.of_kinds(("SoftmaxBackward",)):
            shape, dim = tuple(node._input_metadata[0].shape), int(node._saved_dim)
            is_first = dim in (0, (1 << 64) - len(shape)) and len(shape) > 1
            if is_first and shape[0] == self._batch > 1 and self._batch not in shape[1:]:
                self.say(SOFTMAX_MIXES, loss.site(node), shape=str(shape))

    def _look_for_the_future(self, loss: Loss, shifted: Line) -> None:
        for node, is_next in _seeing_later(loss, self._length):
            how, remedy = (", and no further ones", _DIAGONAL) if is_next else ("", _CAUSAL)
            facts = {"what": "attention", "shifted": shifted.site, "how": how, "remedy": remedy}
            self.say(FUTURE_LEAKS, loss.site(node), **facts)
        for layer in self._layers:
            if layer.bidirectional:
                facts = {"what": f"a bidirectional {layer.kind}", "how": "", "remedy": "leave out bidirectional=True"}
                self.say(FUTURE_LEAKS, layer.line.site, shifted=shifted.site, **facts)

    def _look_at_masks(self, loss: Loss) -> None:
        kinds = ("WhereBackward", "MulBackward", "IndexBackward", "MaskedSelectBackward", "MaskedFillBackward")
        for node, slot, held in held_by_nodes(list(loss.of_kinds(kinds))):
            if slot in ("condition", "other", "self", "indices[0]", "mask") and held.numel() <= 1 << 16:
                kept = held.detach().bool()
                if torch.equal(kept.to(held.dtype), held.detach()):
                    self._compare(~kept if "Fill" in type(node).__name__ else kept, loss.site(node))

    def _compare(self, kept: torch.Tensor, site: Any) -> None:
        known = [("target", one) for one in self._targets] + [("input", one) for one in self._ids]
        for of, values in known:
            value = _padding(values) if kept.numel() == values.numel() else None
            if value is not None and kept.squeeze().shape == values.shape:
                with looking():
                    kept = kept.cpu().reshape(values.shape)
                    only = bool(kept.any()) and bool((values[kept] == value).all()) and distinct(values[~kept]) > 2
                if only:
                    self.say(MASK_INVERTED, site, of=of, value=value)


def _padding(ids: torch.Tensor) -> int | None:
    """Return the number that fills the ends of rows of different lengths, and that stands nowhere else."""
    if ids.dim() != 2 or ids.shape[0] < 2 or ids.shape[1] < 3:
        return None
    value = int(ids[:, -1].mode().values)
    filled = ids == value
    lengths = (~filled).sum(1)
    runs = torch.arange(ids.shape[1]) >= lengths[:, None]
    several = distinct(lengths) > 1 and distinct(ids[~filled]) > 2
    many = 2 * int(filled[:, -1].sum()) >= len(ids) and int((~filled).sum(1).min()) + 2 <= ids.shape[1]
    return value if value >= 0 and several and many and bool((filled == runs).all()) else None


def _swaps(before: tuple[int, ...], after: tuple[int, ...]) -> bool:
    """Return whether a view has the shape of a transpose: ``(b, a, ...)``, or ``(b, a * c)``, of ``(a, b, c)``."""
    if len(before) < 2 or before[0] == before[1] or 1 in before[:2]:
        return False
    joined = (before[1], before[0] * math.prod(before[2:]))
    return after == (before[1], before[0], *before[2:]) or after == joined


def _seeing_later(loss: Loss, length: int) -> Iterator[tuple[Any, bool]]:
    """Yield the nodes of attention in which a position gets something from later ones, and whether of the next only."""
    for node, slot, held in held_by_nodes(list(loss.of_kinds(("SoftmaxBackward", "SafeSoftmaxBackward")))):
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
    """Yield the node if there are weights above the diagonal, and whether they are all next to it."""
    later, far = (float(torch.triu(weights, number).nan_to_num().max()) > 1e-6 for number in (1, 2))
    if later:
        yield node, not far
