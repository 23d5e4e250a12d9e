"""Extremes: the smallest and largest value of each feature, the k largest with their samples, and all samples."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from byname.analyse.batches import (
    check_shape,
    checked_integer,
    common_type,
    comparable,
    counted_nan,
    end_of,
    known,
    missing,
    only_mask,
    widest,
)
from byname.analyse.statistic import Statistic
from byname.errors import BadArgumentError

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
        nan: how NaN is treated, see `Statistic`.
    """

    STATE = ("_low", "_high")
    _low: _Found | None
    _high: _Found | None

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        samples = comparable(samples)
        common_type("Extremes", None, samples.dtype)
        given = None if weights is None else (weights != 0).expand(samples.shape)
        mask, isnan = missing(samples, given, self.nan)
        mask = given if self.nan == "propagate" else mask
        self._low, self._high = (
            _farther(self, known, _extreme(samples, mask, largest, known), largest)
            for known, largest in ((self._low, False), (self._high, True))
        )
        self.nans += counted_nan(isnan, self.nan)

    def _merge(self, other: Extremes) -> None:
        self._low = _farther(self, self._low, known(other._low), False)
        self._high = _farther(self, self._high, known(other._high), True)

    def min(self) -> Tensor:
        """Return the smallest value of each feature."""
        return self.result().min

    def max(self) -> Tensor:
        """Return the largest value of each feature."""
        return self.result().max

    def argmin(self) -> Tensor:
        """Return the number of the first sample that has the smallest value, in the order of adding; -1 if none has."""
        return known(self._low)[1].clone()

    def argmax(self) -> Tensor:
        """Return the number of the first sample that has the largest value, in the order of adding; -1 if none has."""
        return known(self._high)[1].clone()

    def result(self) -> Range:
        """Return the smallest and the largest value of each feature.

        Raises:
            BadArgumentError: if nothing was added, or if a feature of integers, which have no NaN, has no value.
        """
        return Range(_defined(known(self._low)), _defined(known(self._high)))


def _defined(found: _Found) -> Tensor:
    """Return the values, NaN where there is none."""
    values, where = found
    none = where < 0
    if values.is_floating_point():
        return values.masked_fill(none, float("nan"))
    if bool(none.any()):
        raise BadArgumentError(
            f"{int(none.sum())} of {none.numel()} features have no values, and integers have no NaN to show it"
        )
    return values.clone()


def _extreme(samples: Tensor, mask: Tensor | None, largest: bool, known: _Found | None) -> _Found:
    """Return the extreme of one batch, with the sample numbers; -1 also where it is not beyond the known one."""
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
        return samples.max(0) if largest else samples.min(0)
    filled = samples.masked_fill(~mask, end_of(samples.dtype, lowest=largest))
    values = filled.amax(0) if largest else filled.amin(0)
    has = mask & ((samples == values) | (samples.isnan() & values.isnan()))
    return values, torch.where(has.any(0), has.to(torch.uint8).argmax(0), -1)


def _farther(of: Extremes, mine: _Found | None, other: _Found, largest: bool) -> _Found:
    """Return the extremes of both; the samples of the second follow. Of equal values the first counts."""
    values, where = other
    where = torch.where(where < 0, where, where + of.count)
    if mine is None:
        return values.to(widest(values.dtype), copy=True), where
    check_shape(of, mine[0].shape, values.shape)
    dtype = widest(common_type("Extremes", mine[0].dtype, values.dtype))
    known, values, where = mine[0].to(dtype), values.to(mine[0].device, dtype), where.to(mine[0].device)
    better = (where >= 0) & _beyond(values, (known, mine[1]), largest)
    return torch.where(better, values, known), torch.where(better, where, mine[1])


def _beyond(values: Tensor, known: _Found, largest: bool) -> Tensor:
    """Return where values replace the known ones: also where none is known; NaN replaces all others."""
    farther = values > known[0] if largest else values < known[0]
    return (known[1] < 0) | farther | (values.isnan() & ~known[0].isnan())


