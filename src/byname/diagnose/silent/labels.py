"""Labels: targets that do not fit their loss, such as a class that never occurs, or 0 where -1 is expected."""

from __future__ import annotations

import ast
import re
import weakref
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from byname.diagnose.cause import variable
from byname.diagnose.causes.loss import node_kind
from byname.diagnose.causes.targets import NORMAL, OF_UNIFORM, UNIFORM
from byname.diagnose.context import callee_text, node_of
from byname.diagnose.followed_optimizer import FollowedOptimizer
from byname.diagnose.silent.topic import SIGNED, ObservedCall, Topic, Watch, copy_values, tensor_given_by, topic_cause
from byname.reading.frames import Line, variables_at
from byname.reading.modules import own_parameters
from byname.reading.objects import living
from byname.reading.tensor import fact
from byname.table import counted
from byname.tracking.lookup import creation_record_of

# fmt: off
NEVER_A_TARGET = topic_cause("class-never-occurs",
    "suspicious: class {missing} of {classes} does not occur in the first {count} targets of cross_entropy()"
    "{noticed:at}, and the others occur about equally often: its output only learns to be small",
    "{remedy}, or shuffle samples sorted by class before they are split; it is right if the class comes later")
SORTED = topic_cause("sorted-by-class",
    "suspicious: in {single} of the first {calls} calls of cross_entropy(){noticed:at} all targets are of one class, "
    "which changes {times}: the samples come sorted by class, and each step learns to give one answer only",
    "shuffle the samples: DataLoader(..., shuffle=True), or a torch.randperm() of them in each epoch")
ZERO_FOR_MINUS_ONE = topic_cause("targets-of-zero",
    "{loss}(){noticed:at} expects targets of 1 and -1, and {zeros} of the first {all} are 0, none is -1: a 0 does not "
    "stand for -1 there", "make them 1 and -1: 2 * target - 1")
SEVERAL_ONES = topic_cause("target-out-of-reach",
    "suspicious: the targets of cross_entropy(){noticed:at} are 0 and 1, and {share} of the samples have several ones: "
    "the probabilities of its softmax sum up to 1, and cannot all be reached",
    "binary_cross_entropy_with_logits(), which has a sigmoid for each output; it is right if they share one")
WEIGHTS_BY_FREQUENCY = topic_cause("weights-by-frequency",
    "suspicious: the weights that {loss}(){noticed:at} is given are proportional to how often each class occurs: class "
    "{common} is {often:.1%} of the first {count} targets and has weight {most:.3g}, class {rare} is {seldom:.1%} and "
    "has {least:.3g}. Rare classes, which count little anyway, count even less", "take the inverse: {remedy}")
GOES_ON_AT_THE_END = topic_cause("mask-inverted",
    "suspicious: the targets{noticed:at} add the value of the next state where {name} is 1, in {ends} of {all} "
    "samples, and nothing where it is 0: an episode counts as going on only where it ends",
    "multiply by (1 - {path}), or by ~{path} if it is boolean")
BLANK_IN_TARGETS = topic_cause("blank-in-targets",
    "{blanks} of {all} targets of ctc_loss(){noticed:at} are {blank}, its blank, which stands for no label: decoding "
    "leaves it out", "number the labels from 1, or give the blank another index: blank=n, of n + 1 outputs")
UNIFORM_TARGETS = topic_cause("uniform-noise",
    "suspicious: {name}, which a model learns to predict{noticed:at}, is uniform noise from 0 to 1{drawn:at}: "
    f"{OF_UNIFORM}", NORMAL)
# fmt: on

_NOISE = re.compile(r"(?<![a-z])(noises?|eps|epsilon)(?![a-z])")
_DONE = re.compile(r"(is_)?(dones?|terminals?|terminated|terminations?)")
_MOST_CLASSES, _COUNTED, _OF_A_CLASS, _ALIKE = 1000, 32, 20, 1.5
_INVERSE = "weight = counts.sum() / (len(counts) * counts)"
_INVERSE_OF_TWO = "pos_weight = (number of negatives) / (number of positives)"
_FEW_CLASSES, _SHARE = 32, 0.25
_CALLS, _FEWEST = 8, 4
"""Calls of a loss, and targets of each, with which samples can be said to be sorted."""


