"""Which samples have the largest, or the smallest, values?"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from byname.analyse.statistics.statistic import Statistic
from byname.analyse.statistics.values import common_type, comparable, missing, only_mask, widest
from byname.errors import BadArgumentError

__all__ = ["Top", "TopK"]


class Top(NamedTuple):
    """The values of each feature, the foremost first, and which samples they are of."""

    values: Tensor
    indices: Tensor


class TopK(Statistic):
    """The k largest or smallest values of each feature, and the numbers of their samples.

    >>> seen = TopK(2).add(torch.tensor([[1., 9.], [5., 8.]])).add(torch.tensor([[7., 0.]]))
    >>> seen.result()
    Top(values=tensor([[7., 9.],
            [5., 8.]], dtype=torch.float64), indices=tensor([[2, 0],
            [1, 1]]))

    Exactly `torch.topk` of all samples along dimension 0. Samples are numbered from 0 as they were added; those of a
    statistic that is merged come after those that are here. Of equal values the one of the earlier sample is first.
    There are fewer rows than k if there were fewer samples. The values are float64, those of integers are in the type
    of the data. Types of one kind may be mixed, floating point and integers may not.

    NaN is left out, and so is what a mask of bools leaves out; these samples are numbered, too. Where a feature has
    less than k values, the index is -1 in the rows that are missing, and the value NaN (integers: the least of the
    type, or the greatest with ``largest=False``). With ``nan="propagate"`` a feature that met a NaN has only such rows.

    Args:
        k: how many.
        largest: whether the largest are wanted, else the smallest.
        nan: ``"omit"``, ``"propagate"`` or ``"raise"``.
    """

    SETTINGS = ("k", "largest")
    STATE = ("_values", "_indices", "_spoilt")

    def __init__(self, k: int = 10, largest: bool = True, *, nan: str = "omit") -> None:
        super().__init__(nan=nan)
        if type(k) is not int or k < 1:
            raise BadArgumentError(f"k is a whole number of at least 1, not {k!r}")
        self.k = k
        self.largest = bool(largest)
        self._values: Tensor | None = None
        self._indices: Tensor | None = None
        self._spoilt: Tensor | None = None

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        samples = comparable(samples)
        mask = only_mask(weights, "TopK")
        kind = self._fitting(samples)
        part, isnan = missing(samples, mask, self.nan)
        values, part = samples.to(self._place(samples), kind), None if part is None else part.to(self._place(samples))
        rows = self._promising(values, part)
        indices = (rows + self.count).reshape(-1, *[1] * (values.ndim - 1)).expand(-1, *values.shape[1:])
        if part is not None:
            indices = indices.where(part[rows], -1)
        spoilt = None if isnan is None or self.nan != "propagate" else isnan.any(0)
        self._take(values[rows], indices, spoilt)
        self.nans += 0 if isnan is None else int(isnan.sum())

    def _place(self, samples: Tensor) -> torch.device:
        return samples.device if self._values is None else self._values.device

    def _fitting(self, samples: Tensor) -> torch.dtype:
        """The type that holds these and the values that are here, if the shapes fit."""
        if self._values is None:
            return widest(common_type("TopK", None, samples.dtype))
        if samples.shape[1:] != self._values.shape[1:]:
            raise BadArgumentError(
                f"the samples had the shape {tuple(self._values.shape[1:])} before, and have "
                f"{tuple(samples.shape[1:])} now"
            )
        return widest(common_type("TopK", self._values.dtype, samples.dtype))

    def _promising(self, values: Tensor, part: Tensor | None) -> Tensor:
        """The rows in which any value can come to be among the foremost; the others need not be sorted."""
        rows = torch.arange(len(values), device=values.device)
        if self._values is None or self._indices is None or len(self._values) < self.k:
            return rows
        last = self._values[-1]
        better = (values > last if self.largest else values < last) | (self._indices[-1] < 0)
        better = better if part is None else better & part
        return rows[better.reshape(len(values), better.shape[1:].numel()).any(1)]

    def _take(self, values: Tensor, indices: Tensor, spoilt: Tensor | None) -> None:
        """Takes in values whose samples are later than those here."""
        if self._values is not None and self._indices is not None:
            values = torch.cat([self._values.to(values.dtype), values])
            indices = torch.cat([self._indices, indices])
        order = values.argsort(dim=0, descending=self.largest, stable=True)
        absent = indices.gather(0, order) < 0
        order = order.gather(0, absent.byte().argsort(dim=0, stable=True))[: self.k]
        values, indices = values.gather(0, order), indices.gather(0, order)
        self._values, self._indices = values.masked_fill_(indices < 0, self._none(values.dtype)), indices
        if spoilt is not None:
            self._spoilt = spoilt.to(values.device) | (False if self._spoilt is None else self._spoilt)

    def _none(self, kind: torch.dtype) -> float:
        """What stands for a value that is not there."""
        if kind.is_floating_point:
            return torch.nan
        if kind is torch.bool:
            return not self.largest
        return torch.iinfo(kind).min if self.largest else torch.iinfo(kind).max

    def _merge(self, other: TopK) -> None:
        assert other._values is not None
        assert other._indices is not None
        kind = self._fitting(other._values)
        place = self._place(other._values)
        indices = other._indices.where(other._indices < 0, other._indices + self.count)
        self._take(other._values.to(place, kind), indices.to(place), other._spoilt)

    def result(self) -> Top:
        """The values and the numbers of their samples, each of shape (k, ...); the foremost first."""
        if self._values is None or self._indices is None:
            raise BadArgumentError("nothing was added yet")
        values, indices = self._values.clone(), self._indices.clone()
        if self._spoilt is not None:
            values.masked_fill_(self._spoilt, self._none(values.dtype))
            indices.masked_fill_(self._spoilt, -1)
        return Top(values, indices)

    def topk(self) -> Top:
        """The same as `result`."""
        return self.result()
