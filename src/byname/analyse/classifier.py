"""LinearClassifier: a linear layer trained on the batches that pass, one step each, and scored.

The scores of a pass are a dict of plain values: ``samples``, how many were ``left_out``, how many ``correct``, the
summed ``loss``, and ``metrics``, which has for each name a list of states: one, and after a merge one from each.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from byname.analyse.batches import known
from byname.analyse.power_sums import PowerSums, merged_sums, sums_of
from byname.analyse.statistic import Statistic
from byname.errors import BadArgumentError

Loss: TypeAlias = Callable[[Tensor, Tensor], Tensor]
MakeOptimizer: TypeAlias = Callable[[list[Tensor]], torch.optim.Optimizer]


class LinearClassifier(Statistic):
    """What a probe keeps of a place: a linear layer, its optimizer's state, and how well it did in the latest pass.

    The layer stands on standardised features, by the moments of all rows it was trained on so far. A step takes the
    moments of its batch in first; nothing but a step changes them.
    """

    SETTINGS = ("classes", "standardise")
    STATE = (
        *("weight", "bias", "steps", "scored", "scores"),
        *("_rows", "_mean", "_squares", "_optimizer_state", "note", "channel_dim"),
    )

    weight: Any = None
    """Of standardised features, ``(classes, features)``; None before the first step."""
    bias: Any = None
    steps = 0
    scored = "progressive"
    """The kind of the scores: ``"progressive"`` or ``"held out"``."""
    latest: object = None
    """The pass that the scores belong to; not kept in a state."""
    channel_dim: int | None = None
    _rows = 0
    _mean: Any = None
    _squares: Any = None
    _optimizer: torch.optim.Optimizer | None = None  # made of weight and bias as they are, or anew
    _optimizer_state: dict[int, Any] | None = None

    def __init__(self, *, classes: int | None = None, standardise: bool = True, nan: str = "omit") -> None:
        super().__init__(nan=nan)
        self.classes = classes
        self.standardise = standardise
        self.scores = no_scores()

    def result(self) -> tuple[Tensor, Tensor]:
        """Weight ``(classes, features)`` and bias ``(classes,)`` in terms of the features as they came, in float64."""
        weight = known(self.weight).detach().double() * self._scale()
        return weight, self.bias.detach().double() - weight @ self._mean

    def _read_contents(self, state: Any) -> dict[str, Any]:
        missing = {"channel_dim": None} if isinstance(state, dict) else {}  # from a state of byname 0.2.0
        return super()._read_contents({**missing, **state} if missing else state)

    def wanted(self, targets: Tensor) -> int:
        """Return the number of classes with these targets."""
        known = self.classes or (0 if self.weight is None else len(self.weight))
        return max(known, int(targets.max()) + 1)

    def logits(self, rows: Tensor, classes: int) -> Tensor:
        """Return the logits of rows of features; 0 for a class that it does not know yet."""
        if self.weight is None:
            return torch.zeros(len(rows), classes, dtype=_precision(rows), device=rows.device)
        found = torch.addmm(self.bias, self._standardised(rows), self.weight.T)
        return torch.nn.functional.pad(found, (0, classes - found.shape[1])).detach()

    def learn(self, rows: Tensor, targets: Tensor, loss: Loss, make: MakeOptimizer) -> None:
        """One step of the optimizer on a batch; the rows are finite, and at least one."""
        self._grow(rows, self.wanted(targets))
        optimizer = self._optimizer = self._made(make)
        self._follow(rows)
        features = self._standardised(rows)
        weight, bias = self.weight, self.bias

        def closure() -> Tensor:
            # Hooks on saved tensors are the user's, or a checkpoint's that would run its region again here.
            with torch.enable_grad(), saved_tensors_hooks(lambda one: one, lambda one: one):
                found = loss(torch.addmm(bias, features, weight.T), targets)
                weight.grad, bias.grad = torch.autograd.grad(found, (weight, bias))
            return found.detach()

        optimizer.step(closure)  # type: ignore[arg-type]  # said to give a float; all take a tensor
        weight.grad = bias.grad = None
        self._optimizer_state = optimizer.state_dict()["state"]
        self.steps += 1

    def _made(self, make: MakeOptimizer) -> torch.optim.Optimizer:
        """Return the optimizer of weight and bias; a new one if these were loaded, moved or have grown."""
        if self._optimizer is not None and self._optimizer.param_groups[0]["params"][0] is self.weight:
            return self._optimizer
        self.weight, self.bias = (one.detach().clone().requires_grad_() for one in (self.weight, self.bias))
        optimizer = optimizer_of([self.weight, self.bias], make)
        if self._optimizer_state:
            groups = optimizer.state_dict()["param_groups"]
            optimizer.load_state_dict({"state": self._optimizer_state, "param_groups": groups})
        return optimizer

    def _grow(self, rows: Tensor, classes: int) -> None:
        """Make room for more classes, with weights of 0; the optimizer starts anew."""
        if self.weight is None:
            width, place = rows.shape[1], rows.device
            self.weight = torch.zeros(classes, width, dtype=_precision(rows), device=place)
            self.bias = torch.zeros(classes, dtype=_precision(rows), device=place)
            self._mean = torch.zeros(width, dtype=torch.float64, device=place)
            self._squares = torch.zeros(width, dtype=torch.float64, device=place)
        elif classes > len(self.weight):
            more = classes - len(self.weight)
            self.weight = torch.nn.functional.pad(self.weight.detach(), (0, 0, 0, more))
            self.bias = torch.nn.functional.pad(self.bias.detach(), (0, more))
            self._optimizer_state = None

    def _follow(self, rows: Tensor) -> None:
        if self.standardise:
            found = PowerSums(self._rows, self._mean.clone(), [torch.zeros_like(self._mean), self._squares.clone()])
            if len(rows) <= found.room():
                found.add(rows, None)
            else:
                found = merged_sums(found, sums_of(rows, None, 2, None))
            found.recentre()
            self._rows, self._mean, self._squares = int(found.counts), found.pivot, found.sums[1]

    def _scale(self) -> Tensor:
        """Return one over the standard deviation, 1 for a feature that is constant but for rounding."""
        deviation = (self._squares / max(self._rows, 1)).sqrt()
        return torch.where(deviation > 1e-7 * self._mean.abs(), 1 / deviation, 1.0)

    def _standardised(self, rows: Tensor) -> Tensor:
        standardised: Tensor = (rows.double() - self._mean) * self._scale()
        return standardised.to(self.weight.dtype)

    def _merge(self, other: LinearClassifier) -> None:
        if self.weight is None:
            self._replace_contents(other._state_contents() | {"count": 0, "nans": 0})  # which are added next
            return
        if other.weight is None:
            return
        if not all(map(torch.equal, self.result(), (one.to(self.device) for one in other.result()))):
            raise BadArgumentError(
                "probes that were trained separately cannot be merged: train one, give its state_dict() to the others, "
                "call eval() on each, and merge their scores"
            )
        if self.scored != "held out" or other.scored != "held out":
            raise BadArgumentError("only scores from after eval() can be merged, not those of a training")
        self.scores = added(self.scores, other.scores)


def optimizer_of(parameters: list[Tensor], make: MakeOptimizer) -> torch.optim.Optimizer:
    """Return an optimizer of these parameters and no others."""
    optimizer = make(parameters)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise BadArgumentError(
            f"optimizer= takes a function that returns an optimizer of the given parameters, such as "
            f"lambda parameters: torch.optim.SGD(parameters, lr=0.1); it returned {type(optimizer).__name__}"
        )
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    if [*map(id, held)] != [*map(id, parameters)]:
        raise BadArgumentError("the optimizer of a probe must have exactly the given parameters")
    return optimizer


def _precision(rows: Tensor) -> torch.dtype:
    return torch.promote_types(rows.dtype, torch.float32)


Metric: TypeAlias = Callable[[Tensor, Tensor], Any]
"""A torchmetrics metric, or a function of logits and targets that gives a number."""

FIGURES = ("accuracy", "loss", "scored", "samples", "left_out", "steps", "classes", "channel_dim")


def no_scores() -> dict[str, Any]:
    return {"samples": 0, "left_out": 0, "correct": 0, "loss": 0.0, "metrics": {}}


def checked_metrics(metrics: Mapping[str, Metric] | None) -> dict[str, Metric]:
    """Return copies of the metrics, which the user's own calls do not disturb."""
    checked: dict[str, Metric] = {}
    for name, metric in (metrics or {}).items():
        if name in FIGURES:
            raise BadArgumentError(f"a probe already has a figure {name!r}: give the metric another name")
        if not callable(metric) or (hasattr(metric, "update") and not _has_states(metric)):
            raise BadArgumentError(
                f"the metric {name!r} must be a function of logits and targets, or a torchmetrics metric with its own "
                f"states (not a collection or a wrapper of others), not {type(metric).__name__}"
            )
        checked[name] = copy.deepcopy(metric) if _has_states(metric) else metric
        if _has_states(metric):
            checked[name].sync_on_compute = False  # type: ignore[attr-defined]  # else result() waits for all ranks
    return checked


