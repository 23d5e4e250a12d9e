"""Which matrix is there at a place? That of all samples, or a weight as it is."""

from __future__ import annotations

import math
from typing import Any, ClassVar, TypeAlias

import torch
from torch import Tensor

from byname.analyse.analysers.analyser import Analyser
from byname.analyse.analysers.channels import Layout, checked_channel, positions_of, with_channel
from byname.analyse.analysers.sample import Sample
from byname.analyse.statistics.factor import Factor
from byname.analyse.statistics.statistic import Statistic
from byname.errors import BadArgumentError

__all__ = ["AllRows", "LatestWeight", "Matrix", "OfMatrices"]

_ROWS = ("positions", "samples")


class AllRows(Factor):
    """The rows of all batches, and how exact the numbers in them are.

    >>> matrix = AllRows().add(torch.ones(5, 3, dtype=torch.bfloat16))
    >>> matrix.shape, matrix.eps
    ((5, 3), 0.0078125)
    """

    STATE: ClassVar[tuple[str, ...]] = (*Factor.STATE, "eps")

    def __init__(self, *, nan: str = "omit") -> None:
        super().__init__(nan=nan)
        self.eps = 0.0

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        columns = math.prod(samples.shape[1:])
        if self._shift is not None and len(self._shift) != columns:
            raise BadArgumentError(
                f"the matrix has {len(self._shift)} columns; what is added has {columns}: where samples change their "
                'shape rows="positions" has a column for each channel'
            )
        super()._add(samples, weights)
        self.eps = max(self.eps, _eps(samples))

    def _merge(self, other: Any) -> None:
        super()._merge(other)
        self.eps = max(self.eps, other.eps)

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows took part, and of how many columns."""
        assert self._shift is not None
        return int(self.counts), len(self._shift)


class LatestWeight(Statistic):
    """A parameter as it was the last time, the first dimension against all others."""

    STATE = ("_weight",)

    def __init__(self, *, nan: str = "omit") -> None:
        super().__init__(nan=nan)
        self._weight: Tensor | None = None

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        matrix = samples.reshape(len(samples), math.prod(samples.shape[1:]))
        self._weight = matrix.clone()
        self.nans = int(matrix.isnan().sum())

    def _merge(self, other: LatestWeight) -> None:
        self._weight = other._there().clone()

    def _there(self) -> Tensor:
        if self._weight is None:
            raise BadArgumentError("nothing was added yet")
        return self._weight

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        rows, columns = self._there().shape
        return rows, columns

    @property
    def eps(self) -> float:
        """How exact its numbers are."""
        return _eps(self._there())

    def singular_values(self) -> Tensor:
        """As many as there are rows or columns, the largest first; NaN if a value is not finite."""
        weight = self._there().double()
        if not bool(weight.isfinite().all()):
            return weight.new_full((min(weight.shape),), torch.nan)
        found: Tensor = torch.linalg.svdvals(weight)
        return found

    def result(self) -> Tensor:
        """The singular values."""
        return self.singular_values()


Matrix: TypeAlias = AllRows | LatestWeight


class OfMatrices(Analyser):
    """An analyser of the matrix of all samples of a place, or of a weight; see `Rank` for what its rows are.

    Args:
        rows: ``"positions"`` for one row a position, its columns being the channels; ``"samples"`` for one row a
            sample, flattened. Of values of two dimensions they are the same.
        channel_dim: the dimension of the channels.

    Raises:
        BadArgumentError: if an argument is none of these.
    """

    def __init__(self, rows: str, channel_dim: int | None) -> None:
        super().__init__()
        if rows not in _ROWS:
            raise BadArgumentError(f"rows is one of {', '.join(map(repr, _ROWS))}, not {rows!r}")
        self.rows = rows
        self.channel_dim = checked_channel(channel_dim)

    def settings(self) -> dict[str, Any]:
        """What the rows and channels are."""
        return {"rows": self.rows, "channel_dim": self.channel_dim}

    def begin(self, sample: Sample) -> dict[Any, Any]:
        """No rows yet."""
        return {"layout": Layout(), "matrix": LatestWeight() if sample.parameter else AllRows()}

    def take(self, kept: Any, sample: Sample) -> None:
        """Adds the rows of a sample."""
        value = with_channel(sample.value)
        if not sample.parameter and self.rows == "positions":
            rows = positions_of(value, self.channel_dim)
            kept["layout"].take(sample, value, rows.shape[1], self.channel_dim)
            value = rows
        kept["matrix"].add(value)


def _eps(values: Tensor) -> float:
    """The distance from 1 to the next number of a type; of float64 where numbers are whole."""
    return torch.finfo(values.dtype if values.is_floating_point() else torch.float64).eps
