"""How well did a classifier do? Sums over batches of what it said: correct ones, loss, and metrics of the user's.

The scores of a pass are a dict of plain values: ``samples``, how many were ``left_out``, how many ``correct``, the
summed ``loss``, and ``metrics``, which has for each name a list of states: one, and after a merge one from each.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor

from byname.errors import BadArgumentError

__all__ = ["Metric", "added", "checked_metrics", "figures_of", "no_scores", "scored"]

Metric: TypeAlias = Callable[[Tensor, Tensor], Any]
"""A torchmetrics metric, or a function of logits and targets that gives a number."""

FIGURES = ("accuracy", "loss", "scored", "samples", "left_out", "steps", "classes")


def no_scores() -> dict[str, Any]:
    """The scores before anything was scored."""
    return {"samples": 0, "left_out": 0, "correct": 0, "loss": 0.0, "metrics": {}}


def checked_metrics(metrics: Mapping[str, Metric] | None) -> dict[str, Metric]:
    """Copies of the metrics, which the user's own calls do not disturb."""
    checked: dict[str, Metric] = {}
    for name, metric in (metrics or {}).items():
        if name in FIGURES:
            raise BadArgumentError(f"a probe has a figure {name!r} of its own: call the metric something else")
        if not callable(metric) or (hasattr(metric, "update") and not _has_states(metric)):
            raise BadArgumentError(
                f"the metric {name!r} is a function of logits and targets, or a torchmetrics metric with states of its "
                f"own (not a collection or a wrapper of others), not {type(metric).__name__}"
            )
        checked[name] = copy.deepcopy(metric) if _has_states(metric) else metric
        if _has_states(metric):
            checked[name].sync_on_compute = False  # type: ignore[attr-defined]  # else result() waits for all ranks
    return checked


def scored(
    before: dict[str, Any], logits: Tensor, targets: Tensor, loss: Callable[..., Tensor], metrics: Mapping[str, Metric]
) -> dict[str, Any]:
    """The scores with one more batch of at least one sample."""
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
    """The scores of both."""
    names = {**one["metrics"], **other["metrics"]}
    return {
        **{name: one[name] + other[name] for name in ("samples", "left_out", "correct", "loss")},
        "metrics": {name: [*one["metrics"].get(name, ()), *other["metrics"].get(name, ())] for name in names},
    }


def figures_of(scores: dict[str, Any], metrics: Mapping[str, Metric]) -> dict[str, Any]:
    """Accuracy, loss and metrics; NaN where nothing was scored."""
    samples = scores["samples"] or float("nan")
    return {
        "accuracy": scores["correct"] / samples,
        "loss": scores["loss"] / samples,
        **{name: _computed(metric, scores["metrics"].get(name, [])) for name, metric in metrics.items()},
    }


def _number(loss: Any) -> float:
    if not isinstance(loss, Tensor) or loss.numel() != 1:
        found = tuple(loss.shape) if isinstance(loss, Tensor) else type(loss).__name__
        raise BadArgumentError(f"loss gives one number a batch, as a tensor: the mean over its samples, not {found}")
    return float(loss)


def _has_states(metric: Any) -> bool:
    return hasattr(metric, "update") and bool(getattr(metric, "metric_state", None))


def _updated(metric: Any, states: list[Any] | None, logits: Tensor, targets: Tensor) -> list[Any]:
    """The states of a metric with one more batch, which goes into the last of them."""
    if not _has_states(metric):
        return _averaged(float(metric(logits, targets)), len(targets), states)
    *others, latest = states or [None]
    with torch.no_grad():
        metric.to(logits.device)
        _put(metric, latest)
        metric.update(logits, targets)
    state = {name: _detached(value) for name, value in metric.metric_state.items()}
    metric.reset()
    return [*others, {"updates": (latest or {"updates": 0})["updates"] + 1, "state": state}]


def _averaged(value: float, samples: int, states: list[Any] | None) -> list[Any]:
    *others, latest = states or [(0.0, 0)]
    return [*others, (latest[0] + value * samples, latest[1] + samples)]


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
