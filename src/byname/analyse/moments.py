"""Moments: `Mean`, `Variance`, `Moments` up to the fourth, and `NormMean`, by sums of powers of distances."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from byname.analyse.batches import check_shape, checked_channel, counted_nan, known, missing, per_sample
from byname.analyse.power_sums import PowerSums, gathered, merged_sums, shifted, sums_of
from byname.analyse.statistic import Statistic
from byname.errors import BadArgumentError

_LEAST = 1e-290
"""A sum below this may have lost digits: the smallest numbers of float64 have fewer."""


class CentralStatistic(Statistic):
    """A statistic from sums of powers of the distances from a value."""

    STATE: ClassVar[tuple[str, ...]] = ("_counts", "_pivot", "_sums", "_room")
    ORDER: ClassVar[int] = 1
    """The highest power."""
    channel: int | None = None
    _counts: Any
    _pivot: Tensor | None
    _sums: Sequence[Tensor] = ()
    _room = 0.0  # the number of values that may be added about this pivot

    @property
    def counts(self) -> Tensor:
        """The number of values in each figure, or the sum of their weights."""
        return self._about_pivot().each_count()

    @property
    def begun(self) -> bool:
        """Whether there was a batch, even an empty one."""
        return self._kept() is not None

    def mean(self) -> Tensor:
        """Return the mean of each figure; NaN where there is no value."""
        kept = self._about_pivot()
        return kept.pivot + kept.sums[0] / kept.counts

    def result(self) -> Tensor:
        """Return the mean."""
        return self.mean()

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        channel = self._channel_of(samples)
        self._check_shape(samples.shape[1:] if channel is None else samples.shape[channel : channel + 1])
        present, absent = missing(samples, None if weights is None else weights > 0, self.nan)
        if absent is not None and self.nan == "omit" and present is not None:
            weights = present if weights is None else present * weights
        self._take(samples, weights, channel)
        self.nans += counted_nan(absent, self.nan)

    def add_finite(self, samples: Tensor) -> None:
        """Take a batch as `add` does, whose values are known to be finite: there is no look for NaN."""
        self._check_shape(samples.shape[1:])
        self._take(samples, None, None)
        self.count += len(samples)

    def _take(self, samples: Tensor, weights: Tensor | None, channel: int | None) -> None:
        kept = self._kept()
        each = samples.numel() // max(1, kept.pivot.numel()) if kept else 0
        if kept is None or weights is not None or each > kept.room() or kept.pivot.device != samples.device:
            found = sums_of(samples, weights, self.ORDER, channel)
            self._set(found if kept is None else merged_sums(kept, found.to(kept.pivot.device)))
            return
        if each > self._room:
            kept.recentre()
            self._room = kept.room()
        kept.add(samples, channel)
        self._counts = kept.counts
        self._room -= each

    def _merge(self, other: CentralStatistic) -> None:
        mine, others = self._about_pivot(), other._about_pivot()
        self._check_shape(others.pivot.shape)
        self._set(merged_sums(mine, others))

    def _channel_of(self, samples: Tensor) -> int | None:
        if self.channel is None:
            return None
        if not -samples.ndim <= self.channel < samples.ndim or self.channel % samples.ndim == 0:
            raise BadArgumentError(
                f"channel={self.channel} is not a dimension after the first in a batch of shape {tuple(samples.shape)}"
            )
        return self.channel % samples.ndim

    def _check_shape(self, shape: torch.Size) -> None:
        if self._pivot is not None:
            check_shape(self, self._pivot.shape, shape, "figures")

    def _kept(self) -> PowerSums | None:
        if self._counts is None or self._pivot is None:
            return None
        return PowerSums(self._counts, self._pivot, self._sums)

    def _about_pivot(self) -> PowerSums:
        return known(self._kept())

    def _about_mean(self) -> tuple[Tensor, list[Tensor]]:
        """Return the counts, and the sums of the second, third ... power of the distances from the mean."""
        kept = self._about_pivot()
        return kept.each_count(), shifted(kept.counts, kept.sums, kept.sums[0] / kept.counts)[1:]

    def _set(self, whole: PowerSums) -> None:
        self._counts, self._pivot, self._sums = whole.counts, whole.pivot, whole.sums
        self._room = whole.room()


class Mean(CentralStatistic):
    """The mean of each feature.

    >>> Mean().add([[1., 5.], [3., 2.]]).add([[2., 5.]]).mean()
    tensor([2., 4.], dtype=torch.float64)

    Each NaN is left out alone: the other features of its sample take part. Infinities take part. Weights are of samples
    or of single values.

    Args:
        nan: how NaN is treated, see `Statistic`.
    """


class Variance(CentralStatistic):
    """Mean, variance and standard deviation of each feature or channel.

    >>> Variance().add([[1., 5.], [3., 2.]]).add([[2., 5.]]).variance()
    tensor([1., 3.], dtype=torch.float64)
    >>> Variance(channel=1).add(torch.ones(8, 3, 5, 5)).std()
    tensor([0., 0., 0.], dtype=torch.float64)

    Batches are added to sums of powers of the distances from a pivot, the mean of earlier values, which moves on before
    it lies too far away. The figures have the digits that numpy has for all values at once, also near a large offset.

    Each NaN is left out alone: the other features of its sample take part. With an infinite value the mean is infinite
    and the variance NaN. Weights are of samples or of single values: a weight of 2 is the value twice.

    Args:
        nan: how NaN is treated, see `Statistic`.
        channel: the dimension of a batch that has a figure an index, all others being samples: 1 for activations of
            shape ``(samples, channels, height, width)``. None for a figure a feature.
    """

    SETTINGS: ClassVar[tuple[str, ...]] = ("channel",)
    ORDER = 2

    def __init__(self, *, nan: str = "omit", channel: int | None = None) -> None:
        super().__init__(nan=nan)
        self.channel = checked_channel(channel)

    def variance(self, ddof: float = 1) -> Tensor:
        """Return the sum of squared distances from the mean over ``counts - ddof``; NaN where that is not positive."""
        counts, (squares, *_) = self._about_mean()
        return divided(squares, counts - ddof)

    def std(self, ddof: float = 1) -> Tensor:
        """Return the root of the variance."""
        return self.variance(ddof).sqrt()

    result = variance

    @staticmethod
    def add_each(given: Iterable[tuple[Variance, Tensor]]) -> None:
        """Give each of some statistics one more sample of its shape, finite and float64, whose memory is reused."""
        ready: list[tuple[Variance, Tensor]] = []
        for one, sample in given:
            if one._room >= 1 and one._pivot is not None and one._pivot.device == sample.device:
                ready.append((one, sample))
            else:
                one.add_finite(sample[None])
        if not ready:
            return
        far = [sample for _, sample in ready]  # a few calls for all of them
        torch._foreach_sub_(far, [known(one._pivot) for one, _ in ready])
        torch._foreach_add_([one._sums[0] for one, _ in ready], far)
        torch._foreach_addcmul_([one._sums[1] for one, _ in ready], far, far)
        for one, _ in ready:
            one._counts += 1
            one._room -= 1
            one.count += 1

    def pooled(self, dim: int) -> Variance:
        """Return the `Variance` of channels that the same batches would give as this one of features.

        Args:
            dim: the dimension of the channels in a sample.
        """
        whole = Variance(nan=self.nan, channel=1)
        kept = self._about_pivot()
        parts = (kept.each_count(), kept.pivot, *kept.sums)
        rows = [(part if part.ndim else part[None]).movedim(dim, -1) for part in parts]
        rows = [part.reshape(math.prod(part.shape[:-1]), part.shape[-1]) for part in rows]
        whole._set(gathered(rows[0], rows[1], rows[2:]))
        whole.count, whole.nans = self.count, self.nans
        return whole


class Moments(Variance):
    """Mean, variance, skewness and excess kurtosis of each feature or channel.

    >>> moments = Moments().add([[1.], [2.]]).add([[3.], [10.]])
    >>> moments.skewness(), moments.kurtosis()
    (tensor([1.0182], dtype=torch.float64), tensor([-0.7696], dtype=torch.float64))

    Each NaN is left out alone: the other features of its sample take part. With an infinite value all but the mean are
    NaN. Weights are of samples or of single values: a weight of 2 is the value twice.

    Args:
        nan: how NaN is treated, see `Statistic`.
        channel: the dimension of a batch that has a figure an index, as of `Variance`.
    """

    ORDER = 4

    def central_moment(self, order: int) -> Tensor:
        """Return the mean of that power of the distances from the mean, of the population.

        Args:
            order: 2, 3 or 4.
        """
        if order not in (2, 3, 4):
            raise BadArgumentError(f"order is 2, 3 or 4, not {order!r:.60}")
        counts, sums = self._about_mean()
        return divided(sums[order - 2], counts)

    def skewness(self) -> Tensor:
        """Return the third central moment over the standard deviation cubed, of the population (``ddof=0``).

        NaN where all values are equal, and where a fourth power leaves the range of float64.
        """
        counts, (squares, cubes, _) = self._in_range()
        return cubes / squares / squares.sqrt() * counts.sqrt()

    def kurtosis(self) -> Tensor:
        """Return the fourth central moment over the squared variance of the population, minus 3, that of a normal one.

        NaN where all values are equal, and where a fourth power leaves the range of float64.
        """
        counts, (squares, _, fourths) = self._in_range()
        return fourths / squares / squares * counts - 3

    def _in_range(self) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return counts and sums, NaN where fourth powers underflow or overflow."""
        counts, sums = self._about_mean()
        fine = (sums[2] > _LEAST) & sums[2].isfinite()
        return counts, tuple(torch.where(fine, one, math.nan) for one in sums)


