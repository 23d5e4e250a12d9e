"""Moments: `Mean`, `Variance`, `Moments` up to the fourth, and `NormMean`, the mean of norms."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from torch import Tensor

from byname.analyse.statistics.batches import checked_channel, per_sample
from byname.analyse.statistics.central import Central, all_finite, joined, pooled, with_batch
from byname.analyse.statistics.statistic import Statistic
from byname.errors import BadArgumentError

__all__ = ["CentralStatistic", "Mean", "Moments", "NormMean", "Variance", "divided"]


_LEAST = 1e-290
"""A sum below it may have lost digits: the least numbers of float64 have fewer."""


class CentralStatistic(Statistic):
    """What is told by the mean and sums of powers of the distances from it."""

    STATE: ClassVar[tuple[str, ...]] = ("_counts", "_shift", "_mean")

    def __init__(self, *, nan: str = "omit", channel: int | None = None) -> None:
        super().__init__(nan=nan)
        self.channel = checked_channel(channel)
        for name in self.STATE:
            setattr(self, name, None)

    @property
    def counts(self) -> Tensor:
        """How many values took part in each figure, or the sum of their weights."""
        return self._central().counts.clone()

    @property
    def begun(self) -> bool:
        """Whether there was a batch, be it of no samples."""
        return self._kept() is not None

    def mean(self) -> Tensor:
        """The mean of each figure; NaN where there is no value."""
        kept = self._central()
        return torch.where(kept.counts > 0, kept.shift + kept.mean, math.nan)

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        channel = self._channel_of(samples)
        self._check_shape(samples.shape[1:] if channel is None else samples.shape[channel : channel + 1])
        kept, order = self._kept(), len(self.STATE) - 2
        known = kept and kept.to(samples.device)
        whole = with_batch(known, samples, weights, order, channel=channel)
        nans = 0
        if samples.numel() and not all_finite(whole.mean):  # a NaN shows here: nothing has to look for it
            there = ~samples.isnan() if weights is None else ~(samples.isnan() & (weights > 0))
            nans = there.numel() - int(there.sum())
            if nans and self.nan == "raise":
                raise BadArgumentError(f"{nans} values are NaN, and nan='raise'")
            if nans and self.nan == "omit":
                present = there if weights is None else there * weights
                whole = with_batch(known, samples, present, order, channel=channel)
        self._set(whole if kept is None else whole.to(kept.mean.device))
        self.nans += nans

    def _merge(self, other: CentralStatistic) -> None:
        found = other._central()
        self._check_shape(found.mean.shape)
        kept = self._kept()
        self._set(found.mapped(Tensor.clone) if kept is None else joined(kept, found.to(kept.mean.device)))

    def _channel_of(self, samples: Tensor) -> int | None:
        if self.channel is None:
            return None
        if not -samples.ndim <= self.channel < samples.ndim or self.channel % samples.ndim == 0:
            raise BadArgumentError(
                f"channel={self.channel} is no dimension after the first of a batch of shape {tuple(samples.shape)}"
            )
        return self.channel % samples.ndim

    def _check_shape(self, shape: torch.Size) -> None:
        kept = self._kept()
        if kept is not None and kept.mean.shape != shape:
            raise BadArgumentError(
                f"the figures of this {type(self).__name__} have shape {tuple(kept.mean.shape)}; "
                f"what is added has {tuple(shape)}"
            )

    def _kept(self) -> Central | None:
        counts, shift, mean, *sums = (getattr(self, name) for name in self.STATE)
        return None if counts is None else Central(counts, shift, mean, tuple(sums))

    def _central(self) -> Central:
        kept = self._kept()
        if kept is None:
            raise BadArgumentError("nothing was added yet")
        return kept

    def _set(self, whole: Central) -> None:
        for name, value in zip(self.STATE, whole.parts(), strict=True):
            setattr(self, name, value)


class Mean(CentralStatistic):
    """The mean of each feature.

    >>> Mean().add([[1., 5.], [3., 2.]]).add([[2., 5.]]).mean()
    tensor([2., 4.], dtype=torch.float64)

    Each NaN is left out alone: the other features of its sample take part. Infinities take part. Weights are of samples
    or of single values.

    Args:
        nan: what is done with NaN, see `Statistic`.
    """

    def __init__(self, *, nan: str = "omit") -> None:
        super().__init__(nan=nan)

    def result(self) -> Tensor:
        """The mean."""
        return self.mean()


class Variance(CentralStatistic):
    """Mean, variance and standard deviation of each feature or channel.

    >>> Variance().add([[1., 5.], [3., 2.]]).add([[2., 5.]]).variance()
    tensor([1., 3.], dtype=torch.float64)
    >>> Variance(channel=1).add(torch.ones(8, 3, 5, 5)).std()
    tensor([0., 0., 0.], dtype=torch.float64)

    Batches are put together by the pairwise update of Chan, Golub and LeVeque (1979, "Updating formulae and a pairwise
    algorithm for computing sample variances"), each with the distances from its own mean.

    Each NaN is left out alone: the other features of its sample take part. With an infinite value the mean is infinite
    and the variance NaN. Weights are of samples or of single values: a weight of 2 is the value twice.

    Args:
        nan: what is done with NaN, see `Statistic`.
        channel: the dimension of a batch that has a figure an index, all others being samples: 1 for activations of
            shape ``(samples, channels, height, width)``. None for a figure a feature.
    """

    SETTINGS: ClassVar[tuple[str, ...]] = ("channel",)
    STATE: ClassVar[tuple[str, ...]] = (*CentralStatistic.STATE, "_squares")

    def variance(self, ddof: float = 1) -> Tensor:
        """The sum of squared distances from the mean over ``counts - ddof``; NaN where that is not positive."""
        kept = self._central()
        return divided(kept.sums[0], kept.counts - ddof)

    def std(self, ddof: float = 1) -> Tensor:
        """The root of the variance."""
        return self.variance(ddof).sqrt()

    def result(self) -> Tensor:
        """The variance, with ``ddof=1``."""
        return self.variance()

    def pooled(self, dim: int) -> Variance:
        """What a `Variance` of channels would have, had it been given the same batches as this one of features.

        Args:
            dim: the dimension of a sample that has the channels.
        """
        whole = Variance(nan=self.nan, channel=1)
        whole._set(pooled(self._central(), dim))
        whole.count, whole.nans = self.count, self.nans
        return whole


class Moments(Variance):
    """Mean, variance, skewness and excess kurtosis of each feature or channel.

    >>> moments = Moments().add([[1.], [2.]]).add([[3.], [10.]])
    >>> moments.skewness(), moments.kurtosis()
    (tensor([1.0182], dtype=torch.float64), tensor([-0.7696], dtype=torch.float64))

    Batches are put together by the update formulas of Pebay (2008, "Formulas for robust, one-pass parallel computation
    of covariances and arbitrary-order statistical moments", Sandia report SAND2008-6212).

    Each NaN is left out alone: the other features of its sample take part. With an infinite value all but the mean are
    NaN. Weights are of samples or of single values: a weight of 2 is the value twice.

    Args:
        nan: what is done with NaN, see `Statistic`.
        channel: the dimension of a batch that has a figure an index, as of `Variance`.
    """

    STATE = (*Variance.STATE, "_cubes", "_fourths")

    def central_moment(self, order: int) -> Tensor:
        """The mean of that power of the distances from the mean, of the population.

        Args:
            order: 2, 3 or 4.
        """
        if order not in (2, 3, 4):
            raise BadArgumentError(f"order is 2, 3 or 4, not {order!r:.60}: no other powers are summed")
        kept = self._central()
        return divided(kept.sums[order - 2], kept.counts)

    def skewness(self) -> Tensor:
        """The third central moment over the standard deviation cubed, of the population (``ddof=0``).

        NaN where all values are equal, and where a fourth power leaves the range of float64.
        """
        counts, (squares, cubes, _) = self._in_range()
        return cubes / squares / squares.sqrt() * counts.sqrt()

    def kurtosis(self) -> Tensor:
        """The fourth central moment over the squared variance, of the population, less the 3 of a normal distribution.

        NaN where all values are equal, and where a fourth power leaves the range of float64.
        """
        counts, (squares, _, fourths) = self._in_range()
        return fourths / squares / squares * counts - 3

    def _in_range(self) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Counts and sums, NaN where fourth powers are too small or too large to be told from 0 and infinity."""
        kept = self._central()
        fine = (kept.sums[2] > _LEAST) & kept.sums[2].isfinite()
        return kept.counts, tuple(torch.where(fine, one, math.nan) for one in kept.sums)


def divided(sums: Tensor, by: Tensor) -> Tensor:
    """A quotient that is NaN where the divisor is not positive."""
    return torch.where(by > 0, sums / torch.where(by > 0, by, 1.0), math.nan)


class NormMean(CentralStatistic):
    """The mean length of samples, each flattened to a vector.

    >>> NormMean().add([[3., 4.], [0., 1.]]).mean()
    tensor(3., dtype=torch.float64)

    A sample with a NaN in it is left out. Weights are of samples.

    Args:
        ord: which norm, as in `torch.linalg.vector_norm`.
        nan: what is done with NaN, see `Statistic`.

    Raises:
        BadArgumentError: if `ord` is no number.
    """

    SETTINGS = ("ord",)

    def __init__(self, ord: float = 2, *, nan: str = "omit") -> None:
        super().__init__(nan=nan)
        if isinstance(ord, bool) or not isinstance(ord, int | float) or math.isnan(ord):
            raise BadArgumentError(f"ord is the number of a norm, such as 1, 2 or math.inf, not {ord!r:.80}")
        self.ord = float(ord)

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        weights = per_sample(weights, samples)
        norms = _norms(samples.reshape(len(samples), math.prod(samples.shape[1:])), self.ord)
        before = self.nans
        super()._add(norms, weights)
        if self.nans > before:
            used = norms.isnan() if weights is None else norms.isnan() & (weights > 0)
            self.nans = before + int(samples[used].isnan().sum())

    def result(self) -> Tensor:
        """The mean."""
        return self.mean()


def _norms(rows: Tensor, ord: float) -> Tensor:
    """The norm of each row; where powers leave the range of float64, of the row over its largest value."""
    rows = rows.double()
    if not rows.shape[1]:
        return rows.new_zeros(len(rows))
    norms: Tensor = torch.linalg.vector_norm(rows, ord, dim=1)
    small = 1e-290 ** (1 / abs(ord)) if ord else 0.0  # whose power is near the least numbers there are
    odd = (norms < small) | ~norms.isfinite()
    if not bool(odd.any()):
        return norms
    largest = rows.abs().amax(1)
    odd &= largest.isfinite() & (largest > 0)
    scaled: Any = torch.linalg.vector_norm(rows / largest[:, None], ord, dim=1) * largest
    return torch.where(odd, scaled, norms)
