"""Batches: checks of what is given to a statistic: samples, weights and masks, NaN, types, and rows of features."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import index
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from torch import Tensor

from byname.errors import BadArgumentError

Batch: TypeAlias = Tensor | Sequence[Any] | Any
"""A tensor, a numpy array or a sequence of numbers."""

Value = TypeVar("Value")


def known(value: Value | None) -> Value:
    """Return a value that a statistic keeps; raise an error before the first batch."""
    if value is None:
        raise BadArgumentError("nothing was added yet")
    return value


def checked_choice(value: Any, name: str, choices: Sequence[str]) -> Any:
    if value not in choices:
        raise BadArgumentError(f"{name} is one of {', '.join(map(repr, choices))}, not {value!r:.60}")
    return value


def checked_channel(channel: Any) -> int | None:
    if channel is not None and type(channel) is not int:
        raise BadArgumentError(f"channel is the index of a dimension, or None, not {channel!r:.80}")
    return channel


def checked_integer(value: Any, name: str, least: int = 0) -> int:
    """Return an argument that is an integer, and not too small, as a Python int."""
    try:
        found = least - 1 if isinstance(value, bool) else index(value)
    except TypeError:
        found = least - 1
    if found < least:
        raise BadArgumentError(f"{name} is an integer of at least {least}, not {value!r:.80}")
    return found


def samples_of(batch: Batch) -> Tensor:
    """Return the batch as a detached tensor, with the samples along dimension 0."""
    samples = tensor_of(batch, "a batch")
    if samples.is_nested:
        raise BadArgumentError("the samples of a nested tensor differ in shape: add its values(), or pad them")
    if not samples.ndim:
        raise BadArgumentError("the first dimension of a batch is the sample; this one has none: use value.reshape(1)")
    return samples.to_dense() if samples.layout is not torch.strided else samples


def checked_weights(weights: Batch | None, samples: Tensor) -> Tensor | None:
    """Return weights as float64, or a mask as bools, with the dimensions of the samples; None if all count once."""
    if weights is None:
        return None
    given = tensor_of(weights, "a weight").to(samples.device)
    if given.shape != samples.shape[: given.ndim] or not given.ndim:
        raise BadArgumentError(
            f"weights must have the shape of the batch, {tuple(samples.shape)}, or of its first dimensions, "
            f"not {tuple(given.shape)}"
        )
    if given.dtype is not torch.bool:
        given = given.double()
        if not bool(torch.isfinite(given).all()) or bool((given < 0).any()):
            raise BadArgumentError("weights must be finite and not negative")
    return given.reshape(given.shape + (1,) * (samples.ndim - given.ndim))


def per_sample(weights: Tensor | None, samples: Tensor) -> Tensor | None:
    """Return weights in shape ``(len(samples),)``, for samples that count as a whole."""
    if weights is not None and weights.numel() != len(samples):
        raise BadArgumentError(
            f"give one weight per sample here, of shape ({len(samples)},), not {tuple(weights.shape)}"
        )
    return None if weights is None else weights.reshape(len(samples))


def tensor_of(given: Any, what: str) -> Tensor:
    """Return a detached tensor of real numbers; numbers of Python keep their 64 bits."""
    try:
        if isinstance(given, Tensor):
            found = given.detach()
        elif isinstance(given, np.ndarray):  # read-only and reversed ones cannot be shared with PyTorch
            found = torch.as_tensor(
                given if given.flags.writeable and min(given.strides, default=0) >= 0 else given.copy()
            )
        else:
            found = torch.as_tensor(given).detach()
            found = torch.as_tensor(given, dtype=torch.float64).detach() if found.is_floating_point() else found
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadArgumentError(f"{what} must be a tensor, not {type(given).__name__}: {error}") from None
    if found.is_complex():
        raise BadArgumentError(f"{what} must be real, not {found.dtype}: use torch.view_as_real(value) or value.abs()")
    return found


_WIDE = {
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2: torch.float32,
}


def comparable(samples: Tensor) -> Tensor:
    """Return the numbers in a dtype that PyTorch 2.13 can compare and sort, unlike those in `_WIDE`."""
    return samples.to(_WIDE[samples.dtype]) if samples.dtype in _WIDE else samples


def only_mask(weights: Tensor | None, statistic: str) -> Tensor | None:
    if weights is not None and weights.dtype is not torch.bool:
        raise BadArgumentError(f"{statistic} takes only a mask of bools as weights, which leaves out where it is False")
    return weights


def missing(samples: Tensor, mask: Tensor | None, nan: str) -> tuple[Tensor | None, Tensor | None]:
    """Return masks of the values that take part and of those that are NaN; None for all, and for none."""
    given = None if mask is None else mask.expand(samples.shape)
    if not may_hold_nan(samples):
        return given, None
    isnan = samples.isnan() if given is None else samples.isnan() & given
    if not bool(isnan.any()):
        return given, None
    counted_nan(isnan, nan)
    return (~isnan if given is None else given & ~isnan), isnan


def counted_nan(isnan: Tensor | None, nan: str) -> int:
    """Return the number of NaN; with ``nan="raise"`` there must be none."""
    nans = 0 if isnan is None else int(isnan.sum())
    if nans and nan == "raise":
        raise BadArgumentError(f'{nans} values of the batch are NaN, and nan="raise"')
    return nans


def may_hold_nan(samples: Tensor) -> bool:
    """Return whether there may be NaN: a sum is NaN if a value is, and much faster than a look at each."""
    return samples.is_floating_point() and math.isnan(comparable(samples).sum())


def common_type(statistic: str, kept: torch.dtype | None, given: torch.dtype) -> torch.dtype:
    """Return the dtype that holds the values kept so far and those of a batch exactly."""
    if given is torch.uint64:
        raise BadArgumentError(f"{statistic} takes integers up to int64, not {given}")
    if kept is None or kept is given:
        return given
    if kept.is_floating_point != given.is_floating_point:
        raise BadArgumentError(
            f"{statistic} was given {kept} before and {given} now: no dtype holds both exactly; convert one"
        )
    return torch.promote_types(kept, given)


def end_of(dtype: torch.dtype, *, lowest: bool) -> float | int | bool:
    """Return the lowest or the highest number of a type."""
    if dtype is torch.bool:
        return not lowest
    if dtype.is_floating_point:
        return float("-inf") if lowest else float("inf")
    return torch.iinfo(dtype).min if lowest else torch.iinfo(dtype).max


def widest(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which numbers of a dtype are kept: float64, or that of the integers."""
    return torch.float64 if dtype.is_floating_point else dtype