def divided(sums: Tensor, by: Tensor) -> Tensor:
    """Return a quotient that is NaN where the divisor is not positive."""
    return torch.where(by > 0, sums / torch.where(by > 0, by, 1.0), math.nan)


class NormMean(CentralStatistic):
    """The mean length of samples, each flattened to a vector.

    >>> NormMean().add([[3., 4.], [0., 1.]]).mean()
    tensor(3., dtype=torch.float64)

    A sample with a NaN in it is left out. Weights are of samples.

    Args:
        ord: which norm, as in `torch.linalg.vector_norm`.
        nan: how NaN is treated, see `Statistic`.

    Raises:
        BadArgumentError: if `ord` is no number.
    """

    SETTINGS = ("ord",)

    def __init__(self, ord: float = 2, *, nan: str = "omit") -> None:
        super().__init__(nan=nan)
        if isinstance(ord, bool) or not isinstance(ord, int | float) or math.isnan(ord):
            raise BadArgumentError(f"ord is the order of a norm, such as 1, 2 or math.inf, not {ord!r:.80}")
        self.ord = float(ord)

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        weights = per_sample(weights, samples)
        norms = _norms(samples.reshape(len(samples), math.prod(samples.shape[1:])), self.ord)
        before = self.nans
        super()._add(norms, weights)
        if self.nans > before:
            used = norms.isnan() if weights is None else norms.isnan() & (weights > 0)
            self.nans = before + int(samples[used].isnan().sum())


def _norms(rows: Tensor, ord: float) -> Tensor:
    """Return the norm of each row; if powers leave the range of float64, rows are scaled by their largest value."""
    if not rows.shape[1]:
        return rows.new_zeros(rows.shape[0], dtype=torch.float64)
    rows = rows if rows.is_floating_point() and rows.itemsize > 1 else rows.double()
    norms: Tensor = torch.linalg.vector_norm(rows, ord, dim=1, dtype=torch.float64)
    small = 1e-290 ** (1 / abs(ord)) if ord else 0.0  # whose power is near the least numbers there are
    if rows.shape[0] == 1 and small <= float(norms) < math.inf:
        return norms
    odd = (norms < small) | ~norms.isfinite()
    if not bool(odd.any()):
        return norms
    rows = rows.double()
    largest = rows.abs().amax(1)
    odd &= largest.isfinite() & (largest > 0)
    scaled: Any = torch.linalg.vector_norm(rows / largest[:, None], ord, dim=1) * largest
    return torch.where(odd, scaled, norms)
