"""Labels: targets that do not fit their loss: a class that never occurs, and 0 where -1 is expected."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from byname.diagnose.causes.loss import node_kind
from byname.diagnose.followed_optimizer import FollowedOptimizer
from byname.diagnose.silent.topic import SIGNED, ObservedCall, Topic, Watch, copy_values, topic_cause
from byname.reading.frames import Line
from byname.reading.modules import own_parameters
from byname.reading.objects import living
from byname.reading.tensor import fact

# fmt: off
NEVER_A_TARGET = topic_cause("class-never-occurs",
    "suspicious: class {missing} of {classes} does not occur in the first {count} targets of cross_entropy()"
    "{noticed:at}, and the others occur about equally often: its output only learns to be small",
    "{remedy}; it is right if the class comes later")
ZERO_FOR_MINUS_ONE = topic_cause("targets-of-zero",
    "{loss}(){noticed:at} expects targets of 1 and -1, and {zeros} of the first {all} are 0, none is -1: a 0 does not "
    "stand for -1 there", "make them 1 and -1: 2 * target - 1")
# fmt: on

_MOST_CLASSES, _COUNTED = 1000, 32


class Labels(Topic):
    """Counts the targets of the first steps."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._classes: dict[Any, tuple[Line, torch.Tensor]] = {}
        self._signs: dict[Any, list[float]] = {}

    def applied(self, call: ObservedCall) -> None:
        is_of_words = call.called is F.cross_entropy and call.kwargs.get("ignore_index", -100) < 0
        if is_of_words and call.targets is not None and torch.is_grad_enabled():
            self._note_classes(call, call.targets)
        signs = self._signs.setdefault(call.line.place, []) if call.called in SIGNED else [0.0] * _COUNTED
        if len(signs) < _COUNTED and (values := copy_values(call.given(SIGNED[call.called], "target"))) is not None:
            signs += values.flatten().tolist()
            if len(signs) >= _COUNTED and {*signs} == {0.0, 1.0}:
                counts = {"zeros": signs.count(0), "all": len(signs)}
                self.report(ZERO_FOR_MINUS_ONE, call.line.site, loss=call.called.__name__, **counts)

    def _note_classes(self, call: ObservedCall, targets: torch.Tensor) -> None:
        """Count the targets of each class, where each has an output of a linear layer."""
        scores, values = call.given(0, "input"), copy_values(targets)
        if values is None or values.dtype != torch.long or values.dim() != 1 or scores.dim() != 2:
            return
        classes = scores.shape[1]
        if (
            classes <= _MOST_CLASSES
            and node_kind(fact(scores, "grad_fn")) == "AddmmBackward"
            and int(values.min()) >= 0
        ):
            counts = values.bincount(minlength=classes)
            line, before = self._classes.get(call.line.place, (call.line, torch.zeros_like(counts)))
            self._classes[call.line.place] = line, before + counts if len(before) == classes else before * 0

    def end(self, every: Sequence[FollowedOptimizer]) -> None:
        """Report classes that never occurred."""
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
