"""What are the singular values of all samples together, without the samples?"""

from __future__ import annotations

import math
from typing import ClassVar

import torch
from torch import Tensor

from byname.analyse.statistics.batches import SampleRows, check_features, rows_of
from byname.analyse.statistics.statistic import Statistic
from byname.errors import BadArgumentError


class Factor(Statistic):
    """The singular values of the matrix of all samples, raw or centred.

    >>> factor = Factor().add([[3., 0.], [0., 4.]]).add([[0., 0.]])
    >>> factor.singular_values()
    tensor([4.0000, 3.0000], dtype=torch.float64)
    >>> factor.eigenvalues()
    tensor([6.4821, 1.8513], dtype=torch.float64)

    What is kept is the triangular factor of a QR decomposition of ``[1 | X]``, which has the singular values of the
    data to the precision of float64, also those whose squares would be lost in a covariance (Golub and Van Loan 2013,
    "Matrix computations", sections 5.2 and 6.5). The column of ones tells what centring takes off. Rows are
    gathered until there are more than features, and then go into the factor at once.

    Samples of more dimensions are flattened. A sample with a NaN in it is left out; with ``nan="propagate"``, and with
    an infinite value, all figures become NaN. Weights are of samples: a weight of 2 is the sample twice.

    Args:
        nan: what is done with NaN, see `Statistic`.
    """

    STATE: ClassVar[tuple[str, ...]] = ("_counts", "_shift", "_rows", "_spoilt")

    def __init__(self, *, nan: str = "omit") -> None:
        super().__init__(nan=nan)
        self._counts: Tensor | None = None
        self._shift: Tensor | None = None  # a sample, taken off all: a large offset would cost digits
        self._rows: list[Tensor] = []  # a triangular factor first, when there were enough; then rows as they came
        self._spoilt = False

    @property
    def counts(self) -> Tensor:
        """How many samples took part, or the sum of their weights."""
        if self._counts is None:
            raise BadArgumentError("nothing was added yet")
        return self._counts.clone()

    def singular_values(self, centred: bool = False) -> Tensor:
        """As many as there are features, the largest first; with fewer samples the rest is zero.

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
        """Those of the covariance, the largest first: squared singular values, centred, over ``counts - ddof``.

        NaN where that is not positive.
        """
        squares = self.singular_values(centred=True).square()
        by = float(self.counts) - ddof
        return squares / by if by > 0 else torch.full_like(squares, math.nan)

    def result(self) -> Tensor:
        """The singular values of the samples as they are."""
        return self.singular_values()

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        rows = rows_of(samples, weights, self.nan)
        self._check(rows.values.shape[1])
        shift = rows.origin if self._shift is None or not bool(self._counts) else self._shift
        self._take(rows.counts, shift, _with_ones(rows, shift.to(rows.values.device)))
        self.nans += rows.nans

    def _merge(self, other: Factor) -> None:
        shift, factor = other._kept()
        self._check(len(shift))
        self._take(other.counts, shift, factor)
        self._spoilt |= other._spoilt

    def _take(self, counts: Tensor, shift: Tensor, table: Tensor) -> None:
        """Puts rows together with what is there; `table` are those less the shift, behind a column of ones."""
        whole = counts if self._counts is None else self._counts + counts.to(self._counts.device)
        kept = shift if self._shift is None or not bool(self._counts) else self._shift
        table = table.to(whole.device, copy=True)
        table[:, 1:] += torch.outer(table[:, 0], (shift.to(kept.device) - kept).to(whole.device))
        spoilt = self._spoilt or not bool(table.isfinite().all())
        rows = [] if spoilt else [*self._rows, table]
        if sum(map(len, rows)) > len(kept):
            rows = [_triangular(rows)]
        self._counts, self._shift, self._rows, self._spoilt = whole.clone(), kept.clone(), rows, spoilt

    def _check(self, features: int) -> None:
        if self._shift is not None:
            check_features(self, len(self._shift), features)

    def _kept(self) -> tuple[Tensor, Tensor]:
        """The shift and the factor of all rows."""
        if self._shift is None:
            raise BadArgumentError("nothing was added yet")
        return self._shift, _triangular([self._shift.new_zeros(0, len(self._shift) + 1), *self._rows])


def _with_ones(rows: SampleRows, shift: Tensor) -> Tensor:
    table = torch.cat([rows.values.new_ones(len(rows.values), 1), rows.values - shift], 1)
    return table if rows.weights is None else table * rows.weights.sqrt()[:, None]


def _triangular(rows: list[Tensor]) -> Tensor:
    factor: Tensor = torch.linalg.qr(torch.cat(rows), mode="r").R
    return factor
