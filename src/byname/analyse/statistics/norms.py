"""How long are samples, as vectors?"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from byname.analyse.statistics.batches import per_sample
from byname.analyse.statistics.moments import CentralStatistic
from byname.errors import BadArgumentError

__all__ = ["NormMean"]


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
