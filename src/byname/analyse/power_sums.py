"""Power sums: counts and sums of powers of distances from a pivot, to which batches are added in place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

GROWTH = 16
"""How many times as many values as the pivot is the mean of may be added, before the pivot becomes the mean of all.

Of n values, m have the pivot p as their mean. Then the k-th powers of distances from the mean of all have a sum of at
least m times ``|mean - p| ** k``, so that the sum of powers about p is at most ``2 ** k * (1 + n / m)`` times as large:
moving it to the mean loses no more than a few hundred times the rounding of float64, wherever the pivot lies."""


@dataclass(slots=True)
class PowerSums:
    """How many values (or the sum of their weights; one number where all figures have as many), and sums of them.

    The sums are of the first, second ... power of the distances from the pivot, in float64.
    """

    counts: float | Tensor
    pivot: Tensor
    sums: Sequence[Tensor]

    def to(self, device: torch.device) -> PowerSums:
        counts = self.counts.to(device) if isinstance(self.counts, Tensor) else self.counts
        return PowerSums(counts, self.pivot.to(device), [one.to(device) for one in self.sums])

    def each_count(self) -> Tensor:
        return torch.zeros_like(self.pivot) + self.counts

    def room(self) -> float:
        """Return how many values of a figure may be added about this pivot, which is the mean of those there are."""
        if isinstance(self.counts, Tensor):
            return (GROWTH - 1) * float(self.counts.min()) if self.counts.numel() else 0.0
        return (GROWTH - 1) * self.counts

    def add(self, samples: Tensor, channel: int | None) -> None:
        """Add a batch in place, from the device of the sums."""
        laid = _laid_out(samples, channel)
        flat = self.sums if self.pivot.ndim == 1 else [one.view(-1) for one in self.sums]
        _accumulate(flat, laid, None, self.pivot.view(-1))
        self.counts += laid.numel() // max(1, laid.shape[1])

    def recentre(self) -> None:
        """Move the pivot to the mean of all, in place."""
        flat, pivot = [one.view(-1) for one in self.sums], self.pivot.view(-1)
        counts = self.counts.reshape(-1) if isinstance(self.counts, Tensor) else self.counts
        width = most_of(pivot)
        for left in range(0, len(pivot), width):
            cut = slice(left, left + width)
            sums, share = [one[cut] for one in flat], counts[cut] if isinstance(counts, Tensor) else counts
            by = _finite(sums[0] / share)
            for mine, one in zip(sums, shifted(share, sums, by), strict=True):
                mine.copy_(one)
            pivot[cut].add_(by)


def sums_of(samples: Tensor, weights: Tensor | None, order: int, channel: int | None) -> PowerSums:
    """Return the sums of a batch about its mean, of all powers up to an order.

    The samples do not matter where their weights are zero. A figure is a feature, or an index of the channel's dim.
    """
    figures = samples.shape[1:] if channel is None else samples.shape[channel : channel + 1]
    laid = _laid_out(samples, channel)
    counts: float | Tensor = laid.numel() // max(1, laid.shape[1])
    share = None
    if weights is not None:
        share = _laid_out(weights.double().expand(samples.shape), channel, laid.ndim == 2)
        counts = share.sum(_over(share))
    pivot, *sums = (torch.zeros(figures, dtype=torch.float64, device=laid.device) for _ in range(order + 1))
    flat = [one.view(-1) for one in sums]  # what is kept is no view, which would keep its base alive
    near = pivot.view(-1).copy_(_value_in(laid, share))
    _accumulate(flat[:1], laid, share, near)
    if order > 1:
        near.add_(_finite(flat[0] / counts))
        flat[0].zero_()
        _accumulate(flat, laid, share, near)
    return PowerSums(counts.reshape(figures).clone() if isinstance(counts, Tensor) else counts, pivot, sums)


def merged_sums(one: PowerSums, other: PowerSums) -> PowerSums:
    """Return both as one, about the mean of all."""
    sums = [torch.stack(both) for both in zip(one.sums, other.sums, strict=True)]
    counts = torch.stack([one.each_count(), other.each_count()])
    whole = gathered(counts, torch.stack([one.pivot, other.pivot]), sums)
    if not isinstance(one.counts, Tensor) and not isinstance(other.counts, Tensor):
        whole.counts = one.counts + other.counts
    return whole


def gathered(counts: Tensor, pivot: Tensor, sums: Sequence[Tensor]) -> PowerSums:
    """Return all rows, along dimension 0, as one, about the mean of all."""
    whole = counts.sum(0)
    largest = counts.argmax(0, keepdim=True) if len(counts) else None
    near = torch.zeros_like(whole) if largest is None else pivot.gather(0, largest)[0]
    far = (sums[0] + counts * (pivot - near)).sum(0) / whole  # exactly zero where all values are equal
    mean = near + _finite(far)
    return PowerSums(whole, mean, [one.sum(0) for one in shifted(counts, sums, mean - pivot)])


def shifted(counts: float | Tensor, sums: Sequence[Tensor], by: Tensor) -> list[Tensor]:
    """Return the sums about a pivot that lies farther by a distance, by the binomial theorem."""
    powers = [counts, *sums]
    found = []
    for order in range(1, len(powers)):
        terms = (math.comb(order, low) * (-by) ** (order - low) * powers[low] for low in range(order))
        found.append(sum(terms, start=sums[order - 1]))
    return found


def _finite(figures: Tensor) -> Tensor:
    return torch.where(figures.isfinite(), figures, 0.0)


def _laid_out(samples: Tensor, channel: int | None, as_rows: bool | None = None) -> Tensor:
    """Return samples in shape ``(rows, figures)``, or else ``(rows, figures, positions)``; a view of most layouts."""
    if channel is None and samples.ndim == 2:
        return samples
    if channel is None:
        return samples.reshape(samples.shape[0], math.prod(samples.shape[1:]))
    last = samples.movedim(channel, -1)
    if last.is_contiguous() if as_rows is None else as_rows:
        return last.reshape(math.prod(last.shape[:-1]), last.shape[-1])
    second = samples.movedim(channel, 1)
    return second.reshape(*second.shape[:2], math.prod(second.shape[2:]))


def _over(laid: Tensor) -> list[int]:
    return [0, *range(2, laid.ndim)]


def _value_in(laid: Tensor, weights: Tensor | None) -> Tensor:
    """Return a value of each figure: the first one; of values with weights the smallest that counts."""
    if not laid.numel():
        return laid.new_zeros(laid.shape[1], dtype=torch.float64)
    if weights is None:
        return _finite(laid[0].flatten(1)[:, 0].double() if laid.ndim > 2 else laid[0].double())
    values = laid.double()
    return _finite(torch.where((weights > 0) & values.isfinite(), values, math.inf).amin(_over(laid)))


def _accumulate(sums: Sequence[Tensor], laid: Tensor, weights: Tensor | None, pivot: Tensor) -> None:
    """Add the sums of powers about the pivot, piece by piece."""
    if weights is None and laid.ndim == 2 and len(laid) == 1:
        return _add_row(sums, laid[0], pivot)
    rows, figures = laid.shape[:2]
    height, width = (rows, figures) if laid.numel() <= _CACHED else _size_of_pieces(laid)
    once = pivot.new_ones(height)
    if (height, width) == (rows, figures):
        return _add_piece(sums, laid, weights, pivot, once)
    for left in range(0, figures, width):
        cut = slice(left, left + width)
        parts = [one[cut] for one in sums]
        for top in range(0, rows, height):
            place = slice(top, top + height), cut
            _add_piece(parts, laid[place], None if weights is None else weights[place], pivot[cut], once)
    return None


def _add_piece(sums: Sequence[Tensor], laid: Tensor, weights: Tensor | None, pivot: Tensor, once: Tensor) -> None:
    pivot = pivot if laid.ndim == 2 else pivot[:, None]
    far = laid - pivot if laid.dtype is torch.float64 else laid.double().sub_(pivot)
    if weights is not None:
        far.masked_fill_(weights == 0, 0.0)
    power = far
    for order, total in enumerate(sums):
        if order:
            power = far * far if order == 1 else power.mul_(far)
        if weights is not None:
            total.add_((power * weights).sum(_over(laid)))
        elif laid.ndim > 2:
            total.add_(power.sum((0, 2)))
        else:
            total.addmv_(power.T, once[: laid.shape[0]])


def _add_row(sums: Sequence[Tensor], row: Tensor, pivot: Tensor) -> None:
    """Add the powers of the distances of one row, piece by piece in memory that is used again."""
    memory = pivot.new_empty(min(len(row), most_of(row)))
    for piece, near, *parts in _pieces(row, pivot, *sums):
        far = power = memory[: len(piece)].copy_(piece).sub_(near)
        parts[0].add_(far)
        for order, total in enumerate(parts[1:], 2):
            total.addcmul_(power, far)
            if order < len(parts):
                power = power * far


def _size_of_pieces(laid: Tensor) -> tuple[int, int]:
    """Return how many rows and figures a piece has: it stays in the cache, and each figure has many values in it."""
    rows, figures, positions = laid.shape if laid.ndim > 2 else (*laid.shape, 1)
    most = most_of(laid)
    if rows * figures * positions <= most:
        return rows, figures
    some = max(1, min(rows, 512 // positions))
    width = max(1, min(figures, most // (some * positions)))
    return max(1, min(rows, most // (width * positions))), width


def most_of(values: Tensor) -> int:
    """Return how many values are worked on at a time.

    As float64 they stay in the cache, and take no more memory than the C library has at hand: for larger pieces it asks
    the system each time, which takes longer than the work. Where there are many threads, as many as these share.
    """
    if values.device.type != "cpu":
        return 1 << 24
    return _CACHED if torch.get_num_threads() <= 4 else torch.get_num_threads() * _CACHED


_CACHED = 1 << 15


def _pieces(*tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Return the values of tensors of one size, so many at a time that they stay in the cache."""
    return zip(*(torch.split(one.reshape(-1), most_of(one)) for one in tensors), strict=True)


def distance_and_norm(one: Tensor, other: Tensor | None = None) -> tuple[float, float]:
    """Return the Euclidean distance of two tensors of one shape, and the norm of the first; in float64, in pieces."""
    most = min(one.numel(), most_of(one))
    memory, less = (one.new_empty(most, dtype=torch.float64) for _ in range(2))
    distances, norms = [], []
    for piece, near in _pieces(one, one if other is None else other):
        wide = memory[: len(piece)].copy_(piece)
        norms.append(torch.linalg.vector_norm(wide))
        if other is not None:
            distances.append(torch.linalg.vector_norm(wide.sub_(less[: len(piece)].copy_(near))))
    return math.hypot(*distances), math.hypot(*norms)
