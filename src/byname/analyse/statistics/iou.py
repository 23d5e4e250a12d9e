"""IoU: which units fire on the same samples."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from byname.analyse.statistics.batches import missing, only_mask, tensor_of
from byname.analyse.statistics.statistic import PairStatistic, Statistic
from byname.errors import BadArgumentError

Threshold: TypeAlias = float | Tensor | None


class _Fired(NamedTuple):
    """Ones where a unit fired, and where it took part (None: everywhere); float64, exact to 2**53, also in autocast."""

    fired: Tensor
    there: Tensor | None

    def known(self) -> Tensor:
        return torch.ones_like(self.fired) if self.there is None else self.there


class _Overlap(Statistic):
    """Counts of samples for each pair of units."""

    STATE = ("_intersection", "_union")

    def __init__(self, *, nan: str) -> None:
        super().__init__(nan=nan)
        if nan == "propagate":
            raise BadArgumentError('a count cannot be NaN: nan is "omit" or "raise"')
        self._intersection: Tensor | None = None
        self._union: Tensor | None = None

    def iou(self) -> Tensor:
        """Intersection over union of each pair, float64; NaN for two units that never fired."""
        return self.intersection().double() / self.union().double()

    def intersection(self) -> Tensor:
        """On how many samples both units of each pair fired, int64."""
        if self._intersection is None:
            raise BadArgumentError("nothing was added yet")
        return self._intersection.clone()

    def union(self) -> Tensor:
        """On how many samples at least one unit of each pair fired, int64."""
        if self._union is None:
            raise BadArgumentError("nothing was added yet")
        return self._union.clone()

    def result(self) -> Tensor:
        """`iou`."""
        return self.iou()

    def _merge(self, other: _Overlap) -> None:
        assert other._intersection is not None
        assert other._union is not None
        self._take(other._intersection, other._union)

    def _count(self, rows: _Fired, columns: _Fired) -> None:
        both = rows.fired.T @ columns.fired
        if rows.there is None and columns.there is None:
            each = rows.fired.sum(0)[:, None] + columns.fired.sum(0)
        else:
            each = rows.fired.T @ columns.known() + rows.known().T @ columns.fired
        self._take(both.long(), (each - both).long())

    def _take(self, intersection: Tensor, union: Tensor) -> None:
        if self._intersection is None or self._union is None:
            self._intersection, self._union = intersection.clone(), union.clone()
            return
        if intersection.shape != self._intersection.shape:
            before, now = tuple(self._intersection.shape), tuple(intersection.shape)
            raise BadArgumentError(f"there were {before} pairs of units before, now there are {now}")
        device = self._intersection.device
        self._intersection, self._union = self._intersection + intersection.to(device), self._union + union.to(device)


class IoU(_Overlap):
    """How alike the samples are on which two units fire: of all pairs, the intersection over the union.

    ``iou[i, j] = |i and j| / |i or j|``, a matrix (units, units), from exact counts of samples. This is what network
    dissection compares units by (Bau et al. 2017, *Network Dissection*).

    >>> iou = IoU().add([[True, True], [True, False], [False, False]])
    >>> iou.result()
    tensor([[1.0000, 0.5000],
            [0.5000, 1.0000]], dtype=torch.float64)
    >>> iou.intersection()
    tensor([[2, 1],
            [1, 1]])

    Batches are bools (samples, units), or (samples,) of one unit; with `threshold` also numbers. A mask leaves out
    samples, or values: a pair is then counted on the samples where both units are there. NaN are left out likewise, or
    refused with ``nan="raise"``; other weights make no sense.

    Args:
        threshold: a unit fires where its value is larger; one number, or one of each unit (units,).
    """

    SETTINGS = ("threshold",)

    def __init__(self, *, threshold: Threshold = None, nan: str = "omit") -> None:
        super().__init__(nan=nan)
        self.threshold = _checked(threshold)

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        units, nans = _fired(samples, weights, self.threshold, self.nan)
        self._count(units, units)
        self.nans += nans


class CrossIoU(PairStatistic, _Overlap):
    """The intersection over union of every unit of one set with every unit of another: a matrix (units, other units).

    >>> units, concepts = torch.tensor([[0.5], [3.0], [2.0]]), torch.tensor([[True], [True], [False]])
    >>> CrossIoU(threshold=1.0).add(units, concepts).result()
    tensor([[0.3333]], dtype=torch.float64)

    Everything else is as with `IoU`.

    Args:
        threshold: a unit of the first set fires where its value is larger; needed for all but bools.
        other_threshold: the same of the second set.
    """

    SETTINGS = ("threshold", "other_threshold")

    def __init__(self, *, threshold: Threshold = None, other_threshold: Threshold = None, nan: str = "omit") -> None:
        super().__init__(nan=nan)
        self.threshold = _checked(threshold)
        self.other_threshold = _checked(other_threshold)

    def _add_pair(self, samples: Tensor, others: Tensor, weights: Tensor | None) -> None:
        rows, nans = _fired(samples, weights, self.threshold, self.nan)
        columns, more = _fired(others, weights, self.other_threshold, self.nan)
        self._count(rows, columns)
        self.nans += nans + more


def _checked(threshold: Threshold) -> Threshold:
    """A float, or a float64 tensor of one for each unit."""
    if threshold is None:
        return None
    found = tensor_of(threshold, "a threshold").to(torch.float64, copy=True)
    if found.ndim > 1 or bool(found.isnan().any()):
        raise BadArgumentError(f"a threshold is a number, or one of each unit, not {threshold!r:.200}")
    return found if found.ndim else float(found)


def _fired(samples: Tensor, weights: Tensor | None, threshold: Threshold, nan: str) -> tuple[_Fired, int]:
    """The units of a batch, and how many values are NaN."""
    if samples.ndim > 2:
        raise BadArgumentError(
            f"batches are (samples, units), not {tuple(samples.shape)}: where positions are samples, "
            "use value.movedim(1, -1).flatten(0, -2)"
        )
    samples = samples[:, None] if samples.ndim == 1 else samples
    given = only_mask(weights, "an IoU")
    given = given[:, None] if given is not None and given.ndim == 1 else given
    if samples.dtype is torch.bool:
        fired = samples
    elif threshold is None:
        raise BadArgumentError(f"units are bools, not {samples.dtype}: give a threshold, or add value > 0")
    else:
        fired = _above(samples, threshold)
    mask, isnan = missing(samples, given, nan)
    nans = 0 if isnan is None else int(isnan.sum())
    if mask is None:
        return _Fired(fired.double(), None), nans
    return _Fired((fired & mask).double(), mask.double()), nans


def _above(samples: Tensor, threshold: float | Tensor) -> Tensor:
    """In float64: a bfloat16 would be compared with the threshold rounded to a bfloat16."""
    if isinstance(threshold, Tensor) and threshold.shape != samples.shape[1:]:
        raise BadArgumentError(f"{threshold.numel()} thresholds do not go with {samples.shape[1]} units")
    return samples.double() > (threshold.to(samples.device) if isinstance(threshold, Tensor) else threshold)
