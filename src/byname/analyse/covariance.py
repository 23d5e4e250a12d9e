"""Covariance: how features vary together; second moments about zero, and singular values by a triangular factor."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from byname.analyse.batches import SampleRows, check_features, known, sample_rows
from byname.analyse.moments import divided
from byname.analyse.statistic import PairStatistic, Statistic, SummedStatistic


class CovarianceStatistic(Statistic):
    """A statistic from the means of columns and the sums of products of the distances from them.

    The products are of the first columns with the last. Distances are taken from a row of the data (`_shift`): `_mean`
    is their mean, and the sums of squares and of products are of what is left without it.
    """

    STATE: ClassVar[tuple[str, ...]] = ("_counts", "_shift", "_mean", "_squares", "_products")
    _counts: Any
    _shift: Any
    _mean: Any
    _squares: Any
    _products: Any

    @property
    def counts(self) -> Tensor:
        """How many samples took part, or the sum of their weights."""
        counts: Tensor = known(self._counts).clone()
        return counts

    def covariance(self, ddof: float = 1) -> Tensor:
        """Return the matrix of sums of products over ``counts - ddof``; NaN where that is not positive."""
        return divided(known(self._products), self._counts - ddof)

    def correlation(self) -> Tensor:
        """Return the covariance over both standard deviations (Pearson); NaN where one of them is zero."""
        products: Tensor = known(self._products)
        left, right = self._sides(self._squares.sqrt())
        return (products / left[:, None] / right).clamp(-1, 1)

    result = covariance

    def _means(self) -> Tensor:
        return torch.where(known(self._counts) > 0, self._shift + self._mean, math.nan)

    def _sides(self, columns: Tensor) -> tuple[Tensor, Tensor]:
        """Return the left and the right columns of the products, along the last dimension."""
        first, last = self._products.shape
        return columns[..., :first], columns[..., columns.shape[-1] - last :]

    def _merge(self, other: Self) -> None:
        first, last = other._products.shape
        self._begin(first, last, other._shift)
        if bool(other._counts):
            mean = other._mean + (other._shift - self._shift)
            self._products.add_(other._products)
            self._put_together(other._counts, mean, other._squares)

    def _take_rows(self, rows: SampleRows, first: int, last: int) -> None:
        self._begin(first, last, rows.origin)
        if len(rows.values):
            place = self._shift.device
            weights = None if rows.weights is None else rows.weights.to(place)
            far = replace(rows, values=rows.values.to(place) - self._shift, weights=weights)
            mean = far.mean
            far.values.sub_(mean)
            weighted = far.weighted
            self._products.addmm_(self._sides(weighted)[0].T, self._sides(far.values)[1])
            squares = None if self._whole else torch.linalg.vecdot(weighted, far.values, dim=0)
            self._put_together(far.counts, mean, squares)
        self.nans += rows.nans

    def _begin(self, first: int, last: int, shift: Tensor) -> None:
        """Check the numbers of columns; as long as no sample took part, measure distances from `shift`."""
        if self._products is not None:
            check_features(self, self._products.shape[0], first)
            check_features(self, self._products.shape[1], last)
        if self._counts is None or not bool(self._counts):
            self._shift, self._counts, self._products = shift.clone(), shift.new_zeros(()), shift.new_zeros(first, last)
            self._mean, self._squares = torch.zeros_like(shift), torch.zeros_like(shift)

    @property
    def _whole(self) -> bool:
        """Whether the products are of all columns with all, so that the squares are among them."""
        return self._products.shape == (len(self._mean), len(self._mean))  # type: ignore[no-any-return]

    def _put_together(self, counts: Tensor, mean: Tensor, squares: Tensor | None) -> None:
        """Combine means and sums with those of another part, whose products were added (Chan, Golub, LeVeque 1979)."""
        whole = self._counts + counts
        share = counts / whole
        far = mean - self._mean
        moved = far * (self._counts * share)
        self._products.addr_(self._sides(moved)[0], self._sides(far)[1])
        if self._whole:
            self._squares.copy_(self._products.diagonal())
        else:
            self._squares.add_(squares).addcmul_(moved, far)
        self._counts, self._mean = whole, self._mean + far * share


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
        nan: how NaN is treated, see `Statistic`.
    """

    def mean(self) -> Tensor:
        """Return the mean of each feature."""
        return self._means()

    def variance(self, ddof: float = 1) -> Tensor:
        """Return the diagonal of the covariance."""
        return divided(known(self._squares), self._counts - ddof)

    def std(self, ddof: float = 1) -> Tensor:
        """Return the root of the variance."""
        return self.variance(ddof).sqrt()

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        rows = sample_rows(samples, weights, self.nan)
        self._take_rows(rows, rows.values.shape[1], rows.values.shape[1])


