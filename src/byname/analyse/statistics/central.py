"""Central moments: the mean and the sums of powers of distances from it, of a batch and of parts put together."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
from torch import Tensor

__all__ = ["Central", "all_finite", "joined", "pooled", "with_batch"]


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


_SERIAL = (1 << 15) - 1
"""Values that are worked on at a time: as float64 they stay in the cache of one core, and PyTorch shares out no work on
fewer than 32768 (`at::internal::GRAIN_SIZE`, 2.13). For two threads waiting for each other costs more than it saves."""
_EACH = 512
"""Values a figure at a time, at least: below it, putting pieces together takes longer than the pieces."""


def all_finite(figures: Tensor) -> bool:
    """Whether their sum is finite: then each is. A sum that overflows says no, though each may be."""
    return all(math.isfinite(float(part.sum())) for part in _serial(figures))


def _serial(figures: Tensor) -> tuple[Tensor, ...]:
    return torch.split(figures.flatten(), _SERIAL)


def _reduced_dims(ndim: int, channel: int | None) -> tuple[int, ...]:
    """The dimensions along which values belong to one figure."""
    return (0,) if channel is None else tuple(dim for dim in range(ndim) if dim != channel)


def with_batch(
    known: Central | None, samples: Tensor, weights: Tensor | None, order: int, *, channel: int | None
) -> Central:
    """What is known and a batch, as one. Without weights nothing is made meanwhile that is of the size of the batch.

    Args:
        known: what there is already, on the device of the batch; None if nothing.
        samples: along dimension 0, real.
        weights: as checked; where they are zero it does not matter what the samples are.
        order: up to which power there are sums; 1 for the mean alone.
        channel: the dimension that has one figure an index; None for one figure a feature.
    """
    figures = samples.shape[1:] if channel is None else samples.shape[channel : channel + 1]
    if channel is None and weights is None and samples.ndim > 2 and samples.is_contiguous():
        samples = samples.flatten(1)  # can be cut anywhere
    known = known and known.mapped(torch.flatten)
    if not samples.numel():
        found = known or _room((math.prod(figures),), order, samples.device).mapped(Tensor.zero_)
    else:
        found = _put_together(known, _in_pieces(known, samples, weights, order, channel))
    return found.mapped(lambda part: part.reshape(figures))


def _in_pieces(
    known: Central | None, samples: Tensor, weights: Tensor | None, order: int, channel: int | None
) -> Central:
    """Each range of rows for itself, in tensors of shape ``(ranges, figures)``."""
    over = _reduced_dims(samples.ndim, channel)
    shape = tuple(1 if dim in over else size for dim, size in enumerate(samples.shape))
    shift = _shift(samples, weights, over, known, shape)
    rows, wide = _size_of_pieces(samples, math.prod(shape), channel or 1)
    tops = range(0, len(samples), rows)
    room = _room((len(tops), *shape[1:]), order, samples.device)
    for left in range(0, samples.shape[channel or 1] if samples.ndim > 1 else 1, wide):
        columns = (slice(None),) * ((channel or 1) - 1) + (slice(left, left + wide),) * (samples.ndim > 1)
        for row, top in enumerate(tops):
            piece = (slice(top, top + rows), *columns)
            near = shift[(slice(None), *columns)]
            figures = _figures(samples[piece], _cut(weights, piece), near, order, over)
            for place, figure in zip((room.counts, room.mean, *room.sums), figures, strict=True):
                place[(row, *columns)] = figure
    room.shift.copy_(shift)
    return room.mapped(lambda part: part.reshape(len(tops), -1))


def _put_together(known: Central | None, pieces: Central) -> Central:
    """All rows of ``(rows, figures)`` and what is known as one."""
    width = _even(pieces.mean.shape[1], _piece_on(pieces.mean.device))
    wholes = []
    for left in range(0, pieces.mean.shape[1], width):
        cut = slice(left, left + width)
        whole = gathered(at(pieces, (slice(None), cut)))
        wholes.append(whole if known is None else joined(at(known, cut), whole))
    return wholes[0] if len(wholes) == 1 else beside(wholes)


def _room(shape: tuple[int, ...], order: int, device: torch.device) -> Central:
    """Tensors that are still to be filled."""
    empty = [torch.empty(shape, dtype=torch.float64, device=device) for _ in range(order + 2)]
    return Central(empty[0], empty[1], empty[2], tuple(empty[3:]))


def _shift(
    samples: Tensor, weights: Tensor | None, over: tuple[int, ...], known: Central | None, shape: tuple[int, ...]
) -> Tensor:
    if known is not None and all(float(part.amin()) > 0 for part in _serial(known.counts)):
        return known.shift.reshape(shape)
    found = _value_in(samples, weights, over)
    found = torch.where(found.isfinite(), found, 0.0)
    return found if known is None else torch.where(known.counts > 0, known.shift, found.flatten()).reshape(shape)


def _value_in(samples: Tensor, weights: Tensor | None, over: tuple[int, ...]) -> Tensor:
    """A value of each figure: the first one; of values with weights the smallest that counts."""
    if weights is None:
        first = (slice(0, 1) if dim in over else slice(None) for dim in range(samples.ndim))
        return samples[tuple(first)].double()
    values = samples.double()
    return torch.where((weights > 0) & values.isfinite(), values, math.inf).amin(over, keepdim=True)


def _figures(
    samples: Tensor, weights: Tensor | None, shift: Tensor, order: int, over: tuple[int, ...]
) -> tuple[Tensor | float, ...]:
    """How many values, the mean of their distances from the shift, and the sums of powers."""
    far = samples.double() - shift if samples.dtype is torch.float64 else samples.double().sub_(shift)
    if weights is not None:
        return _weighted(far, weights, order, over)
    mean = far.mean(over, keepdim=True)
    counts = far.numel() // mean.numel()
    if order == 1:
        return counts, mean
    far.sub_(mean)
    squares = far.square_() if order == 2 else far.square()
    return counts, mean, *_powers(far, squares, order, over)


def _weighted(far: Tensor, weights: Tensor, order: int, over: tuple[int, ...]) -> tuple[Tensor, ...]:
    weights = weights.double().expand(far.shape)
    far = torch.where(weights > 0, far, 0.0)
    counts = weights.sum(over, keepdim=True)
    mean = (far * weights).sum(over, keepdim=True) / torch.where(counts > 0, counts, 1.0)
    if order == 1:
        return counts, mean
    far = torch.where(weights > 0, far - mean, 0.0)
    return counts, mean, *_powers(far, far.square() * weights, order, over)


def _powers(far: Tensor, squares: Tensor, order: int, over: tuple[int, ...]) -> tuple[Tensor, ...]:
    """The sums of the squares, and of each further power; the squares are used up."""
    sums = [squares.sum(over, keepdim=True)]
    for _ in range(order - 2):
        sums.append(squares.mul_(far).sum(over, keepdim=True))
    return tuple(sums)


def _size_of_pieces(samples: Tensor, figures: int, columns: int) -> tuple[int, int]:
    """How many rows a piece of a batch has, and how many indices of the dimension along which it is cut, too."""
    length, each, piece = len(samples), samples.numel() // len(samples), _piece_on(samples.device)
    rows = min(length, max(piece // each, math.ceil(_EACH * figures / each)))
    width = samples.shape[columns] if samples.ndim > 1 else 1
    return rows, _even(width, max(1, width * piece // (rows * each)))


def _even(length: int, most: int) -> int:
    """How long pieces are of which none is longer than allowed, and none much shorter than the others."""
    return math.ceil(length / math.ceil(length / most)) if length else 1


def _piece_on(device: torch.device) -> int:
    threads = torch.get_num_threads()
    if device.type != "cpu":
        return 1 << 24
    return threads << 16 if threads > 2 else _SERIAL + (threads == 1)


def _cut(weights: Tensor | None, piece: tuple[slice, ...]) -> Tensor | None:
    """A piece of what may have one entry for a whole dimension."""
    if weights is None:
        return None
    return weights[tuple(slice(None) if weights.shape[dim] == 1 else part for dim, part in enumerate(piece))]
