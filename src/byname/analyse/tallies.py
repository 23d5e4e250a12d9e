"""Tallies: `Bincount` of integers, `Histogram` of numbers, and `IoU`, which units fire on the same samples."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad

from byname.analyse.batches import Batch, checked_integer, counted_nan, missing, only_mask, tensor_of
from byname.analyse.statistic import PairStatistic, SummedStatistic
from byname.errors import BadArgumentError


class Bincount(SummedStatistic):
    """How often each of the numbers 0, 1, 2 ... occurs, as `numpy.bincount` counts.

    >>> Bincount().add(torch.tensor([[0, 3], [1, 3]])).result()
    tensor([1, 1, 0, 2])

    Batches are non-negative integers, or bools, of any shape; a mask leaves numbers out
    (``add(labels, labels != -100)``). Counts are int64, or float64 sums once there were weights other than a mask.
    Integers have no NaN, so that ``nan`` makes no difference.

    Args:
        minlength: the least number of counts.
        limit: the most counts; a number of `limit` or more is refused, for there is a count for each number below it.
    """

    SETTINGS = ("minlength", "limit")
    STATE = ("_counts",)
    _counts: Tensor | None

    def __init__(self, minlength: int = 0, *, limit: int = 2**24, nan: str = "omit") -> None:
        super().__init__(nan=nan)
        self.minlength = checked_integer(minlength, "minlength")
        self.limit = checked_integer(limit, "limit")
        if self.minlength > self.limit:
            raise BadArgumentError(f"minlength={minlength} is more than limit={limit}")

    def _of(self, samples: Tensor, weights: Tensor | None) -> tuple[tuple[Tensor, ...], int]:
        if samples.is_floating_point():
            raise BadArgumentError(f"a Bincount counts integers, not {samples.dtype}: use value.long(), or a Histogram")
        numbers = samples.long()
        if weights is not None and weights.dtype is torch.bool:
            numbers, weights = numbers[weights.expand(samples.shape)], None
        self._checked(numbers)
        share = None if weights is None else weights.expand(samples.shape).flatten()
        return (torch.bincount(numbers.flatten(), share, self.minlength),), 0

    def _checked(self, numbers: Tensor) -> None:
        least, most = map(int, numbers.aminmax()) if numbers.numel() else (0, -1)
        if least < 0:
            raise BadArgumentError(f"{least} cannot be counted: give no negative numbers; a mask leaves some out")
        if most >= self.limit:
            raise BadArgumentError(
                f"{most} is not below limit={self.limit}: counting it would take {8 * (most + 1):,} bytes; "
                "Bincount(limit=...) allows it"
            )

    def _fold(self, more: tuple[Tensor, ...]) -> None:
        length = max(len(more[0]), 0 if self._counts is None else len(self._counts))
        if self._counts is not None:
            self._counts = pad(self._counts, (0, length - len(self._counts)))
        super()._fold((pad(more[0], (0, length - len(more[0]))),))

    def result(self) -> Tensor:
        """Return the count of each number, at least `minlength` of them."""
        return self.known()[0]


class Bins(NamedTuple):
    """How many values each bin holds, the edges of the bins, and how many values are outside of them."""

    counts: Tensor
    edges: Tensor
    below: int | float
    above: int | float


class Histogram(SummedStatistic):
    """How many values fall in each bin, over all values of all batches, whatever their shape.

    >>> seen = Histogram(4, 0, 2).add([[0., 0.5, 0.7], [2., 2.5, -1.]])
    >>> seen.counts
    tensor([1, 2, 0, 1])
    >>> seen.edges
    tensor([0.0000, 0.5000, 1.0000, 1.5000, 2.0000], dtype=torch.float64)
    >>> seen.below, seen.above
    (1, 1)

    A bin holds the values from its left edge up to, but without, its right one; the last bin also holds its right edge,
    as with `numpy.histogram`. Values and edges are compared as float64. Counts are int64; with weights they are sums of
    float64, and with a mask of bools they stay int64. Values beyond the edges are counted separately.
    NaN is left out; with ``nan="propagate"`` all counts are NaN once there was one.

    Args:
        bins: how many bins of equal width there are between `low` and `high`; or the edges, as with numpy.
        low: the left edge of the first bin.
        high: the right edge of the last bin.
        edges: instead, all edges from left to right; one more than there are bins.
        nan: ``"omit"``, ``"propagate"`` or ``"raise"``.

    Attributes:
        edges: the edges, as float64.
    """

    SETTINGS = ("edges",)
    STATE = ("_counts",)
    _counts: Tensor | None  # with what is below in front, and what is above at the end

    def __init__(
        self,
        bins: int | Batch | None = None,
        low: float | None = None,
        high: float | None = None,
        *,
        edges: Batch | None = None,
        nan: str = "omit",
    ) -> None:
        super().__init__(nan=nan)
        if edges is None and bins is not None and not isinstance(bins, int) and low is None and high is None:
            bins, edges = None, bins
        if (edges is None) == (bins is None or low is None or high is None):
            raise BadArgumentError("a histogram takes bins, low and high, or edges: Histogram(100, -5, 5)")
        self.edges = _equal_edges(bins, low, high) if edges is None else _checked_edges(edges)

    def _of(self, samples: Tensor, weights: Tensor | None) -> tuple[tuple[Tensor, ...], int]:
        part, isnan = missing(samples, None if weights is None else weights > 0, self.nan)
        every = None if weights is None or weights.dtype is torch.bool else weights.expand(samples.shape)
        if part is not None:
            samples, every = samples[part], None if every is None else every[part]
        edges = self.edges.to(samples.device)
        values = samples.reshape(-1).double().contiguous()  # bucketize warns of others (PyTorch 2.13)
        places = torch.bucketize(values, edges, right=True)
        places -= (values == edges[-1]).long()
        found = torch.bincount(places, None if every is None else every.reshape(-1), minlength=len(edges) + 1)
        return (found,), counted_nan(isnan, self.nan)

    @property
    def _shown(self) -> Tensor:
        """All counts; zeros before any data."""
        if self._counts is None:
            return torch.zeros(len(self.edges) + 1, dtype=torch.int64, device="cpu")
        spoilt = self.nans and self.nan == "propagate"
        return torch.full_like(self._counts, torch.nan, dtype=torch.float64) if spoilt else self._counts

    @property
    def counts(self) -> Tensor:
        """How many values are in each bin, or the sum of their weights."""
        return self._shown[1:-1].clone()

    @property
    def below(self) -> int | float:
        """How many values are less than the first edge."""
        return self._shown[0].item()

    @property
    def above(self) -> int | float:
        """How many values are greater than the last edge."""
        return self._shown[-1].item()

    def density(self) -> Tensor:
        """Return the counts over their sum and the width of the bin: the integral over all bins is 1, or NaN."""
        counts = self.counts.double()
        return counts / counts.sum() / self.edges.to(counts.device).diff()

    def result(self) -> Bins:
        """Return the counts, the edges, and what is below and above."""
        return Bins(self.counts, self.edges.clone(), self.below, self.above)


def _equal_edges(bins: Any, low: Any, high: Any) -> Tensor:
    bins = checked_integer(bins, "bins", 1)
    if not -torch.inf < low < high < torch.inf:
        raise BadArgumentError(f"low must be less than high, and both finite; not {low!r} and {high!r}")
    return torch.from_numpy(np.linspace(low, high, bins + 1))  # torch.linspace differs in the last digit


def _checked_edges(edges: Batch) -> Tensor:
    checked = tensor_of(edges, "edges").to("cpu", torch.float64, copy=True)
    if checked.ndim != 1 or len(checked) < 2 or not bool((checked.diff() > 0).all()):
        raise BadArgumentError(f"edges must be two or more increasing numbers, not {edges!r:.80}")
    return checked


Threshold: TypeAlias = float | Tensor | None


_Fired: TypeAlias = tuple[Tensor, Tensor | None]
"""Ones where a unit fired, and where it took part (None: everywhere); float64, exact to 2**53, also in autocast."""


class _Overlap(SummedStatistic):
    """Counts of samples for each pair of units."""

    STATE = ("_intersection", "_union")

    def __init__(self, *, nan: str) -> None:
        super().__init__(nan=nan)
        if nan == "propagate":
            raise BadArgumentError('a count cannot be NaN: nan is "omit" or "raise"')

    def iou(self) -> Tensor:
        """Intersection over union of each pair, float64; NaN for two units that never fired."""
        return self.intersection().double() / self.union().double()

    def intersection(self) -> Tensor:
        """On how many samples both units of each pair fired, int64."""
        return self.known()[0]

    def union(self) -> Tensor:
        """On how many samples at least one unit of each pair fired, int64."""
        return self.known()[1]

    result = iou


def _overlap(rows: _Fired, columns: _Fired) -> tuple[Tensor, ...]:
    (one, here), (other, there) = rows, columns
    both = one.T @ other
    if here is None and there is None:
        each = one.sum(0)[:, None] + other.sum(0)
    else:
        here, there = (torch.ones_like(ones) if some is None else some for ones, some in (rows, columns))
        each = one.T @ there + here.T @ other
    return both.long(), (each - both).long()


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

    def _of(self, samples: Tensor, weights: Tensor | None) -> tuple[tuple[Tensor, ...], int]:
        units, nans = _fired(samples, weights, self.threshold, self.nan)
        return _overlap(units, units), nans


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
        self._fold(_overlap(rows, columns))
        self.nans += nans + more


def _checked(threshold: Threshold) -> Threshold:
    """Return a threshold as a float, or as a float64 tensor of one for each unit."""
    if threshold is None:
        return None
    found = tensor_of(threshold, "a threshold").to(torch.float64, copy=True)
    if found.ndim > 1 or bool(found.isnan().any()):
        raise BadArgumentError(f"a threshold is a number, or one for each unit, not {threshold!r:.200}")
    return found if found.ndim else float(found)


def _fired(samples: Tensor, weights: Tensor | None, threshold: Threshold, nan: str) -> tuple[_Fired, int]:
    """Return the units of a batch, and how many values are NaN."""
    if samples.ndim > 2:
        raise BadArgumentError(
            f"batches must be (samples, units), not {tuple(samples.shape)}: if positions are samples, "
            "use value.movedim(1, -1).flatten(0, -2)"
        )
    samples = samples[:, None] if samples.ndim == 1 else samples
    given = only_mask(weights, "an IoU")
    given = given[:, None] if given is not None and given.ndim == 1 else given
    if samples.dtype is not torch.bool and threshold is None:
        raise BadArgumentError(f"units must be bools, not {samples.dtype}: give a threshold, or add value > 0")
    fired = samples if samples.dtype is torch.bool or threshold is None else _above(samples, threshold)
    mask, isnan = missing(samples, given, nan)
    units = (fired.double(), None) if mask is None else ((fired & mask).double(), mask.double())
    return units, counted_nan(isnan, nan)


def _above(samples: Tensor, threshold: float | Tensor) -> Tensor:
    """Return where samples exceed the threshold, in float64: bfloat16 would round the threshold."""
    if isinstance(threshold, Tensor) and threshold.shape != samples.shape[1:]:
        raise BadArgumentError(f"{threshold.numel()} thresholds do not fit {samples.shape[1]} units")
    return samples.double() > (threshold.to(samples.device) if isinstance(threshold, Tensor) else threshold)