class CrossCovariance(PairStatistic, CovarianceStatistic):
    """Covariance and correlation of the features of one place with those of another, over the same samples.

    >>> cross = CrossCovariance().add([[1.], [2.], [3.]], [[0., 5.], [2., 5.], [4., 5.]])
    >>> cross.covariance()
    tensor([[2., 0.]], dtype=torch.float64)
    >>> cross.correlation().round(decimals=4)
    tensor([[1., nan]], dtype=torch.float64)

    Update, flattening, NaN and weights as of `Covariance`; a NaN on one side leaves out the sample on both.

    Args:
        nan: how NaN is treated, see `Statistic`.
    """

    def means(self) -> tuple[Tensor, Tensor]:
        """Return the mean of each feature on the one side and on the other."""
        return self._sides(self._means())

    def _add_pair(self, samples: Tensor, others: Tensor, weights: Tensor | None) -> None:
        first, last = (one.reshape(len(one), math.prod(one.shape[1:])).double() for one in (samples, others))
        rows = sample_rows(torch.cat([first, last], 1), weights, self.nan)
        self._take_rows(rows, first.shape[1], last.shape[1])


class SecondMoment(SummedStatistic):
    """The mean of the outer product of each sample with itself, not centred: ``E[x x^T]``.

    >>> SecondMoment().add([[1., 2.], [3., 0.]]).second_moment()
    tensor([[5., 1.],
            [1., 2.]], dtype=torch.float64)

    Samples of more dimensions are flattened. A sample with a NaN in it is left out; with ``nan="propagate"`` the rows
    and columns of that feature become NaN. Infinities take part. Weights are of samples.

    Args:
        nan: how NaN is treated, see `Statistic`.
    """

    STATE = ("_products", "_counts")

    @property
    def counts(self) -> Tensor:
        """How many samples took part, or the sum of their weights."""
        return self.known()[1]

    def second_moment(self) -> Tensor:
        """Return the matrix, of shape ``(features, features)``; NaN where there are no samples."""
        return divided(*self.known())

    result = second_moment

    def _of(self, samples: Tensor, weights: Tensor | None) -> tuple[tuple[Tensor, ...], int]:
        rows = sample_rows(samples, weights, self.nan)
        return (rows.weighted.T @ rows.values, rows.counts), rows.nans

    def _fold(self, more: tuple[Tensor, ...]) -> None:
        before = getattr(self, self.STATE[0])
        if before is not None:
            check_features(self, len(before), len(more[0]))
        super()._fold(more)


