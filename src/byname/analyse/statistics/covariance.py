"""Covariance: how features vary together; also of two sets of features, and second moments about zero."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from byname.analyse.statistics.batches import SampleRows, check_features, rows_of
from byname.analyse.statistics.moments import divided
from byname.analyse.statistics.statistic import PairStatistic, Statistic
from byname.errors import BadArgumentError


@dataclass(frozen=True, slots=True)
class Comoments:
    """Rows, told by sums, float64. As in `Central`, distances are from a value of the data.

    Attributes:
        counts: how many rows, or the sum of their weights.
        shift: the row from which distances are.
        mean: the mean of the distances from the shift.
        squares: the sums of the squared distances from the mean.
        products: the sums of products of the distances from the mean, of the first columns with the last.
    """

    counts: Tensor
    shift: Tensor
    mean: Tensor
    squares: Tensor
    products: Tensor

    def to(self, device: torch.device) -> Comoments:
        """The same on another device."""
        parts = (self.counts, self.shift, self.mean, self.squares, self.products)
        return Comoments(*(part.to(device) for part in parts))


def comoments_of(rows: SampleRows, first: int, last: int) -> Comoments:
    """The sums of rows.

    Args:
        rows: what takes part.
        first: how many columns stand to the left in the products, from the first one on.
        last: how many columns stand to the right in the products, up to the last one.
    """
    nothing = rows.values.new_zeros(rows.values.shape[1])
    products = rows.values.new_zeros(first, last)
    empty = Comoments(torch.zeros_like(rows.counts), rows.origin, nothing, torch.zeros_like(nothing), products)
    return added(empty, rows) if len(rows.values) else empty


def added(known: Comoments, rows: SampleRows) -> Comoments:
    """What is known and rows, as one (Chan, Golub and LeVeque 1979); its squares and products are changed in place."""
    first, last = known.products.shape
    columns = rows.values.shape[1]
    counts = known.counts + rows.counts
    share = rows.counts / counts
    apart = replace(rows, values=rows.values - known.shift)
    mean = apart.mean
    apart.values.sub_(mean)
    weighted = apart.weighted
    far = mean - known.mean
    moved = far * (known.counts * share)
    known.products.addmm_(weighted[:, :first].T, apart.values[:, columns - last :])
    known.products.addr_(moved[:first], far[columns - last :])
    if first == columns:
        known.squares.copy_(known.products.diagonal())
    else:
        known.squares.add_(torch.linalg.vecdot(weighted, apart.values, dim=0)).addcmul_(moved, far)
    return replace(known, counts=counts, mean=known.mean + far * share)


def joined(one: Comoments, other: Comoments) -> Comoments:
    """Two parts as one; Chan, Golub and LeVeque 1979, for products."""
    if not bool(other.counts) or not bool(one.counts):
        return one if bool(one.counts) else other
    counts = one.counts + other.counts
    share = other.counts / counts
    far = other.mean + (other.shift - one.shift)
    apart = far - one.mean
    left, right = apart[: one.products.shape[0]], apart[len(apart) - one.products.shape[1] :]
    scale = one.counts * share
    return Comoments(
        counts,
        one.shift,
        one.mean * (one.counts / counts) + far * share,
        one.squares + other.squares + apart * (apart * scale),
        one.products + other.products + torch.outer(left * scale, right),
    )


def correlation(found: Comoments) -> Tensor:
    """Pearson's; NaN where a standard deviation is zero."""
    spread = found.squares.sqrt()
    left, right = spread[: found.products.shape[0]], spread[len(spread) - found.products.shape[1] :]
    figures = found.products / left[:, None] / right
    return figures.clamp(-1, 1)


class CovarianceStatistic(Statistic):
    """What is told by the means of columns and the sums of products of the distances from them."""

    STATE: ClassVar[tuple[str, ...]] = ("_counts", "_shift", "_mean", "_squares", "_products")

    def __init__(self, *, nan: str = "omit") -> None:
        super().__init__(nan=nan)
        for name in self.STATE:
            setattr(self, name, None)

    @property
    def counts(self) -> Tensor:
        """How many samples took part, or the sum of their weights."""
        return self._comoments().counts.clone()

    def covariance(self, ddof: float = 1) -> Tensor:
        """The matrix of sums of products over ``counts - ddof``; NaN where that is not positive."""
        kept = self._comoments()
        return divided(kept.products, kept.counts - ddof)

    def correlation(self) -> Tensor:
        """The covariance over the standard deviations of both features (Pearson); NaN where one of them is zero."""
        return correlation(self._comoments())

    def result(self) -> Tensor:
        """The covariance, with ``ddof=1``."""
        return self.covariance()

    def _merge(self, other: Self) -> None:
        found = other._comoments()
        self._check(*found.products.shape)
        self._take(found)

    def _take_rows(self, rows: SampleRows, first: int, last: int) -> None:
        self._check(first, last)
        kept = self._kept()
        if kept is None or not bool(kept.counts) or not len(rows.values) or kept.mean.device != rows.values.device:
            self._take(comoments_of(rows, first, last))
        else:
            whole = added(kept, rows)
            self._counts, self._mean = whole.counts, whole.mean
        self.nans += rows.nans

    def _check(self, first: int, last: int) -> None:
        kept = self._kept()
        if kept is not None:
            check_features(self, kept.products.shape[0], first)
            check_features(self, kept.products.shape[1], last)

    def _kept(self) -> Comoments | None:
        parts = [getattr(self, name) for name in CovarianceStatistic.STATE]
        return None if parts[0] is None else Comoments(*parts)

    def _comoments(self) -> Comoments:
        kept = self._kept()
        if kept is None:
            raise BadArgumentError("nothing was added yet")
        return kept

    def _take(self, found: Comoments) -> None:
        kept = self._kept()
        whole = found if kept is None else joined(kept, found.to(kept.mean.device))
        for name in CovarianceStatistic.STATE:
            setattr(self, name, getattr(whole, name[1:]).clone())

    def _means(self) -> Tensor:
        kept = self._comoments()
        return torch.where(kept.counts > 0, kept.shift + kept.mean, math.nan)


