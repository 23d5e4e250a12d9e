"""How else are figures of activations computed? By forward hooks, with numpy in float64 and with torchmetrics."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

__all__ = ["Hook", "in_numpy", "in_torchmetrics"]

Hook: TypeAlias = Callable[[Tensor], None]
"""Is given the values of one place, step after step."""


def in_numpy() -> dict[str, Callable[[], Hook]]:
    """Those that compute what the analyser of the name does."""
    return {"FeatureStatistics": _Features, "DeadUnits": _Dead, "Outliers": _Outliers}


def in_torchmetrics() -> dict[str, Callable[[], Hook]]:
    """What it has, a mean of all values of a place; and a metric as one writes it there for the figures of features."""
    if find_spec("torchmetrics") is None:
        return {}
    return {"FeatureStatistics": _metric_of_features, "three MeanMetric": _Means}


class _Features:
    """Mean and variance of each feature and channel, and the zeros of each channel."""

    def __init__(self) -> None:
        self.features = self.channels = _nothing()
        self.zeros: Any = 0

    def __call__(self, value: Tensor) -> None:
        exact = value.numpy().astype(np.float64)
        self.features = _joined(self.features, len(exact), exact.mean(0), exact.var(0))
        count = exact.size // exact.shape[1]
        self.channels = _joined(self.channels, count, exact.mean((0, 2, 3)), exact.var((0, 2, 3)))
        self.zeros = self.zeros + (exact == 0).sum((0, 2, 3))


_Moments: TypeAlias = tuple[int, Any, Any]


def _nothing() -> _Moments:
    return 0, 0.0, 0.0


def _joined(known: _Moments, count: int, mean: Any, variance: Any) -> _Moments:
    """How many, mean, and the sum of squared distances (Chan, Golub and LeVeque 1979)."""
    before, old, squares = known
    whole, apart = before + count, mean - old
    squares = squares + variance * count + apart**2 * (before * count / whole)
    return whole, old + apart * (count / whole), squares


class _Dead:
    """In how many samples each channel fired."""

    def __init__(self) -> None:
        self.fired: Any = 0

    def __call__(self, value: Tensor) -> None:
        self.fired = self.fired + (value.numpy() > 0).any((2, 3)).sum(0)


class _Outliers:
    """The largest magnitude of each channel, and the moments of each batch, for a kurtosis of all at the end."""

    def __init__(self) -> None:
        self.largest: Any = 0.0
        self.batches: list[Any] = []

    def __call__(self, value: Tensor) -> None:
        far = value.numpy().astype(np.float64)
        self.largest = np.maximum(self.largest, np.abs(far).max((0, 2, 3)))
        mean = far.mean((0, 2, 3))
        far -= mean[:, None, None]
        squares = far * far
        powers = (squares, squares * far, squares * squares)
        self.batches.append((mean, *(power.sum((0, 2, 3)) for power in powers)))


class _Means:
    """No figures of features or channels: one mean, one mean of squares and one share of zeros a place."""

    def __init__(self) -> None:
        mean = import_module("torchmetrics").MeanMetric
        self.metrics = mean(), mean(), mean()

    def __call__(self, value: Tensor) -> None:
        for metric, of in zip(self.metrics, (value, value.square(), value == 0), strict=True):
            metric.update(of)


def _metric_of_features() -> Hook:
    """The same figures as `_Features`, by sums in float64, which lose digits where the mean is large."""
    metric = import_module("torchmetrics").Metric

    class Features(metric):  # type: ignore[misc, valid-type]  # the class is imported here
        full_state_update = False
        count: Tensor
        sums: Tensor
        squares: Tensor
        zeros: Tensor

        def __init__(self) -> None:
            super().__init__()
            for name in ("count", "sums", "squares", "zeros"):
                self.add_state(name, torch.zeros((), dtype=torch.float64), dist_reduce_fx="sum")

        def update(self, value: Tensor) -> None:
            exact = value.double()
            self.count = self.count + len(value)
            self.sums = self.sums + exact.sum(0)
            self.squares = self.squares + exact.square().sum(0)
            self.zeros = self.zeros + (value == 0).sum((0, 2, 3))

        def compute(self) -> Any:
            mean = self.sums / self.count
            return mean, self.squares / self.count - mean.square(), self.zeros

    made: Hook = Features().update
    return made
