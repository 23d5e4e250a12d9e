"""Sequences: samples that mix, positions that see the future, padding in the loss, and inverted masks."""

from __future__ import annotations

import math
import re
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn

from byname.autograd.slots import held_by_nodes
from byname.diagnose.cause import Cause, variable
from byname.diagnose.causes.loss import Loss, dim_of, input_of, node_kind, shape_of, summed
from byname.diagnose.followed_optimizer import FollowedOptimizer
from byname.diagnose.nonfinite.reasons import reading_values, sum_of
from byname.diagnose.silent import mixing
from byname.diagnose.silent.topic import ObservedCall, Topic, Watch, copy_values, distinct, topic_cause
from byname.reading.frames import Line
from byname.reading.objects import attributes_of
from byname.reading.tensor import fact
from byname.source.location import is_library
from byname.source.tracebacks import walk_frames
from byname.tracking.lookup import site_of_tensor


def _view_mixes(effect: str, remedy: str) -> Cause[Any]:
    return topic_cause(
        "view-mixes",
        "a view{noticed:at} gives values of shape {before} the shape {after}: it fills the new shape in the order of "
        f"memory, and does not transpose: {effect}",
        remedy,
    )


# fmt: off
VIEW_MIXES = _view_mixes("samples mix, and the output of one depends on others",
    "swap the dimensions: x.transpose(0, 1), then reshape what follows")
HEADS_MIX = _view_mixes("the heads of attention get values of several positions mixed",
    "x.view(batch, length, heads, -1).transpose(1, 2) makes heads; transpose(1, 2) before the view joins them again")
IMAGE_MIXES = _view_mixes("each channel of an image gets values of all channels, and of other pixels",
    "permute(0, 3, 1, 2) moves the channels in front")
CLASSES_MIX = _view_mixes(
    "cross_entropy takes the classes from dimension 1, and gets scores of several positions there",
    "x.transpose(1, 2) puts the classes there")
STEPS_MIX = _view_mixes("each step of a sequence gets values of several steps, or columns",
    "move the dimension of the steps first: x.transpose(1, 2), or permute(0, 3, 1, 2) of images, and then reshape")
SOFTMAX_MIXES = topic_cause("softmax-over-batch",
    "suspicious: {what}{noticed:at} is over dimension 0 of shape {shape}, which is the batch: what each sample gets "
    "depends on the other samples",
    "take it over other dimensions, such as dim=1 or dim=-1")
BATCH_STATISTIC = topic_cause("samples-mix",
    "suspicious: {what}(){made:at} is taken over all samples of the batch, shape {shape}, and each sample is combined "
    "with it{noticed:at}: what one gives depends on the others, in evaluation, too",
    "take it over the other dimensions, such as dim=-1, or use a batch norm, which keeps averages for the evaluation")
LAYER_MIXES = topic_cause("batch-as-time",
    "{kind} is given values of shape {shape}{noticed:at}, and treats the first dimension as the time: it is the batch, "
    "so that samples mix and each depends on others",
    "{kind}(..., batch_first=True), or transpose(0, 1) before and after it")
POSITIONS_MIX = topic_cause("positions-along-the-batch",
    "suspicious: the positions that are added{noticed:at} to values of shape {shape} are numbered along the first "
    "dimension, which is the batch", "number them along dim=1: self.pe[:, : x.size(1)], with a table (1, n, d)")
FUTURE_LEAKS = topic_cause("future-leak",
    "the targets{shifted:at} are the inputs shifted by one, and {what}{noticed:at} lets a position see later ones: it "
    "sees the next one, its own target{how}", "{remedy}")
ENDS_WITH_TARGET = topic_cause("future-leak",
    "suspicious: the targets of {loss}(){noticed:at} begin with the last values of the series that the model is given: "
    "it sees what it must predict", "end the inputs one before: x = series[i : i + n], and targets from i + n on")
NOT_SHIFTED = topic_cause("target-not-shifted",
    "suspicious: the targets of {loss}(){noticed:at} are the inputs themselves, and each position sees itself "
    "and what comes before it: it is given the word that it must predict",
    "shift them by one: inputs ids[:, :-1], targets ids[:, 1:]")
