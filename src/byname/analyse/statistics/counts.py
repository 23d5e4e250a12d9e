"""Counts: `Bincount` of integers and `Histogram` of numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from byname.analyse.statistics.batches import Batch, checked_integer, missing, tensor_of
from byname.analyse.statistics.statistic import Statistic
from byname.errors import BadArgumentError


class Bincount(Statistic):
    """How often each of the numbers 0, 1, 2 ... is there, as `numpy.bincount` tells it.

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

    def __init__(self, minlength: int = 0, *, limit: int = 2**24, nan: str = "omit") -> None:
        super().__init__(nan=nan)
        self.minlength = checked_integer(minlength, "minlength")
        self.limit = checked_integer(limit, "limit")
        if self.minlength > self.limit:
            raise BadArgumentError(f"minlength={minlength} is more than limit={limit}")
        self._counts: Tensor | None = None

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        if samples.is_floating_point():
            raise BadArgumentError(f"integers are counted, not {samples.dtype}: use value.long(), or a Histogram")
        numbers = samples.long()
        if weights is not None and weights.dtype is torch.bool:
            numbers, weights = numbers[weights.expand(samples.shape)], None
        self._checked(numbers)
        share = None if weights is None else weights.expand(samples.shape).flatten()
        self._take(torch.bincount(numbers.flatten(), share))

    def _checked(self, numbers: Tensor) -> None:
        if not numbers.numel():
            return
        least, most = map(int, numbers.aminmax())
        if least < 0:
            raise BadArgumentError(f"{least} cannot be counted: numbers are not negative; a mask leaves some out")
        if most >= self.limit:
            raise BadArgumentError(
                f"{most} is not below limit={self.limit}: counting it would take {8 * (most + 1):,} bytes; "
                "a Bincount(limit=...) allows it"
            )

    def _merge(self, other: Bincount) -> None:
        assert other._counts is not None
        self._take(other._counts)

    def _take(self, counts: Tensor) -> None:
        mine = counts.new_zeros(self.minlength) if self._counts is None else self._counts
        counts = counts.to(mine.device)
        length = max(len(mine), len(counts))
        self._counts = pad(mine, (0, length - len(mine))) + pad(counts, (0, length - len(counts)))

    def result(self) -> Tensor:
        """The count of each number, at least `minlength` of them.

        Raises:
            BadArgumentError: if nothing was added yet.
        """
        if self._counts is None:
            raise BadArgumentError("nothing was added yet")
        return self._counts.clone()


class Bins(NamedTuple):
    """How many values each bin holds, the edges of the bins, and how many values are outside of them."""

    counts: Tensor
    edges: Tensor
    below: int | float
    above: int | float


class Histogram(Statistic):
    """How many values fall in each bin, over all values of all batches, whatever their shape.

    >>> seen = Histogram(4, 0, 2).add([[0., 0.5, 0.7], [2., 2.5, -1.]])
    >>> seen.counts
    tensor([1, 2, 0, 1])
    >>> seen.edges
    tensor([0.0000, 0.5000, 1.0000, 1.5000, 2.0000], dtype=torch.float64)
    >>> seen.below, seen.above
    (1, 1)

    A bin holds what is not less than its left edge and less than its right one; the last bin also holds its right edge,
    as with `numpy.histogram`. Values and edges are compared as float64. Counts are int64; with weights they are sums of
    float64, and with a mask of bools they stay int64. Values outside of the edges, infinities too, are counted apart.
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
    STATE = ("_counts", "_spoilt")

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
            raise BadArgumentError("a histogram has bins, low and high, or edges: Histogram(100, -5, 5)")
        self.edges = _equal_edges(bins, low, high) if edges is None else _checked_edges(edges)
        self._counts: Tensor | None = None  # with what is below in front, and what is above at the end
        self._spoilt = False

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        part, isnan = missing(samples, None if weights is None else weights > 0, self.nan)
        every = None if weights is None or weights.dtype is torch.bool else weights.expand(samples.shape)
        if part is not None:
            samples, every = samples[part], None if every is None else every[part]
        found = self._found(samples.reshape(-1), None if every is None else every.reshape(-1))
        self._counts = found if self._counts is None else self._counts + found.to(self.device)
        self.nans += 0 if isnan is None else int(isnan.sum())
        self._spoilt |= isnan is not None and self.nan == "propagate"

    def _found(self, values: Tensor, weights: Tensor | None) -> Tensor:
        """The counts of a batch."""
        edges = self.edges.to(values.device)
        values = values.double().contiguous()  # bucketize warns of others (PyTorch 2.13)
        places = torch.bucketize(values, edges, right=True)
        places -= (values == edges[-1]).long()
        return torch.bincount(places, weights, minlength=len(edges) + 1)

    def _merge(self, other: Histogram) -> None:
        assert other._counts is not None
        self._counts = other._counts.clone() if self._counts is None else self._counts + other._counts.to(self.device)
        self._spoilt |= other._spoilt

    @property
    def _shown(self) -> Tensor:
        """All counts; zeros before any data."""
        if self._counts is None:
            return torch.zeros(len(self.edges) + 1, dtype=torch.int64, device="cpu")
        return torch.full_like(self._counts, torch.nan, dtype=torch.float64) if self._spoilt else self._counts

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
        """The counts over their sum and the width of the bin, so that the integral over all bins is 1; else NaN."""
        counts = self.counts.double()
        return counts / counts.sum() / self.edges.to(counts.device).diff()

    def result(self) -> Bins:
        """The counts, the edges, and what is below and above."""
        return Bins(self.counts, self.edges.clone(), self.below, self.above)


def _equal_edges(bins: Any, low: float | None, high: float | None) -> Tensor:
    if type(bins) is not int or bins < 1:
        raise BadArgumentError(f"bins is a whole number of at least 1, not {bins!r}")
    import numpy as np

    assert low is not None
    assert high is not None
    if not -torch.inf < low < high < torch.inf:
        raise BadArgumentError(f"low is less than high, and both are finite; not {low!r} and {high!r}")
    return torch.from_numpy(np.linspace(low, high, bins + 1))  # torch.linspace differs in the last digit


def _checked_edges(edges: Batch) -> Tensor:
    checked = tensor_of(edges, "edges").to("cpu", torch.float64, copy=True)
    if checked.ndim != 1 or len(checked) < 2 or not bool((checked.diff() > 0).all()):
        raise BadArgumentError(f"edges are two numbers or more, each greater than the one before, not {edges!r:.80}")
    return checked