class Factor(Statistic):
    """The singular values of the matrix of all samples, raw or centred.

    >>> factor = Factor().add([[3., 0.], [0., 4.]]).add([[0., 0.]])
    >>> factor.singular_values()
    tensor([4.0000, 3.0000], dtype=torch.float64)
    >>> factor.eigenvalues()
    tensor([6.4821, 1.8513], dtype=torch.float64)

    What is kept is the triangular factor of a QR decomposition of ``[1 | X]``, which has the singular values of the
    data to the precision of float64, also those whose squares would be lost in a covariance (Golub and Van Loan 2013,
    "Matrix computations", sections 5.2 and 6.5). The column of ones accounts for the centring. Rows are
    gathered until there are more than features, and then go into the factor at once.

    Samples of more dimensions are flattened. A sample with a NaN in it is left out; with ``nan="propagate"``, and with
    an infinite value, all figures become NaN. Weights are of samples: a weight of 2 is the sample twice.

    Args:
        nan: how NaN is treated, see `Statistic`.
    """

    STATE: ClassVar[tuple[str, ...]] = ("_counts", "_shift", "_rows", "_spoilt")
    _counts: Tensor | None
    _shift: Tensor | None  # a sample, taken off all: a large offset would cost digits
    _rows: Sequence[Tensor] = ()  # a triangular factor first, when there were enough; then rows as they came
    _spoilt = False

    @property
    def counts(self) -> Tensor:
        """How many samples took part, or the sum of their weights."""
        return known(self._counts).clone()

    def singular_values(self, centred: bool = False) -> Tensor:
        """Return one for each feature, the largest first; with fewer samples the others are zero.

        Args:
            centred: whether of the samples less their mean.
        """
        shift, factor = self._kept()
        features = len(shift)
        if self._spoilt:
            return shift.new_full((features,), math.nan)
        values = factor[1:, 1:] if centred else factor[:, 1:] + torch.outer(factor[:, 0], shift)
        found: Tensor = torch.linalg.svdvals(values)[:features]
        return torch.cat([found, found.new_zeros(features - len(found))])

    def eigenvalues(self, ddof: float = 1) -> Tensor:
        """Return the eigenvalues of the covariance, the largest first: squared singular values over ``counts - ddof``.

        NaN where that is not positive.
        """
        squares = self.singular_values(centred=True).square()
        by = float(self.counts) - ddof
        return squares / by if by > 0 else torch.full_like(squares, math.nan)

    result = singular_values

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        rows = sample_rows(samples, weights, self.nan)
        check_features(self, rows.values.shape[1] if self._shift is None else len(self._shift), rows.values.shape[1])
        shift = rows.origin if self._shift is None or not bool(self._counts) else self._shift
        values = rows.values - shift.to(rows.values.device)
        table = torch.cat([values.new_ones(len(values), 1), values], 1)
        self._take(rows.counts, shift, table if rows.weights is None else table * rows.weights.sqrt()[:, None])
        self.nans += rows.nans

    def _merge(self, other: Factor) -> None:
        shift, factor = other._kept()
        check_features(self, len(known(self._shift)), len(shift))
        self._take(other.counts, shift, factor)
        self._spoilt |= other._spoilt

    def _take(self, counts: Tensor, shift: Tensor, table: Tensor) -> None:
        """Add rows; `table` holds them less the shift, behind a column of ones."""
        whole = counts if self._counts is None else self._counts + counts.to(self._counts.device)
        kept = shift if self._shift is None or not bool(self._counts) else self._shift
        table = table.to(whole.device, copy=True)
        table[:, 1:] += torch.outer(table[:, 0], (shift.to(kept.device) - kept).to(whole.device))
        spoilt = self._spoilt or not bool(table.isfinite().all())
        rows = [] if spoilt else [*self._rows, table]
        if sum(map(len, rows)) > len(kept):
            rows = [_triangular(rows)]
        self._counts, self._shift, self._rows, self._spoilt = whole.clone(), kept.clone(), rows, spoilt

    def _kept(self) -> tuple[Tensor, Tensor]:
        shift = known(self._shift)
        return shift, _triangular([shift.new_zeros(0, len(shift) + 1), *self._rows])


def _triangular(rows: list[Tensor]) -> Tensor:
    factor: Tensor = torch.linalg.qr(torch.cat(rows), mode="r").R
    return factor
