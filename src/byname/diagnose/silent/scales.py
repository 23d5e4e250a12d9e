"""Scales: inputs whose numbers do not fit a fresh network, or are others in evaluation than in training."""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn.modules.conv import _ConvNd

from byname.diagnose.cause import variable
from byname.diagnose.context import callee_text
from byname.diagnose.followed_optimizer import FollowedOptimizer
from byname.diagnose.silent.evaluation_mode import evaluates
from byname.diagnose.silent.topic import (
    ObservedCall,
    Topic,
    Watch,
    arg_name,
    copy_values,
    distinct,
    has_equal_rows,
    on_call,
    topic_cause,
)
from byname.reading.frames import NO_LINE, Line
from byname.reading.objects import attributes_of
from byname.reading.tensor import fact
from byname.tracking.lookup import site_of_tensor
from byname.undo import Undo

# fmt: off
UNSCALED = topic_cause("inputs-not-scaled",
    "{called:-}{made:-}suspicious: the inputs of the first layer ({kind}){noticed:at} are {numbers}, such as "
    "{such}, and the network is freshly initialised: {effect}", "{remedy}")
OTHER_SCALE = topic_cause("evaluated-on-another-scale",
    "suspicious: the inputs {name} of {module} in the evaluation{noticed:at} have mean {mean:.3g} and standard "
    "deviation {std:.3g}, and those of the training steps{trained:at} had {before:.3g} and {spread:.3g}",
    "scale or normalise both in the same way, with the statistics of the training data; it is right if the evaluation "
    "goes outside of that data on purpose")
# fmt: on

_PIXELS, _COLUMNS = "scale them: x / 255, or normalise them", "normalise each column: (x - x.mean(0)) / x.std(0)"
_ONCE = "divide or normalise once only, so that each column varies by about 1"
_LARGE, _SMALL = "its units saturate, or its steps become too large", "its outputs hardly differ between samples"
_NORMS = ("BatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm")
_CONSTANT, _SAMPLES, _FACTOR = 0.01, 8, 8


@dataclass
class _Inputs:
    """Numbers that a module was given in training: how many, their sum, that of their squares, the line.

    Those of steps 1, 2, 4, 8 and so on are looked at: a curriculum begins with small ones.
    """

    module: weakref.ref[nn.Module]
    line: Line
    shape: torch.Size
    sums: list[tuple[int, float, float]] = field(default_factory=list)

    @property
    def spread(self) -> tuple[float, float]:
        """Their mean and standard deviation."""
        number, total, squares = (sum(one) for one in zip(*self.sums, strict=True))
        return total / number, math.sqrt(max(squares / number - (total / number) ** 2, 0.0))

    @property
    def are_alike(self) -> bool:
        """Whether the batches have similar means, unlike those of a series with a trend, in the order of time."""
        means = [total / number for number, total, _ in self.sums]
        spreads = [squares / number - mean**2 for (number, _, squares), mean in zip(self.sums, means, strict=True)]
        return max(means) - min(means) <= 2 * math.sqrt(max(*spreads, 0.0))


