"""How is one figure taken of a dense tensor, exactly, quickly and without waiting for its device?"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

__all__ = ["FIGURES", "ORDERED", "Reduction"]

Reduction: TypeAlias = Callable[[torch.Tensor], Any]

BINS = 64
"""Of a histogram, all of one width."""


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    """The same numbers in a dtype in which they can be added up."""
    if tensor.dtype in _IN_PLACE_OF:
        return tensor.to(_IN_PLACE_OF[tensor.dtype])
    if tensor.is_complex() or tensor.dtype in (torch.float32, torch.float64):
        return tensor
    return tensor.to(torch.float32 if tensor.is_floating_point() else torch.float64)


_IN_PLACE_OF = {torch.complex32: torch.complex64}


def _mean(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.dtype in (torch.bfloat16, torch.float16):
        return tensor.mean(dtype=torch.float32)  # without a copy of the whole
    return _wide(tensor).mean()


def _std(tensor: torch.Tensor) -> torch.Tensor:
    """In two passes, the second of which corrects for the rounding of the mean.

    A third of the time that ``torch.std`` takes on the CPU (PyTorch 2.13), with an error no larger. Chan, Golub and
    LeVeque, "Algorithms for computing the sample variance" (1983), formula 1.7.
    """
    tensor = _wide(tensor)
    count = tensor.numel()
    if count < 2:
        return tensor.new_full((), math.nan).real
    distance = tensor - tensor.mean()
    square = torch.linalg.vector_norm(distance).double().square()
    missed = distance.sum().abs().double().square() / count
    std: torch.Tensor = ((square - missed) / (count - 1)).clamp_min(0).sqrt()
    return std.to(distance.real.dtype)


def _norm(tensor: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(_wide(tensor))
    return norm


def _least(tensor: torch.Tensor) -> torch.Tensor:
    return _extreme(tensor, torch.Tensor.amin)


def _greatest(tensor: torch.Tensor) -> torch.Tensor:
    return _extreme(tensor, torch.Tensor.amax)


def _extreme(tensor: torch.Tensor, of: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The least or greatest; by way of another dtype where PyTorch compares none of its own (2.13)."""
    if tensor.numel() == 0:
        return tensor.new_full((), math.nan, dtype=torch.float64)
    if tensor.dtype is torch.uint64:  # the order of int64, once the highest bit is turned over
        return (of(tensor.view(torch.int64) ^ _HIGHEST) ^ _HIGHEST).view(torch.uint64)
    if tensor.dtype in (torch.uint16, torch.uint32):
        return of(tensor.to(torch.int64)).to(tensor.dtype)
    if tensor.is_floating_point() and tensor.element_size() == 1:
        return of(tensor.to(torch.float32))
    return of(tensor)


_HIGHEST = -(2**63)


def _histogram(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """The counts of a histogram, without waiting for a GPU to know between what."""
    flat = tensor.reshape(-1)
    if not flat.numel():
        nothing = flat.new_full((), math.nan, dtype=torch.float64)
        return _binned(flat, nothing, nothing, torch.ones_like(flat, dtype=torch.bool))
    least, greatest = _least(flat).to(torch.float64), _greatest(flat).to(torch.float64)
    if flat.device.type == "cpu" and bool(least.isfinite()) and bool(greatest.isfinite()):
        return _binned(flat, least, greatest, None)
    flat = flat.to(torch.float64)
    finite = flat.isfinite()
    none = ~finite.any()
    least = torch.where(finite, flat, math.inf).amin().masked_fill(none, math.nan)
    greatest = torch.where(finite, flat, -math.inf).amax().masked_fill(none, math.nan)
    return _binned(flat, least, greatest, finite)


def _binned(
    flat: torch.Tensor, least: torch.Tensor, greatest: torch.Tensor, finite: torch.Tensor | None
) -> dict[str, torch.Tensor]:
    """`finite` says which of the numbers are counted; None where all are, which are then on the CPU."""
    alone = greatest == least  # bins around the only value, as numpy has them
    least, greatest = torch.where(alone, least - 0.5, least), torch.where(alone, greatest + 0.5, greatest)
    steps = torch.arange(BINS + 1, dtype=torch.float64, device=flat.device) / BINS
    edges = least * (1 - steps) + greatest * steps
    counts = torch.zeros(BINS, dtype=torch.int64, device=flat.device)
    if finite is None:
        for start in range(0, flat.numel(), _AT_ONCE):
            counts += torch.bincount(_bins(flat[start : start + _AT_ONCE], least, greatest), minlength=BINS)
    else:  # on a GPU `bincount` would wait for it
        counts.scatter_add_(0, _bins(flat, least, greatest, finite), finite.to(torch.int64))
    return {"counts": counts, "edges": edges, "non_finite": flat.numel() - counts.sum()}


_AT_ONCE = 1 << 15
"""So many numbers are worked on together on the CPU: what is made of them on the way stays in its caches."""


def _bins(
    part: torch.Tensor, least: torch.Tensor, greatest: torch.Tensor, finite: torch.Tensor | None = None
) -> torch.Tensor:
    """The bin of each number; 0 for those that are not finite."""
    half = greatest / 2 - least / 2  # the whole may be more than the largest float64
    place = part.to(torch.float64, copy=True).div_(2).sub_(least / 2).div_(half).mul_(BINS)
    if finite is not None:
        place.masked_fill_(~finite, 0)
    return place.clamp_(0, BINS - 1).to(torch.int64)


ORDERED = ("min", "max", "histogram")
"""The figures that compare, which complex numbers do not."""

FIGURES: dict[str, Reduction] = {
    "mean": _mean,
    "std": _std,
    "norm": _norm,
    "min": _least,
    "max": _greatest,
    "histogram": _histogram,
}
