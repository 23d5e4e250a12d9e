"""How are many lines of values sorted, thinned out, and read at a rank? Each line is one feature."""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["at_ranks", "sort_lines", "thinned"]


def sort_lines(lines: Tensor) -> Tensor:
    """Sorts each line in place, and returns it all; on the CPU by numpy, whose sort uses the vector instructions."""
    if lines.device.type != "cpu":
        return lines.copy_(lines.sort(1).values)
    small = lines.dtype.itemsize == 1  # numpy sorts bytes by counting, but only if it is asked for a stable sort
    lines.numpy().sort(axis=1, kind="stable" if small else None)
    return lines


def thinned(lines: Tensor, step: int, offset: Tensor) -> Tensor:
    """Every so many-th value of each line, from an offset of its own on."""
    first = int(offset[0])
    if bool((offset == first).all()):
        return lines[:, first::step].clone()
    columns = torch.arange(0, lines.shape[1], step, device=lines.device)
    return lines.gather(1, offset[:, None] + columns)


def at_ranks(values: Tensor, weights: Tensor, ranks: Tensor) -> Tensor:
    """The value of each line at ranks from 0, when each value stands for as many as its weight says.

    Args:
        values: of shape (lines, values), in any order.
        weights: int64 of that shape; what has weight 0 is not there.
        ranks: int64 of shape (lines, ranks), from 0 to below the sum of the line's weights.
    """
    ordered, order = values.sort(1)
    upto = weights.gather(1, order).cumsum(1)
    found = torch.searchsorted(upto, ranks.contiguous(), right=True)
    return ordered.gather(1, found.clamp(max=values.shape[1] - 1))
