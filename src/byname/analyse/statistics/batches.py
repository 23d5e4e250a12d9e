"""Is this a batch of samples, and are these weights of it? What is given to a statistic is checked here."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from byname.errors import BadArgumentError

__all__ = [
    "Batch",
    "checked_channel",
    "checked_integer",
    "checked_nan",
    "checked_weights",
    "per_sample",
    "samples_of",
    "tensor_of",
]

Batch: TypeAlias = Tensor | Sequence[Any] | Any
"""A tensor, a numpy array or a sequence of numbers."""

_NAN = ("omit", "propagate", "raise")


def checked_nan(nan: str) -> str:
    """The policy, if it is one."""
    if nan not in _NAN:
        raise BadArgumentError(f"nan is one of {', '.join(map(repr, _NAN))}, not {nan!r}")
    return nan


def checked_channel(channel: Any) -> int | None:
    """The argument that says which dimension has a figure an index, if it may be one."""
    if channel is not None and type(channel) is not int:
        raise BadArgumentError(f"channel is the number of a dimension, or None, not {channel!r:.80}")
    return channel


def checked_integer(value: Any, name: str) -> int:
    """The value of an argument that is an integer of at least 0, as Python's own."""
    try:
        found = -1 if isinstance(value, bool) else index(value)
    except TypeError:
        found = -1
    if found < 0:
        raise BadArgumentError(f"{name} is an integer and not negative, not {value!r:.80}")
    return found


def samples_of(batch: Batch) -> Tensor:
    """The batch as a detached tensor, with the samples along dimension 0."""
    samples = tensor_of(batch, "a batch")
    if not samples.ndim:
        raise BadArgumentError("the first dimension of a batch is the sample; this has none: use value.reshape(1)")
    return samples.to_dense() if samples.layout is not torch.strided else samples


def checked_weights(weights: Batch | None, samples: Tensor) -> Tensor | None:
    """The weights as float64, or a mask as bools, with as many dimensions as the samples; None if all count once."""
    if weights is None:
        return None
    given = tensor_of(weights, "a weight").to(samples.device)
    if given.shape != samples.shape[: given.ndim] or not given.ndim:
        raise BadArgumentError(
            f"weights have the shape of the batch, {tuple(samples.shape)}, or of its first dimensions, "
            f"not {tuple(given.shape)}"
        )
    if given.dtype is not torch.bool:
        given = given.double()
        if not bool(torch.isfinite(given).all()) or bool((given < 0).any()):
            raise BadArgumentError("weights are finite and not negative")
    return given.reshape(given.shape + (1,) * (samples.ndim - given.ndim))


def per_sample(weights: Tensor | None, samples: Tensor) -> Tensor | None:
    """Weights in shape ``(len(samples),)``, as samples that count as a whole have them."""
    if weights is not None and weights.numel() != len(samples):
        raise BadArgumentError(
            f"samples count as a whole here: weights have shape ({len(samples)},), not {tuple(weights.shape)}"
        )
    return None if weights is None else weights.reshape(len(samples))


def tensor_of(given: Any, what: str) -> Tensor:
    """A detached tensor of real numbers; those of Python are of 64 bits, and stay so."""
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
        raise BadArgumentError(f"{what} is a tensor, not {type(given).__name__}: {error}") from None
    if found.is_complex():
        raise BadArgumentError(
            f"{what} is of real numbers, not {found.dtype}: use torch.view_as_real(value) or value.abs()"
        )
    return found
