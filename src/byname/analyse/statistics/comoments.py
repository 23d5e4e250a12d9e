"""How do two columns vary together: in a batch, and in two parts?"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from byname.analyse.statistics.rows import Rows

__all__ = ["Comoments", "comoments_of", "correlation", "joined"]


@dataclass(frozen=True, slots=True)
class Comoments:
    """Rows, told by sums, float64. As in `Central`, distances are from a value of the data.

    Attributes:
        counts: how many rows, or the sum of their weights.
        shift: the row from which distances are.
        mean: the mean of the distances from the shift.
        squares: the sums of the squared distances from the mean.
        products: the sums of products of the distances from the mean, of the first columns with the last.
    """

    counts: Tensor
    shift: Tensor
    mean: Tensor
    squares: Tensor
    products: Tensor

    def to(self, device: torch.device) -> Comoments:
        """The same on another device."""
        parts = (self.counts, self.shift, self.mean, self.squares, self.products)
        return Comoments(*(part.to(device) for part in parts))


def comoments_of(rows: Rows, first: int, last: int, known: Comoments | None) -> Comoments:
    """The sums of rows.

    Args:
        rows: what takes part.
        first: how many columns stand to the left in the products, from the first one on.
        last: how many columns stand to the right in the products, up to the last one.
        known: what there is already: its shift is taken over.
    """
    shift = rows.origin if known is None or not bool(known.counts) else known.shift.to(rows.values.device)
    far = replace(rows, values=rows.values - shift)
    mean = far.mean
    apart = replace(far, values=far.values - mean)
    weighted = apart.weighted
    squares = torch.linalg.vecdot(weighted, apart.values, dim=0)
    left, right = weighted[:, :first], apart.values[:, apart.values.shape[1] - last :]
    return Comoments(rows.counts, shift, mean, squares, left.T @ right)


def joined(one: Comoments, other: Comoments) -> Comoments:
    """Two parts as one; Chan, Golub and LeVeque 1979, for products."""
    if not bool(other.counts) or not bool(one.counts):
        return one if bool(one.counts) else other
    counts = one.counts + other.counts
    share = other.counts / counts
    far = other.mean + (other.shift - one.shift)
    apart = far - one.mean
    left, right = apart[: one.products.shape[0]], apart[len(apart) - one.products.shape[1] :]
    scale = one.counts * share
    return Comoments(
        counts,
        one.shift,
        one.mean * (one.counts / counts) + far * share,
        one.squares + other.squares + apart * (apart * scale),
        one.products + other.products + torch.outer(left * scale, right),
    )


def correlation(found: Comoments) -> Tensor:
    """Pearson's; NaN where a standard deviation is zero."""
    spread = found.squares.sqrt()
    left, right = spread[: found.products.shape[0]], spread[len(spread) - found.products.shape[1] :]
    figures = found.products / left[:, None] / right
    return figures.clamp(-1, 1)
