"""What are the smallest and the largest value, and which sample had them?"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from byname.analyse.statistics.statistic import Statistic
from byname.analyse.statistics.values import common_type, comparable, missing, widest
from byname.errors import BadArgumentError

__all__ = ["Extremes", "Range"]

_Found: TypeAlias = tuple[Tensor, Tensor]
"""The extreme of each feature, and the number of the sample that has it; -1 where there is no value."""


class Range(NamedTuple):
    """The smallest and the largest value of each feature."""

    min: Tensor
    max: Tensor


class Extremes(Statistic):
    """The smallest and the largest value of each feature, exactly: as float64, of integers in the type of the data.

    >>> extremes = Extremes().add(torch.tensor([[1., 5.], [3., 2.]]))
    >>> extremes.result()
    Range(min=tensor([1., 2.], dtype=torch.float64), max=tensor([3., 5.], dtype=torch.float64))
    >>> extremes.argmax()
    tensor([1, 0])

    Infinities take part. NaN are left out value by value; with ``nan="propagate"`` a feature that has one is NaN, and
    its sample is that of the first NaN. A value with a weight of 0, or masked, takes no part; other weights change
    nothing. Where no value of a feature took part its extremes are NaN. Batches may differ in type as long as one holds
    the numbers of both exactly (float16 with float32, not int64 with float32).

    Args:
        nan: what is done with NaN, see `Statistic`.
    """

    STATE = ("_low", "_high")

    def __init__(self, *, nan: str = "omit") -> None:
        super().__init__(nan=nan)
        self._low: _Found | None = None
        self._high: _Found | None = None

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        samples = comparable(samples)
        common_type("Extremes", None, samples.dtype)
        given = None if weights is None else (weights != 0).expand(samples.shape)
        mask, isnan = missing(samples, given, self.nan)
        mask = given if self.nan == "propagate" else mask
        self._low, self._high = (
            _farther(known, _extreme(samples, mask, largest, known), self.count, largest)
            for known, largest in ((self._low, False), (self._high, True))
        )
        self.nans += 0 if isnan is None else int(isnan.sum())

    def _merge(self, other: Extremes) -> None:
        assert other._low is not None
        assert other._high is not None
        self._low, self._high = (
            _farther(self._low, other._low, self.count, False),
            _farther(self._high, other._high, self.count, True),
        )

    def min(self) -> Tensor:
        """The smallest value of each feature."""
        return self.result().min

    def max(self) -> Tensor:
        """The largest value of each feature."""
        return self.result().max

    def argmin(self) -> Tensor:
        """The number of the first sample that has the smallest value, in the order of adding; -1 if none has."""
        return _known(self._low)[1].clone()

    def argmax(self) -> Tensor:
        """The number of the first sample that has the largest value, in the order of adding; -1 if none has."""
        return _known(self._high)[1].clone()

    def result(self) -> Range:
        """The smallest and the largest value of each feature.

        Raises:
            BadArgumentError: if nothing was added, or if a feature of integers, which have no NaN, has no value.
        """
        return Range(_defined(_known(self._low)), _defined(_known(self._high)))


def _known(found: _Found | None) -> _Found:
    if found is None:
        raise BadArgumentError("nothing was added yet")
    return found


def _defined(found: _Found) -> Tensor:
    """The values, NaN where there is none."""
    values, where = found
    none = where < 0
    if values.is_floating_point():
        return values.masked_fill(none, float("nan"))
    if bool(none.any()):
        raise BadArgumentError(
            f"no value of {int(none.sum())} of {none.numel()} features took part, and integers have no NaN to say so"
        )
    return values.clone()


def _extreme(samples: Tensor, mask: Tensor | None, largest: bool, known: _Found | None) -> _Found:
    """That of one batch, with the numbers of the batch's samples; -1 also where it is not beyond the known one."""
    if not len(samples):
        where = torch.full(samples.shape[1:], -1, device=samples.device)
        return torch.zeros_like(where, dtype=samples.dtype), where
    if mask is None and known is not None and known[0].shape == samples.shape[1:]:
        values = samples.amax(0) if largest else samples.amin(0)
        where = torch.full_like(known[1], -1)
        better = _beyond(values.to(known[0].device), known, largest)
        if bool(better.any()):  # to find the sample takes longer than to find the value: only where it is needed
            beyond = samples[:, better.to(samples.device)]
            beyond = beyond.byte() if beyond.dtype is torch.bool else beyond  # PyTorch 2.13 has no argmax of bools
            where[better] = (beyond.argmax(0) if largest else beyond.argmin(0)).to(where.device)
        return values, where
    if mask is None:
        values, where = samples.max(0) if largest else samples.min(0)
        return values, where
    filled = samples.masked_fill(~mask, _end(samples.dtype, lowest=largest))
    values = filled.amax(0) if largest else filled.amin(0)
    has = mask & ((samples == values) | (samples.isnan() & values.isnan()))
    return values, torch.where(has.any(0), has.to(torch.uint8).argmax(0), -1)


def _end(dtype: torch.dtype, *, lowest: bool) -> float | int | bool:
    """The lowest or the highest number of a type."""
    if dtype is torch.bool:
        return not lowest
    if dtype.is_floating_point:
        return float("-inf") if lowest else float("inf")
    return torch.iinfo(dtype).min if lowest else torch.iinfo(dtype).max


def _farther(mine: _Found | None, other: _Found, start: int, largest: bool) -> _Found:
    """The extremes of both, where the samples of the other come after `start` samples; the first of equal ones."""
    values, where = other
    where = torch.where(where < 0, where, where + start)
    if mine is None:
        return values.to(widest(values.dtype), copy=True), where
    if values.shape != mine[0].shape:
        raise BadArgumentError(f"samples were of shape {tuple(mine[0].shape)} before, these are {tuple(values.shape)}")
    dtype = widest(common_type("Extremes", mine[0].dtype, values.dtype))
    known, values, where = mine[0].to(dtype), values.to(mine[0].device, dtype), where.to(mine[0].device)
    better = (where >= 0) & _beyond(values, (known, mine[1]), largest)
    return torch.where(better, values, known), torch.where(better, where, mine[1])


def _beyond(values: Tensor, known: _Found, largest: bool) -> Tensor:
    """Where the values take the place of those known: also where none is known, and NaN of all others."""
    farther = values > known[0] if largest else values < known[0]
    return (known[1] < 0) | farther | (values.isnan() & ~known[0].isnan())