SHIFTED_TWICE = topic_cause("target-not-shifted",
    "suspicious: the targets{noticed:at} are the labels that the model is given, shifted by one, and these are its "
    "inputs, shifted by one already: each position predicts the word after the next",
    "shift once: labels=input_ids for a model that shifts them itself, as those of transformers do")
COPIES_WORDS = topic_cause("mask-inverted",
    "suspicious: the targets of {loss}(){noticed:at} that count are the inputs at their own positions, and those where "
    "the input is {value} instead, inside of the rows, are ignored: no masked word is ever predicted",
    "ignore all others: labels[~masked] = -100")
WRONG_BROADCAST = topic_cause("mask-inverted",
    "the mask of the padding, shape {shape}, is broadcast{noticed:at} to {all}: the samples of the batch become the "
    "positions there, since there are as many", "give it the missing dimension: mask[:, None, :] masks keys")
PADDING_LEARNED = topic_cause("loss-over-padding",
    "suspicious: the mean{of}{noticed:at} includes the padding: {padded} of {all} targets are {value}, which fills the "
    "ends of the inputs, too", "ignore_index={value} in cross_entropy() or nll_loss(); in others, reduction='none' and "
    "a mask of what is not padding: (loss * mask).sum() / mask.sum()")
MASK_INVERTED = topic_cause("mask-inverted",
    "suspicious: the mask{noticed:at} keeps only the positions of padding, at which the {of} is {value}, and leaves "
    "out all others: it seems to be inverted", "negate it: ~mask, or != in place of ==")
MASK_ADDED = topic_cause("mask-without-effect",
    "suspicious: the {name} of {kind}{noticed:at} has the numbers 0 and 1: a mask of numbers is added to the scores, "
    "and leaves nothing out", "give it a mask of bool, True where nothing is to be seen, or one of 0 and -inf")
# fmt: on

_STEPS, _MASKED, _SAMPLES = 2, 8, 4
"""Steps of a training in which sequences are looked at; the fewest masked words; more samples than these are not equal
by chance."""
_BY_TIME = (nn.RNNBase, nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerDecoderLayer)
_MASKS = ("key_padding_mask", "src_key_padding_mask", "memory_key_padding_mask", "tgt_key_padding_mask")
_ADDED = ("attn_mask", "mask", "src_mask", "tgt_mask")
_WEIGHTS = {"attn_mask": -math.inf, "attn_bias": -math.inf, "result": 0.0}
_FOURIER = ("FftC2CBackward", "FftR2CBackward")
_FOR_EACH = {"NllLossBackward": "target", "NllLoss2DBackward": "target", "GatherBackward": "index"}
"""Nodes of losses that give a number for each position, and the slot of their targets."""
_CAUSAL = "give the attention a causal mask: is_causal=True, or a mask from torch.triu(..., diagonal=1)"
_PADDED_BEFORE = "pad the beginning only: F.pad(x, (kernel_size - 1, 0)), and padding=0"
_DIAGONAL = "the diagonal of the mask is off by one: tril() keeps it, and triu(diagonal=1) is what lies above it"


class _Layer(NamedTuple):
    """A recurrent or attending module that was called: its class, the shape it was given, and the line."""

    kind: str
    shape: tuple[int, ...]
    batch_first: bool
    joins: int  # how many of its layers join what two directions give
    line: Line
    number: int  # of the node that made what it was given