def scored(
    before: dict[str, Any], logits: Tensor, targets: Tensor, loss: Callable[..., Tensor], metrics: Mapping[str, Metric]
) -> dict[str, Any]:
    """Return the scores with one more batch of at least one sample."""
    samples = len(targets)
    states = {name: _updated(metric, before["metrics"].get(name), logits, targets) for name, metric in metrics.items()}
    return {
        "samples": before["samples"] + samples,
        "left_out": before["left_out"],
        "correct": before["correct"] + int((logits.argmax(1) == targets).sum()),
        "loss": before["loss"] + samples * _number(loss(logits, targets)),
        "metrics": states,
    }


def added(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Return the scores of both."""
    names = {**one["metrics"], **other["metrics"]}
    return {
        **{name: one[name] + other[name] for name in ("samples", "left_out", "correct", "loss")},
        "metrics": {name: [*one["metrics"].get(name, ()), *other["metrics"].get(name, ())] for name in names},
    }


def figures_of(scores: dict[str, Any], metrics: Mapping[str, Metric]) -> dict[str, Any]:
    """Return accuracy, loss and metrics; NaN where nothing was scored."""
    samples = scores["samples"] or float("nan")
    return {
        "accuracy": scores["correct"] / samples,
        "loss": scores["loss"] / samples,
        **{name: _computed(metric, scores["metrics"].get(name, [])) for name, metric in metrics.items()},
    }


def _number(loss: Any) -> float:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise BadArgumentError(f"loss must return one number per batch as a tensor, the mean over samples, not {found}")
    return float(loss)


def _has_states(metric: Any) -> bool:
    return hasattr(metric, "update") and bool(getattr(metric, "metric_state", None))


def _updated(metric: Any, states: list[Any] | None, logits: Tensor, targets: Tensor) -> list[Any]:
    """Return the states of a metric with one more batch, which goes into the last of them."""
    *others, latest = states or [None]
    if not _has_states(metric):
        total, samples = latest or (0.0, 0)
        return [*others, (total + float(metric(logits, targets)) * len(targets), samples + len(targets))]
    with torch.no_grad():
        metric.to(logits.device)
        _put(metric, latest)
        metric.update(logits, targets)
    state = {name: _detached(value) for name, value in metric.metric_state.items()}
    metric.reset()
    return [*others, {"updates": (latest or {"updates": 0})["updates"] + 1, "state": state}]


def _computed(metric: Any, states: list[Any]) -> Any:
    if not states:
        return float("nan")
    if not _has_states(metric):
        return sum(total for total, _ in states) / sum(samples for _, samples in states)
    first, *others = states
    _put(metric, first)
    for other in others:
        metric.merge_state(other["state"])
    value = metric.compute()
    metric.reset()
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def _put(metric: Any, kept: dict[str, Any] | None) -> None:
    metric.reset()
    if kept is not None:
        for name, value in kept["state"].items():
            setattr(metric, name, [*value] if isinstance(value, list) else value)
        metric._update_count = kept["updates"]  # torchmetrics 1.9: else compute() warns that there was no update


def _detached(value: Any) -> Any:
    return [one.detach().clone() for one in value] if isinstance(value, list) else value.detach().clone()