class Covariance(CovarianceStatistic):
    """Mean, covariance and correlation of all pairs of features.

    >>> Covariance().add([[1., 2.], [3., 2.]]).add([[2., 5.]]).covariance()
    tensor([[1., 0.],
            [0., 3.]], dtype=torch.float64)

    Batches are added in place by the update of Chan, Golub and LeVeque (1979), each with the distances from its own
    mean. Samples of more dimensions are flattened. A sample with a NaN in it is left out as a whole; with
    ``nan="propagate"`` the rows and columns of that feature become NaN, as they do with an infinite value. Weights are
    of samples: a weight of 2 is the sample twice.

    Args:
        nan: what is done with NaN, see `Statistic`.
    """

    def mean(self) -> Tensor:
        """The mean of each feature."""
        return self._means()

    def variance(self, ddof: float = 1) -> Tensor:
        """The diagonal of the covariance."""
        kept = self._comoments()
        return divided(kept.squares, kept.counts - ddof)

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        rows = rows_of(samples, weights, self.nan)
        self._take_rows(rows, rows.values.shape[1], rows.values.shape[1])


class CrossCovariance(PairStatistic, CovarianceStatistic):
    """Covariance and correlation of the features of one place with those of another, over the same samples.

    >>> cross = CrossCovariance().add([[1.], [2.], [3.]], [[0., 5.], [2., 5.], [4., 5.]])
    >>> cross.covariance()
    tensor([[2., 0.]], dtype=torch.float64)
    >>> cross.correlation()
    tensor([[1.0000,    nan]], dtype=torch.float64)

    Update, flattening, NaN and weights as of `Covariance`; a NaN on one side leaves out the sample on both.

    Args:
        nan: what is done with NaN, see `Statistic`.
    """

    def means(self) -> tuple[Tensor, Tensor]:
        """The mean of each feature on the one side and on the other."""
        first = self._comoments().products.shape[0]
        return self._means()[:first], self._means()[first:]

    def _add_pair(self, samples: Tensor, others: Tensor, weights: Tensor | None) -> None:
        first, last = (one.reshape(len(one), math.prod(one.shape[1:])).double() for one in (samples, others))
        rows = rows_of(torch.cat([first, last], 1), weights, self.nan)
        self._take_rows(rows, first.shape[1], last.shape[1])


class SecondMoment(Statistic):
    """The mean of the outer product of each sample with itself, not centred: ``E[x x^T]``.

    >>> SecondMoment().add([[1., 2.], [3., 0.]]).second_moment()
    tensor([[5., 1.],
            [1., 2.]], dtype=torch.float64)

    Samples of more dimensions are flattened. A sample with a NaN in it is left out; with ``nan="propagate"`` the rows
    and columns of that feature become NaN. Infinities take part. Weights are of samples.

    Args:
        nan: what is done with NaN, see `Statistic`.
    """

    STATE = ("_counts", "_products")

    def __init__(self, *, nan: str = "omit") -> None:
        super().__init__(nan=nan)
        self._counts: Tensor | None = None
        self._products: Tensor | None = None

    @property
    def counts(self) -> Tensor:
        """How many samples took part, or the sum of their weights."""
        return self._kept()[0].clone()

    def second_moment(self) -> Tensor:
        """The matrix, of shape ``(features, features)``; NaN where there are no samples."""
        counts, products = self._kept()
        return divided(products, counts)

    def result(self) -> Tensor:
        """The second moment."""
        return self.second_moment()

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        rows = rows_of(samples, weights, self.nan)
        self._take(rows.counts, rows.weighted.T @ rows.values)
        self.nans += rows.nans

    def _merge(self, other: SecondMoment) -> None:
        self._take(*other._kept())

    def _take(self, counts: Tensor, products: Tensor) -> None:
        if self._counts is None or self._products is None:
            self._counts, self._products = counts.clone(), products.clone()
            return
        check_features(self, len(self._products), len(products))
        device = self._counts.device
        self._counts, self._products = self._counts + counts.to(device), self._products + products.to(device)

    def _kept(self) -> tuple[Tensor, Tensor]:
        if self._counts is None or self._products is None:
            raise BadArgumentError("nothing was added yet")
        return self._counts, self._products
