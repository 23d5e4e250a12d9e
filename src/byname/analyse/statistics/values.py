"""Which values of a batch take part, and which type holds the values of all batches without rounding?"""

from __future__ import annotations

import torch
from torch import Tensor

from byname.errors import BadArgumentError

__all__ = ["comparable", "common_type", "missing", "only_mask", "widest"]

_WIDE = {
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2: torch.float32,
}


def comparable(samples: Tensor) -> Tensor:
    """The same numbers in a type that PyTorch 2.13 compares and sorts: it does not those of `_WIDE`."""
    return samples.to(_WIDE.get(samples.dtype, samples.dtype))


def only_mask(weights: Tensor | None, statistic: str) -> Tensor | None:
    """The weights, if they are a mask.

    Raises:
        BadArgumentError: if they are numbers.
    """
    if weights is not None and weights.dtype is not torch.bool:
        raise BadArgumentError(f"{statistic} takes no weights but a mask of bools, which leaves out what is False")
    return weights


def missing(samples: Tensor, mask: Tensor | None, nan: str) -> tuple[Tensor | None, Tensor | None]:
    """Which values take part, and which of those the mask leaves are NaN; each None for all, and for none.

    Raises:
        BadArgumentError: if there is a NaN and the policy is ``"raise"``.
    """
    given = None if mask is None else mask.expand(samples.shape)
    if not _may_hold_nan(samples):
        return given, None
    isnan = samples.isnan() if given is None else samples.isnan() & given
    if not bool(isnan.any()):
        return given, None
    if nan == "raise":
        raise BadArgumentError(f'{int(isnan.sum())} values of the batch are NaN, and nan="raise"')
    return (~isnan if given is None else given & ~isnan), isnan


def _may_hold_nan(samples: Tensor) -> bool:
    """A sum is NaN if a value is; it is many times faster than to look at each."""
    return samples.is_floating_point() and bool(comparable(samples).sum().isnan())


def common_type(statistic: str, kept: torch.dtype | None, given: torch.dtype) -> torch.dtype:
    """The type that holds the values kept so far and those of a batch, all of them as they are.

    Raises:
        BadArgumentError: if there is none: for floating point after integers, or integers after floating point.
    """
    if given is torch.uint64:
        raise BadArgumentError(f"{statistic} takes integers up to int64, not {given}")
    if kept is None or kept is given:
        return given
    if kept.is_floating_point != given.is_floating_point:
        raise BadArgumentError(
            f"{statistic} was given {kept} before and {given} now: no type holds both without rounding; convert one"
        )
    return torch.promote_types(kept, given)


def widest(dtype: torch.dtype) -> torch.dtype:
    """The type in which numbers of a type are kept: float64, or that of the integers."""
    return torch.float64 if dtype.is_floating_point else dtype
