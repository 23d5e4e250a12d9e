"""Power sums: counts and sums of powers of distances from a pivot, to which batches are added in place."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    """Values, told by sums; one entry a figure in each tensor, float64.

    Attributes:
        counts: how many values, or the sum of their weights; one number where it is the same for all figures.
        pivot: the value from which distances are.
        sums: the sums of the first, second ... power of the distances.
    """

    counts: float | Tensor
    pivot: Tensor
    sums: list[Tensor]

    def to(self, device: torch.device) -> PowerSums:
        """Return the same on another device."""
        counts = self.counts.to(device) if isinstance(self.counts, Tensor) else self.counts
        return PowerSums(counts, self.pivot.to(device), [one.to(device) for one in self.sums])

    def each_count(self) -> Tensor:
        """Return the counts, one for each figure."""
        return torch.zeros_like(self.pivot) + self.counts

    def room(self) -> float:
        """Return how many values of a figure may be added about this pivot, which is the mean of those there are."""
        if isinstance(self.counts, Tensor):
            return (GROWTH - 1) * float(self.counts.min()) if self.counts.numel() else 0.0
        return (GROWTH - 1) * self.counts

    def add(self, samples: Tensor, channel: int | None) -> None:
        """Add a batch in place, from the device of the sums."""
        laid = _laid_out(samples, channel)
        _accumulate([one.view(-1) for one in self.sums], laid, None, self.pivot.view(-1))
        self.counts += laid.numel() // max(1, laid.shape[1])


def sums_of(samples: Tensor, weights: Tensor | None, order: int, channel: int | None) -> PowerSums:
    """Return the sums of a batch about its mean.

    Args:
        samples: along dimension 0, real.
        weights: with as many dimensions; where they are zero it does not matter what the samples are.
        order: the highest power.
        channel: the dimension that has one figure an index; None for one figure a feature.
    """
    figures = samples.shape[1:] if channel is None else samples.shape[channel : channel + 1]
    laid = _laid_out(samples, channel)
    counts: float | Tensor = laid.numel() // max(1, laid.shape[1])
    share = None
    if weights is not None:
        share = _laid_out(weights.double().expand(samples.shape), channel)
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


def joined(one: PowerSums, other: PowerSums) -> PowerSums:
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


def of_central(counts: Tensor, shift: Tensor, mean: Tensor, *central: Tensor) -> PowerSums:
    """Return the sums of what byname once kept instead.

    Args:
        counts: of each figure.
        shift: a value.
        mean: the mean of the distances from it.
        central: the sums of the second, third ... power of the distances from the mean.
    """
    pivot = shift + _finite(mean)
    return PowerSums(counts, pivot, shifted(counts, [torch.zeros_like(mean), *central], (pivot - shift) - mean))


def _finite(figures: Tensor) -> Tensor:
    return torch.where(figures.isfinite(), figures, 0.0)


def _laid_out(samples: Tensor, channel: int | None) -> Tensor:
    """Return samples in shape ``(rows, figures)`` or ``(rows, figures, positions)``; a view of most layouts."""
    if channel is None:
        return samples.reshape(samples.shape[0], math.prod(samples.shape[1:]))
    last = samples.movedim(channel, -1)
    if last.is_contiguous():
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


def _accumulate(sums: list[Tensor], laid: Tensor, weights: Tensor | None, pivot: Tensor) -> None:
    """Add the sums of powers about the pivot, piece by piece."""
    rows, figures = laid.shape[:2]
    height, width = _size_of_pieces(laid)
    once = torch.ones(height, dtype=torch.float64, device=laid.device)
    if (height, width) == (rows, figures):
        return _add_piece(sums, laid, weights, pivot, once)
    for left in range(0, figures, width):
        cut = slice(left, left + width)
        parts = [one[cut] for one in sums]
        for top in range(0, rows, height):
            place = slice(top, top + height), cut
            _add_piece(parts, laid[place], None if weights is None else weights[place], pivot[cut], once)
    return None


def _add_piece(sums: list[Tensor], laid: Tensor, weights: Tensor | None, pivot: Tensor, once: Tensor) -> None:
    wide = laid if laid.is_floating_point() and laid.itemsize > 1 else laid.double()
    far = wide - (pivot if laid.ndim == 2 else pivot[:, None])
    further = far if len(sums) < 3 else torch.empty_like(far)
    if weights is not None:
        far.masked_fill_(weights == 0, 0.0)
    power = far
    for order, total in enumerate(sums):
        if order:
            power = torch.mul(power, far, out=further)
        if weights is not None:
            total.add_((power * weights).sum(_over(laid)))
        elif laid.ndim == 2:
            total.addmv_(power.T, once if len(power) == len(once) else once[: len(power)])
        else:
            total.add_(power.sum((0, 2)))


def _size_of_pieces(laid: Tensor) -> tuple[int, int]:
    """Return how many rows and figures a piece has: it stays in the cache, and each figure has many values in it."""
    rows, figures, positions = laid.shape if laid.ndim > 2 else (*laid.shape, 1)
    most = max(1 << 17, torch.get_num_threads() << 16) if laid.device.type == "cpu" else 1 << 24
    if rows * figures * positions <= most:
        return rows, figures
    some = max(1, min(rows, 512 // positions))
    width = max(1, min(figures, most // (some * positions)))
    return max(1, min(rows, most // (width * positions))), width