class Sequences(Topic):
    """Watches the inputs, targets and graphs of the first steps. What it copies, it drops after them."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._shape: tuple[int, ...] = ()
        self._turned: tuple[int, ...] = ()  # the first two dimensions of inputs that were made one, the other way round
        self._ids: list[torch.Tensor] = []
        self._series: torch.Tensor | None = None  # of numbers, and where it is padded
        self._filled: list[torch.Tensor] = []
        self._cut = False
        self._layers: list[_Layer] = []
        self._batch = 0
        self._several, self._is_graph = 0, False
        self._shifted: tuple[Line, torch.Tensor, bool] | None = None  # the inputs, and whether there are no others
        self._length = self._ends = 0  # and the losses whose targets begin with the end of a series
        self._copied: tuple[Line, str, torch.Tensor] | None = None  # the inputs that are the targets
        self._sums: dict[int, float] = {}  # of the inputs of the first steps
        self._targets: list[torch.Tensor] = []

    @property
    def _is_active(self) -> bool:
        return self._watch.steps - self._watch.began < _STEPS and torch.is_grad_enabled()

    def ran(self, call: ObservedCall) -> None:
        """Note the inputs of outermost modules, and recurrent or attending layers; look at views and masks."""
        given = call.tensors if self._is_active else []
        several = {id(one): one for one in given}.values()
        words = [one for one in several if one.dtype == torch.long and one.dim() == 2]
        if given and not call.depth:
            self._shape, self._layers, self._batch, self._turned = tuple(given[0].shape), [], 0, ()
            self._sums.setdefault(self._watch.steps, sum_of(given[0]))
            self._is_graph = bool(self._shape) and any(_connects(one, self._shape[0]) for one in given[1:])
        if given and not call.depth and (words or fact(given[0], "grad_fn") is None):  # else a forward goes on
            self._ids = [values for one in words if (values := copy_values(one)) is not None]
            self._several = len(several)
            numbers = [one for one in several if one.is_floating_point() and one.dim() in (2, 3)]
            self._series = copy_values(numbers[0]) if len(numbers) == 1 else None
            self._filled = mixing.numbered(self._series)
        if given and issubclass(type(call.called), _BY_TIME):
            own = attributes_of(call.called)
            is_first = attributes_of(own["_modules"].get("self_attn", call.called)).get("batch_first")
            joins = own["num_layers"] if own.get("bidirectional") else 0
            facts = tuple(given[0].shape), bool(is_first), joins, call.line
            node: Any = fact(given[0], "grad_fn")
            self._layers.append(_Layer(type(call.called).__name__, *facts, -1 if node is None else node._sequence_nr()))
        for one in given:
            self._look_at_view_of_input(one)
        for name in (*_MASKS, *_ADDED) if given and call.kwargs else ():
            mask, kind = copy_values(call.kwargs.get(name)), type(call.called)
            if mask is not None and mask.is_floating_point() and {*mask.flatten().tolist()} == {0.0, 1.0}:
                if kind.__module__.startswith("torch.nn.") and not is_library(getattr(call.line.site, "file", "")):
                    self.report(MASK_ADDED, call.line.site, name=variable(name), kind=kind.__name__)
            elif mask is not None and mask.dtype == torch.bool and name in _MASKS:
                self._compare(~mask, call.line.site)

    def _look_at_view_of_input(self, given: torch.Tensor) -> None:
        """Look at what a module is given, if it is a view of all values of a tensor without a graph."""
        base = fact(given, "_base")
        before, after = () if base is None else tuple(base.shape), tuple(given.shape)
        before = before and (before if base.numel() == given.numel() else (*after[:1], *before[1:]))  # some samples
        if base is None or fact(given, "requires_grad") or math.prod(before) != given.numel():
            return
        in_order = base.is_contiguous() and given.is_contiguous()  # which no transpose leaves so
        if in_order and before[:2] == self._shape[:2] and after[0] == math.prod(before[:2]):
            self._turned = before[1::-1]
        if in_order and mixing.mixes_channels(before, after):
            self.report(IMAGE_MIXES, site_of_tensor(given), before=str(before), after=str(after))
        if in_order and self._shape[:2] in (before[:2], after[:2]) and mixing.swaps(before, after):
            self.report(VIEW_MIXES, site_of_tensor(given), before=str(before), after=str(after))

    def applied(self, call: ObservedCall) -> None:
        """Compare the targets of a loss with the inputs."""
        target = call.targets if self._is_active else None
        if target is None or not self._shape:
            return
        per_sample = target.dim() == 1 or (target.dim() == 2 and target.shape[1:] != self._shape[1:2])
        is_batch = len(self._shape) > 1 and per_sample and not self._is_graph
        if is_batch and len(target) == self._shape[0] == call.given(0, "input").shape[0]:
            self._batch = self._shape[0]
        values, reduction = copy_values(target), call.kwargs.get("reduction", "mean")
        if values is None:
            return
        series = [self._series] if self._series is not None and values.is_floating_point() else []
        for given in [*self._ids, *series] if values.dtype == torch.long or series else ():
            self._look_for_shift(given, values, call.line)
        for one in [one for one in series if one.dim() == 3 and len(one) == len(values) > _SAMPLES]:
            first, ends = values.reshape(len(values), -1)[:, 0], one[:, -1].unbind(1)
            is_end = values.numel() < one.numel() and distinct(first) > _SAMPLES and not _speaks_of_copies(call.frame)
            self._ends += is_end and any(torch.equal(first, end) for end in ends)
            if self._ends == _STEPS:
                self.report(ENDS_WITH_TARGET, call.line.site, loss=call.called.__name__)
        of = f" of {call.called.__name__}()"
        for filled in self._filled if series and reduction == "mean" else ():
            if values.numel() == filled.numel():
                self._look_for_padding(filled, values.reshape(filled.shape), call.line.site, of)
        if values.dtype != torch.long:
            self._targets += mixing.numbered(values) if reduction == "none" else []
            return
        is_of_words = call.called in (F.cross_entropy, F.nll_loss)
        if is_of_words and self._ids and distinct(values) > 2:
            kept = values.flatten() >= 0  # others are ignored, as padding is, by -1 or -100
            every = [one for one in self._ids if one.numel() == values.numel()]
            same = [one for one in every if torch.equal(one.flatten()[kept], values.flatten()[kept])]
            for ids in [one for one in same if int(one.min()) >= 0][:1]:  # else labels that the model is given, too
                self._look_for_copied_words(ids, kept.reshape(ids.shape), call)
            is_copied = same and kept.float().mean() > 0.25 and not _speaks_of_copies(call.frame)
            self._copied = (call.line, call.called.__name__, same[0]) if is_copied else None
        self._targets += [values] if reduction == "none" else []
        for ids in [one for one in self._ids if one.shape[1] > 2]:
            rows = next((one for one in (ids, ids[:, 1:]) if one.numel() == values.numel()), None)
            takes_all = call.kwargs.get("ignore_index") != mixing.padding_of(ids) and call.kwargs.get("weight") is None
            if rows is not None and is_of_words and reduction == "mean" and takes_all:
                self._look_for_padding(rows, values.reshape(rows.shape), call.line.site, of)

    def _look_for_copied_words(self, ids: torch.Tensor, kept: torch.Tensor, call: ObservedCall) -> None:
        """Report targets that are ignored where a word of the inputs was masked, and nowhere else."""
        ignored, is_inside = ids[~kept], ~kept & (kept.flip(1).cumsum(1).flip(1) > 0)
        value = int(ignored.mode().values) if len(ignored) else -1
        is_masked = 2 * int((is_inside & (ids == value)).sum()) > len(ignored) >= _MASKED
        if is_masked and not bool((ids[kept] == value).any()):
            self.report(COPIES_WORDS, call.line.site, loss=call.called.__name__, value=value)

    def _look_for_shift(self, given: torch.Tensor, values: torch.Tensor, line: Line) -> None:
        """Note that the targets are the inputs shifted by one along a dimension, at a line."""
        same = [one for one in self._ids if torch.equal(one.flatten(), values.flatten())]  # forward(x, targets)
        alone = self._several - len(same) == 1 or given is self._series
        is_first = self._shifted is None or self._shifted[0].place == line.place  # of several losses
        for dim, length in enumerate(given.shape) if is_first and distinct(given) > 2 else ():
            if (dim or given is not self._series) and mixing.is_shifted(given, values, dim):
                self._shifted, self._length, self._cut = (line, given, alone), length, values.numel() < given.numel()

    def _look_for_padding(self, ids: torch.Tensor, target: torch.Tensor, site: Any, of: str = "") -> None:
        value, count = mixing.padding_of(ids), target.numel()
        padded = 0 if value is None else int((target == value).sum())
        if padded >= 0.15 * count and bool((target[ids.eq(value or 0)].eq(value or 0)).all()):
            self.report(PADDING_LEARNED, site, padded=padded, all=count, value=value, of=of)

    def backward(self, loss: Loss) -> None:
        if not self._is_active:
            return
        with reading_values():
            self._look_at_views(loss)
            self._look_at_softmaxes(loss)
            self._look_at_means(loss)
            now, began = self._watch.steps, self._watch.began
            if now > began and self._sums.get(began) != self._sums.get(now):  # no whole graph each time
                self._look_at_statistics(loss)
            if self._shifted is not None and (not self._cut or mixing.leaves_out_the_last(loss, self._length)):
                self._look_for_the_future(loss, *self._shifted)
            for line, what, ids in [self._copied] if self._copied is not None else ():
                if mixing.predicts_each(loss, ids) and self._sees_the_past(loss, ids):
                    self.report(NOT_SHIFTED, line.site, loss=what)
            if self._targets or self._ids or self._filled:
                self._look_at_masks(loss)
        first = [one.shape for one in self._layers if one.batch_first or one.shape[:1] == (self._batch,)]
        for node in mixing.positions_by_sample(loss, [one for one in first if len(one) == 3 and one[0] != one[1]]):
            self.report(POSITIONS_MIX, loss.site(node), shape=str(shape_of(node)))
        for layer in self._layers if self._batch > 1 else ():
            if len(layer.shape) == 3 and not layer.batch_first and layer.shape[0] == self._batch != layer.shape[1] > 1:
                self.report(LAYER_MIXES, layer.line.site, kind=layer.kind, shape=str(layer.shape))

    def before_step(self, followed: FollowedOptimizer) -> None:
        self._targets, self._ids, self._shifted, self._series, self._filled = [], [], None, None, []
        self._copied = None

    def _look_at_views(self, loss: Loss) -> None:
        for node in loss.of_kinds(("ViewBackward", "UnsafeViewBackward", "ReshapeAliasBackward")):
            before, after = tuple(node._saved_self_sym_sizes), shape_of(node)
            call, leading = loss.call(node), self._shape[:2]
            is_batch = (self._batch,) == before[1:2] == after[:1] != before[:1]
            is_known = is_batch or leading in (before[:2], after[:2])
            is_turned = self._turned != leading and (after[:2], before[0]) == (self._turned, math.prod(leading))
            is_turned = is_turned or mixing.leads(self._batch, before, after)
            scores = [one.next_functions[0][0] for one in loss.of_kinds(("LogSoftmaxBackward",)) if dim_of(one) == 1]
            numbers = [one.number for one in self._layers]
            found = {
                VIEW_MIXES: is_turned or (is_known and mixing.swaps(before, after)),
                IMAGE_MIXES: mixing.mixes_channels(before, after),
                CLASSES_MIX: node in scores and len(after) == 3 and mixing.swaps(before[1:], after[1:]),
                HEADS_MIX: mixing.mixes_heads(before, after) and mixing.attending(loss, before[-2]),
                STEPS_MIX: node._sequence_nr() in numbers and mixing.mixes_steps(before, after),
            }
            for cause in [one for one, holds in found.items() if holds and call is not None and not call.inside]:
                self.report(cause, loss.site(node), before=str(before), after=str(after))

    def _look_at_softmaxes(self, loss: Loss) -> None:
        found = [("softmax", node, int(node._saved_dim)) for node in loss.of_kinds(("SoftmaxBackward",))]
        found += [("log_softmax", node, int(node._saved_dim)) for node in loss.of_kinds(("LogSoftmaxBackward",))]
        found += [("a softmax by hand", node, dim) for node in loss.of_kinds(("DivBackward",)) for dim in summed(node)]
        found += [("a Fourier transform", node, dim) for node in loss.of_kinds(_FOURIER) for dim in node._saved_dim]
        for what, node, dim in found:
            shape = shape_of(node)
            is_first = dim in (0, (1 << 64) - len(shape)) and math.prod(shape[1:]) > 1  # else of a list of scores
            if is_first and shape[0] == self._batch > 1 and self._batch not in shape[1:]:
                self.report(SOFTMAX_MIXES, loss.site(node), shape=str(shape), what=what)

    def _look_at_statistics(self, loss: Loss) -> None:
        """Look for samples that a module combines with a number of the whole batch, in front of a layer."""
        shapes = [tuple(node._saved_input.shape) for node in loss.of_kinds(("ConvolutionBackward",))]
        batch = self._batch or (self._shape[0] if len(self._shape) == 4 or self._shape in shapes else 0)  # of images
        is_first = batch > 1 and self._shape[:2].count(batch) == 1
        for node, statistic in mixing.statistics_in(loss, batch) if is_first else ():
            what = node_kind(statistic).removesuffix("Backward").removeprefix("LinalgVector").lower()
            made = loss.site(statistic)
            shape = shape_of(statistic.next_functions[0][0])
            self.report(BATCH_STATISTIC, loss.site(node), what=what, made=made, shape=str(shape))

    def _look_at_means(self, loss: Loss) -> None:
        """Look for a mean over all positions of a loss that is computed for each of them."""
        for node in loss.of_kinds(("MeanBackward",) if self._ids else ()):
            given = input_of(node)
            while node_kind(given) in ("NegBackward", "SelectBackward"):
                given = input_of(given)
            for _, slot, held in held_by_nodes([given] if node_kind(given) in _FOR_EACH else []):
                for ids in self._ids if slot == _FOR_EACH[node_kind(given)] else ():
                    if held.numel() == ids.numel() and (target := copy_values(held)) is not None:
                        self._look_for_padding(ids, target.reshape(ids.shape), loss.site(node))

    def _look_for_the_future(self, loss: Loss, shifted: Line, given: torch.Tensor, alone: bool) -> None:
        """Tell of what sees later positions of the shifted inputs; an encoder may see all of its own."""
        if given is not self._series and any(mixing.is_shifted(one, given) for one in self._ids):
            self.report(SHIFTED_TWICE, shifted.site)
        known = mixing.computed_from(loss, given)
        known = {*loss.context.nodes} if known is None and alone else known or set()
        for node, is_next in mixing.seeing_later(loss, self._length):
            how, remedy = (", and no further ones", _DIAGONAL) if is_next else ("", _CAUSAL)
            facts = {"what": "attention", "shifted": shifted.site, "how": how, "remedy": remedy}
            if mixing.compares_only(node, known) and not mixing.is_summed_up(loss, node, self._length):
                self.report(FUTURE_LEAKS, loss.site(node), **facts)
        for node in known.intersection(loss.of_kinds(("ConvolutionBackward",))):
            shape, padding = shape_of(node), tuple(node._saved_padding)
            is_long = len(shape) == 3 and shape[2] == self._length and not node._saved_transposed
            if is_long and mixing.reaches_later(node) and not mixing.is_summed_up(loss, node, self._length):
                facts = {"what": f"a convolution with padding={padding[0]}", "how": "", "remedy": _PADDED_BEFORE}
                self.report(FUTURE_LEAKS, loss.site(node), shifted=shifted.site, **facts)
        numbers = {-1 if alone else -2, *(one._sequence_nr() for one in known)}
        joined = [{*shape_of(one)[:2]} for one in loss.of_kinds(("CatBackward",))]
        for layer in [one for one in self._layers if one.joins and one.number in numbers]:
            is_used = joined.count({*layer.shape[:2]}) >= layer.joins  # and not only its last state
            if not is_used and "CudnnRnnBackward" not in loss.nodes:
                continue
            facts = {"what": f"a bidirectional {layer.kind}", "how": "", "remedy": "leave out bidirectional=True"}
            self.report(FUTURE_LEAKS, layer.line.site, shifted=shifted.site, **facts)

    def _sees_the_past(self, loss: Loss, words: torch.Tensor) -> bool:
        """Return whether some words go through one recurrent layer, or through attention that sees no later ones."""
        known = mixing.computed_from(loss, words)
        if known is None and len(self._ids) == 1 and not any(loss.of_kinds(("EmbeddingBackward",))):
            known = {*loss.context.nodes}  # else an embedding is given other words, such as shifted ones
        if not known:
            return False
        if any(one.kind in ("RNN", "LSTM", "GRU") for one in self._layers):
            return len(self._layers) == len(self._ids) == 1 and not self._layers[0].joins
        later = (node for node, _ in mixing.seeing_later(loss, words.shape[1]))
        is_free = any(mixing.compares_only(one, known) for one in later)
        return not is_free and any(mixing.compares_only(one, known) for one in mixing.attending(loss, words.shape[1]))

    def _look_at_masks(self, loss: Loss) -> None:
        attending = [one for one in loss.nodes if one.startswith("ScaledDotProduct") or one in mixing.SOFTMAXES]
        for node in loss.of_kinds(attending):
            for _, slot, mask in held_by_nodes([node]):
                if slot in _WEIGHTS and mask.dim() in (3, 4) and mask.numel() <= 1 << 16:
                    mask = mask.squeeze(0) if mask.dim() == 4 else mask  # PyTorch 2.14 adds a dimension to three
                    kept = (mask if mask.dtype == torch.bool else mask > _WEIGHTS[slot]).flatten(1, -2)
                    if bool((kept == kept[:, :1]).all()):  # the same for all heads and queries
                        self._compare(kept[:, 0], loss.site(node))
        kinds = ("WhereBackward", "MulBackward", "IndexBackward", "MaskedSelectBackward", "MaskedFillBackward")
        for node, slot, held in held_by_nodes(list(loss.of_kinds(kinds))):
            if slot in ("condition", "other", "self", "indices[0]", "mask") and held.numel() <= 1 << 16:
                numbers = held.detach().cpu()
                mask = numbers.bool()
                known = _keeps(node, mask) if torch.equal(mask.to(numbers.dtype), numbers) else None
                if known is not None:
                    self._compare(known, loss.site(node))
                    shape = shape_of(node)
                    padded = [one == value for one in self._ids if (value := mixing.padding_of(one)) is not None]
                    squares = [one for one in padded if one.shape == mask.shape == shape[-2:] and len(one) == shape[0]]
                    if len(shape) > 2 and any(torch.equal(one, mask) or torch.equal(~one, mask) for one in squares):
                        self.report(WRONG_BROADCAST, loss.site(node), shape=str((*mask.shape,)), all=str(shape))

    def _compare(self, kept: torch.Tensor, site: Any) -> None:
        known = [("target", one) for one in self._targets] + [("input", one) for one in (*self._ids, *self._filled)]
        for of, values in known:
            value = mixing.padding_of(values) if kept.numel() == values.numel() else None
            if value is not None and (kept.dim() == 1 or kept.squeeze().shape == values.shape):
                with reading_values():
                    kept = kept.cpu().reshape(values.shape)
                    only = bool(kept.any()) and bool((values[kept] == value).all()) and distinct(values[~kept]) > 2
                later = of == "input" and torch.equal(kept[:, :-1], values[:, 1:] == value)  # of the shifted targets
                if only or later:
                    self.report(MASK_INVERTED, site, of=of if only else "target", value=value)


_COPIES = re.compile("copy|copie|identity|echo|autoenc|recon|denois", re.I)
_OTHER_COPIES = {"copy", "copy_", "deepcopy", "Identity"}


def _speaks_of_copies(frame: FrameType) -> bool:
    """Return whether names in the running functions say that a model should reproduce its input."""
    codes = [one.f_code for one in walk_frames(frame) if not is_library(one.f_code.co_filename)]
    names = {name for code in codes for name in (code.co_name, *code.co_names, *code.co_varnames)}
    return any(_COPIES.search(name) for name in names - _OTHER_COPIES)


def _connects(tensor: torch.Tensor, count: int) -> bool:
    """Return whether a tensor connects so many nodes of a graph: a square matrix, or two rows of their numbers."""
    shape = tuple(tensor.shape)
    return shape == (count, count) or (len(shape) == 2 and shape[0] == 2 and tensor.dtype == torch.long)


def _keeps(node: Any, mask: torch.Tensor) -> torch.Tensor | None:
    """Return where an operation keeps values; None of ``torch.where(mask, x, y)``, which keeps values of both."""
    first, *others = [one for one, _ in node.next_functions]
    if node_kind(node) == "WhereBackward" and first is not None and others[-1] is not None:
        return None
    leaves_out = node_kind(node) == "MaskedFillBackward" or (node_kind(node) == "WhereBackward" and first is None)
    return ~mask if leaves_out else mask
