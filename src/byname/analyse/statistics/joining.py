"""What are the mean of values and the sums of powers of their distances from it: of two parts, and of many?"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

__all__ = ["Central", "at", "beside", "folded", "gathered", "joined", "pooled"]


@dataclass(frozen=True, slots=True)
class Central:
    """Values, told by sums; one entry a figure in each tensor, float64.

    Distances are from a value of the data and not from zero: near a large offset they keep the digits that the
    values themselves have no room for, and of values that are all equal they are exactly zero.

    Attributes:
        counts: how many values, or the sum of their weights.
        shift: the value from which distances are.
        mean: the mean of the distances from the shift; zero where there are no values.
        sums: the sums of the second, third ... power of the distances from the mean.
    """

    counts: Tensor
    shift: Tensor
    mean: Tensor
    sums: tuple[Tensor, ...]

    def parts(self) -> tuple[Tensor, ...]:
        """All tensors."""
        return self.counts, self.shift, self.mean, *self.sums

    def mapped(self, change: Callable[[Tensor], Tensor]) -> Central:
        """The same with each tensor changed."""
        counts, shift, mean, *sums = map(change, self.parts())
        return Central(counts, shift, mean, tuple(sums))

    def to(self, device: torch.device) -> Central:
        """The same on another device."""
        return self.mapped(lambda part: part.to(device))


def pooled(whole: Central, dim: int) -> Central:
    """All figures with the same index of a dimension as one figure; a single figure without dimensions as one, too."""
    last = whole.mapped(lambda part: (part if part.ndim else part[None]).movedim(dim, -1))
    *positions, figures = last.mean.shape
    if not math.prod(positions):
        return last.mapped(lambda part: part.new_zeros(figures))
    return folded(last.mapped(lambda part: part.reshape(math.prod(positions), figures)))


def beside(parts: Sequence[Central]) -> Central:
    """The figures of all parts, one after another."""
    counts, shift, mean, *sums = map(torch.cat, zip(*(part.parts() for part in parts), strict=True))
    return Central(counts, shift, mean, tuple(sums))


def gathered(rows: Central) -> Central:
    """All rows of ``(rows, figures)`` from one shift as one, by its moments about the mean of all."""
    if len(rows.mean) == 1:
        return at(rows, 0)
    counts, shift = rows.counts.sum(0), rows.shift[0].clone()
    mean = (rows.mean * (rows.counts / counts.clamp(min=torch.finfo(torch.float64).tiny))).sum(0)
    if not rows.sums:
        return Central(counts, shift, mean, ())
    apart = rows.mean - mean
    squares = rows.sums[0]
    both = apart * (apart * rows.counts)
    sums = [(squares + both).sum(0)]
    if len(rows.sums) > 1:
        sums.append((rows.sums[1] + apart * (3 * squares + both)).sum(0))
    if len(rows.sums) > 2:
        sums.append((rows.sums[2] + apart * (4 * rows.sums[1] + apart * (6 * squares + both))).sum(0))
    return Central(counts, shift, mean, tuple(sums))


def folded(rows: Central) -> Central:
    """All rows as one: the first half with the second, until there is one."""
    odd = []
    while (length := len(rows.mean)) > 1:
        half = length // 2
        if length % 2:
            odd.append(at(rows, -1))
        rows = joined(at(rows, slice(half)), at(rows, slice(half, 2 * half)))
    return reduce(joined, odd, at(rows, 0))


def at(whole: Central, where: Any) -> Central:
    """The same places of each tensor."""
    return whole.mapped(lambda part: part[where])


def joined(one: Central, other: Central) -> Central:
    """Two parts as one.

    Chan, Golub and LeVeque 1979 for the second power; Pebay 2008, equations 1.5, 2.1 and 2.2 for the third and fourth.
    """
    counts = one.counts + other.counts
    if _alike(one, other):
        return _joined_alike(one, other, counts)
    some = counts.clamp(min=torch.finfo(torch.float64).tiny)
    mine, theirs = one.counts / some, other.counts / some
    shift = torch.where(one.counts > 0, one.shift, other.shift)
    far = torch.where(other.counts > 0, other.mean + (other.shift - shift), 0.0)
    mean = torch.where(mine > 0, one.mean * mine, 0.0) + torch.where(theirs > 0, far * theirs, 0.0)
    if not one.sums:
        return Central(counts, shift, mean, ())
    apart = torch.where((mine > 0) & (theirs > 0), far - one.mean, 0.0)
    return Central(counts, shift, mean, _sums_joined(one, other, apart, one.counts, mine, theirs))


def _alike(one: Central, other: Central) -> bool:
    """Whether figures have as many values each, from the same shift; so it is as long as there is no NaN."""
    for part in (one.counts, other.counts):
        least, most = map(float, part.aminmax()) if part.numel() else (0.0, 0.0)
        if not least or least != most:
            return False
    return torch.equal(one.shift, other.shift)


def _joined_alike(one: Central, other: Central, counts: Tensor) -> Central:
    """The same sums, a third of the time: what is equal for all figures is one number."""
    count = one.counts.flatten()[0]
    whole = counts.flatten()[0]
    mine, theirs = count / whole, other.counts.flatten()[0] / whole
    shift = one.shift.clone()  # else a view of one row would keep all rows
    mean = (one.mean * mine).add_(other.mean, alpha=float(theirs))
    if not one.sums:
        return Central(counts, shift, mean, ())
    apart = other.mean - one.mean
    if len(one.sums) > 1:
        return Central(counts, shift, mean, _sums_joined(one, other, apart, count, mine, theirs))
    squares = (one.sums[0] + other.sums[0]).addcmul_(apart, apart, value=float(count * theirs))
    return Central(counts, shift, mean, (squares,))


def _sums_joined(
    one: Central, other: Central, apart: Tensor, count: Tensor, mine: Tensor, theirs: Tensor
) -> tuple[Tensor, ...]:
    """The sums of powers of both, whose means are so far apart.

    Args:
        one: a part with so many values.
        other: another.
        apart: the distance of its mean.
        count: how many values the first has.
        mine: its share of all.
        theirs: the share of the other.
    """
    both = apart * (apart * (count * theirs))
    sums = [one.sums[0] + other.sums[0] + both]
    if len(one.sums) > 1:
        between = mine * other.sums[0] - theirs * one.sums[0]
        sums.append(one.sums[1] + other.sums[1] + both * apart * (mine - theirs) + 3 * apart * between)
    if len(one.sums) > 2:
        within = mine**2 * other.sums[0] + theirs**2 * one.sums[0]
        between = mine * other.sums[1] - theirs * one.sums[1]
        shares = mine**2 - mine * theirs + theirs**2
        four = both * apart**2 * shares + 6 * apart**2 * within + 4 * apart * between
        sums.append(one.sums[2] + other.sums[2] + four)
    return tuple(sums)