@dataclass(frozen=True, slots=True)
class SampleRows:
    """The rows of a batch that take part, how often each counts (once if None), and the number of NaN."""

    values: Tensor
    weights: Tensor | None
    nans: int

    @property
    def counts(self) -> Tensor:
        """The sum of the weights."""
        return self.values.new_tensor(float(len(self.values))) if self.weights is None else self.weights.sum()

    @property
    def origin(self) -> Tensor:
        """A row to take distances from: the first one, with zeros for what is not finite."""
        if not len(self.values):
            return self.values.new_zeros(self.values.shape[1])
        return torch.where(self.values[0].isfinite(), self.values[0], 0.0)

    @property
    def weighted(self) -> Tensor:
        return self.values if self.weights is None else self.values * self.weights[:, None]

    @property
    def mean(self) -> Tensor:
        """The mean of each column, of at least one row."""
        return self.values.mean(0) if self.weights is None else self.weights @ self.values / self.weights.sum()


def sample_rows(samples: Tensor, weights: Tensor | None, nan: str) -> SampleRows:
    """Return the samples, flattened, that take part."""
    weights = per_sample(weights, samples)
    flat = samples.reshape(len(samples), math.prod(samples.shape[1:]))
    if weights is not None and not bool((chosen := weights > 0).all()):
        flat, weights = flat[chosen], weights[chosen]
    absent = flat.isnan() if may_hold_nan(flat) else None
    nans = counted_nan(absent, nan)
    if absent is not None and nans and nan == "omit":
        whole = ~absent.any(1)
        flat, weights = flat[whole], None if weights is None else weights[whole]
    weights = None if weights is None or weights.dtype is torch.bool else weights
    return SampleRows(flat.double(), weights, nans)


def check_shape(to: object, before: Sequence[int], now: Sequence[int], what: str = "samples") -> None:
    """Refuse what has another shape than before."""
    if tuple(before) != tuple(now):
        raise BadArgumentError(
            f"the {what} of this {type(to).__name__} had shape {tuple(before)} before, the added ones have {tuple(now)}"
        )


def check_features(to: object, features: int, added: int) -> None:
    """Refuse samples of another size than before."""
    if features != added:
        raise BadArgumentError(
            f"the samples of this {type(to).__name__} have {features} features, the added ones have {added}"
        )
