"""How far do values reach along some dimensions, leaving out NaN?"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["highest", "lowest"]


def highest(values: Tensor, dims: list[int]) -> tuple[Tensor, int]:
    """The largest values as float64, minus infinity where there is none but NaN; and how many values are NaN.

    >>> highest(torch.tensor([[1.0, torch.nan], [torch.nan, torch.nan]]), [1])
    (tensor([1., -inf], dtype=torch.float64), 3)
    """
    return _end(values, dims, torch.amax, -torch.inf)


def lowest(values: Tensor, dims: list[int]) -> Tensor:
    """The smallest values as float64, infinity where there is none but NaN."""
    return _end(values, dims, torch.amin, torch.inf)[0]


def _end(
    values: Tensor, dims: list[int], end: Callable[[Tensor, list[int]], Tensor], none: float
) -> tuple[Tensor, int]:
    if not values.numel():
        left = [size for at, size in enumerate(values.shape) if at not in dims]
        return torch.full(left, none, dtype=torch.float64, device=values.device), 0
    found = end(values, dims) if dims else values
    if not values.is_floating_point() or not bool(found.isnan().any()):
        return found.double(), 0
    unknown = values.isnan()
    values = values.masked_fill(unknown, none)
    return (end(values, dims) if dims else values).double(), int(unknown.sum())