class Top(NamedTuple):
    """The values of each feature, the largest (or smallest) first, and the numbers of their samples."""

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
    _values: Tensor | None
    _indices: Tensor | None
    _spoilt: Tensor | None

    def __init__(self, k: int = 10, largest: bool = True, *, nan: str = "omit") -> None:
        super().__init__(nan=nan)
        self.k = checked_integer(k, "k", 1)
        self.largest = bool(largest)

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        samples = comparable(samples)
        mask = only_mask(weights, "TopK")
        kind = self._fitting(samples)
        part, isnan = missing(samples, mask, self.nan)
        place = samples.device if self._values is None else self._values.device
        values, part = samples.to(place, kind), None if part is None else part.to(place)
        rows = self._promising(values, part)
        indices = (rows + self.count).reshape(-1, *[1] * (values.ndim - 1)).expand(-1, *values.shape[1:])
        if part is not None:
            indices = indices.where(part[rows], -1)
        spoilt = None if isnan is None or self.nan != "propagate" else isnan.any(0)
        self._take(values[rows], indices, spoilt)
        self.nans += counted_nan(isnan, self.nan)

    def _fitting(self, samples: Tensor) -> torch.dtype:
        """Return the dtype that holds these and the present values, if the shapes fit."""
        if self._values is None:
            return widest(common_type("TopK", None, samples.dtype))
        check_shape(self, self._values.shape[1:], samples.shape[1:])
        return widest(common_type("TopK", self._values.dtype, samples.dtype))

    def _promising(self, values: Tensor, part: Tensor | None) -> Tensor:
        """Return the rows with a value that may enter the result; the others need not be sorted."""
        rows = torch.arange(len(values), device=values.device)
        if self._values is None or self._indices is None or len(self._values) < self.k:
            return rows
        last = self._values[-1]
        better = (values > last if self.largest else values < last) | (self._indices[-1] < 0)
        better = better if part is None else better & part
        return rows[better.reshape(len(values), better.shape[1:].numel()).any(1)]

    def _take(self, values: Tensor, indices: Tensor, spoilt: Tensor | None) -> None:
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
        return torch.nan if kind.is_floating_point else end_of(kind, lowest=self.largest)

    def _merge(self, other: TopK) -> None:
        values, indices = known(other._values), known(other._indices)
        kind = self._fitting(values)
        indices = indices.where(indices < 0, indices + self.count)
        self._take(values.to(kind), indices, other._spoilt)

    def result(self) -> Top:
        """Return the values and their samples, each of shape (k, ...), the largest (or smallest) first."""
        values, indices = known(self._values).clone(), known(self._indices).clone()
        if self._spoilt is not None:
            values.masked_fill_(self._spoilt, self._none(values.dtype))
            indices.masked_fill_(self._spoilt, -1)
        return Top(values, indices)

    topk = result


class History(Statistic):
    """Everything that was added, in order and in its own type.

    >>> History().add(torch.tensor([[1, 2]])).add(torch.tensor([[3, 4], [5, 6]])).result()
    tensor([[1, 2],
            [3, 4],
            [5, 6]])

    It grows with the data, and refuses what would make it larger than its limit. NaN are kept; only ``nan="raise"`` is
    another policy. A mask leaves out whole samples, other weights make no sense. Batches may differ in type as long as
    one holds the numbers of both exactly.

    Args:
        limit: how many bytes it may hold; None for as many as there are.
        nan: ``"propagate"`` or ``"raise"``.
    """

    SETTINGS = ("limit",)
    STATE = ("_parts",)

    def __init__(self, *, limit: int | None = 2**30, nan: str = "propagate") -> None:
        super().__init__(nan=nan)
        if nan == "omit":
            raise BadArgumentError('a History keeps everything: nan is "propagate" or "raise", not "omit"')
        self.limit = None if limit is None else checked_integer(limit, "limit")
        self._parts: list[Tensor] = []

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        if weights is not None:
            if weights.dtype is not torch.bool or weights.numel() != len(samples):
                raise BadArgumentError("a History takes only a mask of samples as weights, bools of shape (samples,)")
            samples = samples[weights.flatten()]
        _, isnan = missing(samples, None, self.nan)
        self._append([samples])
        self.nans += counted_nan(isnan, self.nan)

    def _merge(self, other: History) -> None:
        self._append(other._parts)

    @property
    def nbytes(self) -> int:
        """How many bytes are held."""
        return sum(part.nbytes for part in self._parts)

    def result(self) -> Tensor:
        """Return all samples, along dimension 0."""
        return torch.cat(known(self._parts or None))

    def _append(self, parts: list[Tensor]) -> None:
        """Append copies of the parts. Neighbours of similar size are joined, so that there are always few."""
        dtype = self._checked([*self._parts, *parts])
        device = self._parts[0].device if self._parts else parts[0].device
        kept = [part.to(dtype) for part in self._parts]
        for part in parts:
            kept.append(part.to(device, dtype, copy=True, memory_format=torch.contiguous_format))
            while len(kept) > 1 and len(kept[-2]) <= 2 * len(kept[-1]):
                kept[-2:] = [torch.cat(kept[-2:])]
        self._parts = kept

    def _checked(self, parts: list[Tensor]) -> torch.dtype:
        """Return the type of all parts together, if they fit together and are not too large."""
        dtype = parts[0].dtype
        for part in parts[1:]:
            dtype = dtype if dtype is part.dtype else common_type("History", dtype, part.dtype)
            check_shape(self, parts[0].shape[1:], part.shape[1:])
        size = sum(part.numel() for part in parts) * dtype.itemsize
        if self.limit is not None and size > self.limit:
            raise BadArgumentError(
                f"this History would hold {size:,} bytes, more than limit={self.limit:,}: give it a larger limit, add "
                "fewer samples, or keep a TopK, a Quantile or a Histogram instead"
            )
        return dtype