class Scales(Topic):
    """Watches the numbers of inputs in training, and of those of evaluations."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._unscaled: dict[str, Any] = {}
        self._pretrained = False
        self._called = NO_LINE
        self._layers: list[str] = []
        self._constant = 0  # the id of the first layer, if its inputs are nearly constant so far
        self._inputs: dict[int, _Inputs] = {}
        self._far: dict[Any, dict[str, Any]] = {}  # facts of the evaluations on a line; none if one is alike

    def begin(self, block: Undo) -> None:
        on_call(block, nn.Module, "load_state_dict", self._loaded)

    def _loaded(self, call: ObservedCall, result: Any) -> None:
        self._pretrained = True

    def ran(self, call: ObservedCall) -> None:
        """Look at the inputs of a forward with gradients."""
        for given in call.tensors[:1]:
            self._called = self._called if call.depth else call.line
            if not self._watch.steps and len(self._layers) < 2 and not attributes_of(call.called)["_modules"]:
                self._note_layer(call, given)
            elif not self._watch.steps and self._varies_later(call, given):
                self._unscaled = {}
            is_data = not fact(given, "requires_grad")  # codes of an encoder grow while it learns
            is_due = not call.depth and self._watch.steps & (self._watch.steps - 1) == 0
            if is_data and is_due and (values := _numbers(given)) is not None:
                inputs = _Inputs(weakref.ref(call.called), call.line, given.shape)
                known = self._inputs.setdefault(id(call.called), inputs)
                known.sums.append((values.numel(), float(values.sum()), float(values.square().sum())))

    def _varies_later(self, call: ObservedCall, given: torch.Tensor) -> bool:
        """Return whether inputs that were nearly constant are others before the first step, as of environments."""
        values = copy_values(given) if id(call.called) == self._constant else None
        return values is not None and not _is_nearly_constant(values)

    def _note_layer(self, call: ObservedCall, given: torch.Tensor) -> None:
        kind = type(call.called).__name__
        if kind in ("Flatten", "Unflatten", "Identity", "Dropout"):
            return
        self._layers.append(kind)
        if len(self._layers) > 1:
            self._unscaled = {} if kind.startswith(_NORMS) else self._unscaled
        elif issubclass(type(call.called), nn.Linear | _ConvNd) and (values := copy_values(given)) is not None:
            most, whole = float(values.max()), values.is_floating_point() and bool((values == values.round()).all())
            made, site = site_of_tensor(given), call.line.site
            made = made if made is None or site is None or made.line != site.line else None
            facts = {"kind": kind, "noticed": site, "called": self._called.site, "made": made, "effect": _LARGE}
            if distinct(values) <= 32:
                return
            if whole and float(values.min()) >= 0 and 200 < most <= 255:
                facts |= {"numbers": f"whole numbers up to {most:g}", "such": "pixels of 0 to 255", "remedy": _PIXELS}
            elif (255 if values.dim() == 4 else 1e4) < most < math.inf and values.dim() in (2, 4):
                such, remedy = ("those of a raw column", _COLUMNS) if values.dim() == 2 else ("pixels", _PIXELS)
                facts |= {"numbers": f"numbers up to {most:g}", "such": such, "remedy": remedy}
            elif _is_nearly_constant(values) and not has_equal_rows(values) and not fact(given, "requires_grad"):
                facts |= {"numbers": f"nearly the same for all samples, from {float(values.min()):.3g} to {most:.3g}"}
                facts |= {"such": "those divided by 255 twice", "remedy": _ONCE, "effect": _SMALL}
                self._constant = id(call.called)
            self._unscaled = facts if "numbers" in facts else {}

    def before_step(self, followed: FollowedOptimizer) -> None:
        if self._unscaled and not self._pretrained:
            self.report(UNSCALED, **self._unscaled)

    def evaluated(self, call: ObservedCall) -> None:
        """Note an evaluation whose inputs are far from those of the training, or spread otherwise."""
        known = self._inputs.get(id(call.called))
        values = _numbers(call.tensors[0]) if call.tensors else None
        if known is None or known.module() is not call.called or values is None or not self._watch.steps:
            return
        mean, std = float(values.mean()), float(values.std())
        before, spread = known.spread
        is_alike = abs(mean - before) <= _FACTOR * max(spread, std) and spread <= _FACTOR * std <= _FACTOR**2 * spread
        is_alike = is_alike or not known.are_alike or call.tensors[0].shape[1:] != known.shape[1:]
        is_apart = min(spread, std) > 0 and not is_alike
        facts: dict[str, Any] = {"noticed": call.line.site, "mean": mean, "std": std, "before": before}
        facts |= {"spread": spread, "trained": known.line.site, "name": arg_name(call.line, 0, "without a name")}
        facts["module"] = variable(callee_text(call.line) or "model")
        last = self._far.get(call.line.place, facts if evaluates(call.line) else {})
        self._far[call.line.place] = last if is_apart else {}

    def end(self, every: Sequence[FollowedOptimizer]) -> None:
        """Report the lines on which all evaluations were like that."""
        for facts in filter(None, self._far.values()):
            self.report(OTHER_SCALE, **facts)


def _numbers(given: torch.Tensor) -> torch.Tensor | None:
    """Return the numbers of a batch of inputs; None of words or few samples."""
    values = copy_values(given, 1 << 20) if given.is_floating_point() and given.dim() > 1 else None
    finite = values is not None and len(values) >= _SAMPLES and bool(values.isfinite().all())
    return values.double() if values is not None and finite else None


def _is_nearly_constant(values: torch.Tensor) -> bool:
    """Return whether no column varies by more than a hundredth of its mean, or of 0.5."""
    if len(values) < _SAMPLES or not values.is_floating_point():
        return False
    columns = values.double().reshape(len(values), -1)
    return bool((columns.std(0) <= _CONSTANT * columns.mean(0).abs().clamp(min=0.5)).all())