class Labels(Topic):
    """Counts the targets of the first steps."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._classes: dict[Any, tuple[Line, torch.Tensor]] = {}
        self._signs: dict[Any, list[float]] = {}
        self._weighted: dict[Any, tuple[Line, str, torch.Tensor, torch.Tensor]] = {}
        self._looked_at: set[Any] = set()
        self._given: Any = None  # a reference to the inputs
        self._single: dict[Any, tuple[Line, list[int]]] = {}  # of each call the class of all its targets; -1 of several

    def ran(self, call: ObservedCall) -> None:
        if not call.depth and call.tensors:
            self._given = weakref.ref(call.tensors[0])

    def _look_at_ones(self, call: ObservedCall, targets: torch.Tensor) -> None:
        """Report targets of 0 and 1 of which several are 1 for many samples; those of many items share one softmax."""
        values = copy_values(targets) if self._given is None or self._given() is not targets else None
        shape = tuple(call.given(0, "input").shape)
        is_of_classes = len(shape) > 1 and shape == tuple(targets.shape) and shape[0] != shape[1] <= _FEW_CLASSES
        if values is not None and is_of_classes and bool(((values == 0) | (values == 1)).all()):
            share = float((values.sum(1) > 1).double().mean())
            if share > _SHARE:
                self.report(SEVERAL_ONES, call.line.site, share=f"{share:.0%}")

    def applied(self, call: ObservedCall) -> None:
        is_of_words = call.called is F.cross_entropy and call.kwargs.get("ignore_index", -100) < 0
        if is_of_words and call.targets is not None and torch.is_grad_enabled():
            self._note_classes(call, call.targets)
            self._look_at_ones(call, call.targets)
        if call.called in (F.cross_entropy, F.binary_cross_entropy_with_logits) and torch.is_grad_enabled():
            self._note_weights(call)
        if call.called is F.ctc_loss:
            self._look_for_blanks(call)
        made = None if call.targets is None else creation_record_of(call.targets)
        if made is not None and call.line.place not in self._looked_at:
            self._look_at_ends(made.line, call)
            self._look_at_noise(made.line, call)
        signs = self._signs.setdefault(call.line.place, []) if call.called in SIGNED else [0.0] * _COUNTED
        if len(signs) < _COUNTED and (values := copy_values(call.given(SIGNED[call.called], "target"))) is not None:
            signs += values.flatten().tolist()
            if len(signs) >= _COUNTED and {*signs} == {0.0, 1.0}:
                counts = {"zeros": signs.count(0), "all": len(signs)}
                self.report(ZERO_FOR_MINUS_ONE, call.line.site, loss=call.called.__name__, **counts)

    def _look_for_blanks(self, call: ObservedCall) -> None:
        """Report targets of ``ctc_loss`` that are its blank; beyond their lengths they do not count."""
        values, blank = copy_values(call.given(1, "targets")), call.given(4, "blank", 0)
        if values is not None and values.dim() == 2:
            lengths = torch.as_tensor(call.given(3, "target_lengths"), device="cpu")
            values = values[torch.arange(values.shape[1], device="cpu") < lengths[:, None]]
        if values is not None and (values == blank).any():
            blanks = int((values == blank).sum())
            self.report(BLANK_IN_TARGETS, call.line.site, blanks=blanks, all=values.numel(), blank=blank)

    def _look_at_noise(self, made: Line, call: ObservedCall) -> None:
        """Report targets that are called noise and are uniform."""
        path = getattr(made.site, "target", None) or ""
        if _NOISE.search(path) and UNIFORM.search(callee_text(made)):
            self._looked_at.add(call.line.place)
            self.report(UNIFORM_TARGETS, call.line.site, name=variable(path), drawn=made.site)

    def _look_at_ends(self, made: Line, call: ObservedCall) -> None:
        """Report targets that add the value of the next state only where an episode has ended."""
        node = node_of(made)
        if not isinstance(node, ast.BinOp) or not isinstance(node.op, ast.Add):
            return
        every = [one for term in (node.left, node.right) if isinstance(term, ast.BinOp) for one in _factors(term)]
        for factor in [one for one in every if _DONE.fullmatch(["", *re.findall(r"\w+", _path_of(one))][-1])]:
            values = copy_values(tensor_given_by(factor, variables_at(made.code, call.frame)))
            ones = 0 if values is None else int((values == 1).sum())
            if values is not None and 0 < 2 * ones < values.numel() == ones + int((values == 0).sum()):
                self._looked_at.add(call.line.place)
                path = _path_of(factor)
                facts = {"name": variable(path), "path": path, "ends": ones, "all": values.numel()}
                self.report(GOES_ON_AT_THE_END, made.site, **facts)

    def _note_classes(self, call: ObservedCall, targets: torch.Tensor) -> None:
        """Count the targets of each class, where each has an output of a linear layer."""
        scores, values = call.given(0, "input"), copy_values(targets)
        if values is None or values.dtype != torch.long or values.dim() != 1 or scores.dim() != 2:
            return
        classes, is_of_layer = scores.shape[1], node_kind(fact(scores, "grad_fn")) == "AddmmBackward"
        if is_of_layer and classes <= _MOST_CLASSES and int(values.min()) >= 0:
            counts = values.bincount(minlength=classes)
            is_single = len(values) >= _FEWEST and int(counts.max()) == len(values)
            _, singles = self._single.setdefault(call.line.place, (call.line, []))
            singles.append(int(values[0]) if is_single else -1)
            line, before = self._classes.get(call.line.place, (call.line, torch.zeros_like(counts)))
            self._classes[call.line.place] = line, before + counts if len(before) == classes else before * 0

    def _note_weights(self, call: ObservedCall) -> None:
        """Count the targets of each class that has a weight; of two classes, if one of them has a `pos_weight`."""
        is_of_two = call.called is not F.cross_entropy
        weights = copy_values(call.given(6, "pos_weight") if is_of_two else call.given(2, "weight"))
        values = None if weights is None else copy_values(call.targets)
        if values is None or weights is None or values.is_floating_point() != is_of_two:  # else they are probabilities
            return
        if is_of_two:
            weights = torch.cat([weights.new_ones(1), weights.reshape(-1)[:2]]).float()  # one for each column: three
        labels = values[(values >= 0) & (values < len(weights))].long()
        counts = labels.bincount(minlength=len(weights))
        *_, before, _ = self._weighted.get(call.line.place, (counts * 0, weights))
        before = before if len(before) == len(counts) else counts * 0  # the weights may be those of other classes
        self._weighted[call.line.place] = call.line, call.called.__name__, before + counts, weights

    def _report_weights(self) -> None:
        """Report weights that are proportional to the numbers of targets, and not to their inverse."""
        for line, loss, counts, weights in self._weighted.values():
            first, last = int(weights.argmin()), int(weights.argmax())
            shares, each = counts / counts.sum(), weights / counts
            is_uneven = min(weights[last] / weights[first], counts[last] / counts[first]) >= 2
            if int(counts.min()) >= _OF_A_CLASS and is_uneven and float(each.max()) <= _ALIKE * float(each.min()):
                facts = {"common": last, "often": float(shares[last]), "most": float(weights[last]), "rare": first}
                facts |= {"seldom": float(shares[first]), "least": float(weights[first]), "count": int(counts.sum())}
                remedy = _INVERSE if loss == "cross_entropy" else _INVERSE_OF_TWO
                self.report(WEIGHTS_BY_FREQUENCY, line.site, loss=loss, remedy=remedy, **facts)

    def end(self, every: Sequence[FollowedOptimizer]) -> None:
        """Report classes that never occurred, weights that are the wrong way round, and targets sorted by class."""
        if self._watch.leaves_out_losses:  # the samples of a step may come sorted
            return
        self._report_weights()
        for line, classes_of in self._single.values():
            single = [one for one in classes_of if one >= 0]
            spans = [len([*same]) for _, same in groupby(single)]
            calls, is_long = len(classes_of), min(spans[:-1], default=0) > 1
            if is_long and calls >= _CALLS and len(single) >= 0.8 * calls:
                times = counted(len(spans) - 1, "time")
                self.report(SORTED, line.site, single=len(single), calls=calls, times=times)
        for line, counts in self._classes.values():
            classes, count, occurring = len(counts), int(counts.sum()), counts[counts > 0]
            even = count / max(len(occurring), 1)
            if count >= 50 * classes and len(occurring) == classes - 1 > 1 and 2 * int(occurring.min()) > even:
                missing = int(counts.argmin())
                words = [one for one in living(nn.Embedding) if one.num_embeddings == classes]
                if not self.owned().isdisjoint(id(weight) for one in words for weight in own_parameters(one)):
                    continue  # of words, one of which may stand for padding
                remedy = f"give the last layer {classes - 1} outputs"
                if not missing:
                    remedy = f"number the classes from 0, as by target - 1, and {remedy}"
                facts = {"missing": missing, "classes": classes, "count": count, "remedy": remedy}
                self.report(NEVER_A_TARGET, line.site, **facts)


def _factors(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the factors of a product."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult):
        yield from _factors(node.left)
        yield from _factors(node.right)
    elif not isinstance(node, ast.BinOp):
        yield node


def _path_of(node: ast.expr) -> str:
    """Return the source of a factor without the methods that are called of it, as ``done`` for ``done.float()``."""
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        node = node.func.value
    return ast.unparse(node)
