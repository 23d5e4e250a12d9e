"""What is the mean outer product of samples?"""

from __future__ import annotations

from torch import Tensor

from byname.analyse.statistics.moments import divided
from byname.analyse.statistics.rows import check_features, rows_of
from byname.analyse.statistics.statistic import Statistic
from byname.errors import BadArgumentError

__all__ = ["SecondMoment"]


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
