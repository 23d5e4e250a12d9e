"""Which dimension of a value is its channel, and what are its positions?"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from byname.analyse.analysers.analyser import Analyser
from byname.errors import BadArgumentError

__all__ = ["OfChannels", "channel_of", "checked_channel", "positions_of", "with_channel"]


class OfChannels(Analyser):
    """An analyser with figures of each channel.

    Args:
        channel_dim: the dimension of the channels; by default 1.
    """

    def __init__(self, *, channel_dim: int | None = None) -> None:
        super().__init__()
        self.channel_dim = checked_channel(channel_dim)

    def settings(self) -> dict[str, Any]:
        """Which dimension the channels are."""
        return {"channel_dim": self.channel_dim}

    def by_channel(self, value: Tensor) -> Tensor:
        """The value, which has channels, with them as dimension 1."""
        return value.movedim(channel_of(value, self.channel_dim), 1)


def checked_channel(channel_dim: int | None) -> int | None:
    """The argument, if it may be one."""
    if channel_dim is not None and (type(channel_dim) is not int or channel_dim == 0):
        raise BadArgumentError(
            f"channel_dim is the number of a dimension, such as 1 or -1, not {channel_dim!r}"
            + ("; dimension 0 is the sample" if channel_dim == 0 else "")
        )
    return channel_dim


def channel_of(value: Tensor, channel_dim: int | None) -> int:
    """The channel's dimension: 1, which is the last of two, unless another is asked for.

    Raises:
        BadArgumentError: if the value has no such dimension, or it is that of the samples.
    """
    found = 1 if channel_dim is None else channel_dim + value.ndim * (channel_dim < 0)
    if not 0 < found < value.ndim:
        raise BadArgumentError(f"channel_dim={channel_dim} is no dimension of a sample of shape {tuple(value.shape)}")
    return found


def positions_of(value: Tensor, channel_dim: int | None) -> Tensor:
    """One row for each position of each sample, and a column for each channel; see `channel_of`.

    >>> positions_of(torch.zeros(2, 3, 4, 4), None).shape
    torch.Size([32, 3])
    """
    last = value.movedim(channel_of(value, channel_dim), -1)
    return last.reshape(math.prod(last.shape[:-1]), last.shape[-1])


def with_channel(value: Tensor) -> Tensor:
    """The value as real numbers to compute with; one number a sample, ``(N,)``, as one channel, ``(N, 1)``.

    Raises:
        BadArgumentError: if there are no samples but one number, or the numbers are complex.
    """
    if not value.ndim:
        raise BadArgumentError("the first dimension of a value is the sample; this is one number, of no dimension")
    if value.is_complex():
        raise BadArgumentError(
            "complex values have no order: observe their real part, their imaginary part or their absolute value"
        )
    value = value.to_dense() if value.layout is not torch.strided else value
    value = value.float() if value.is_floating_point() and value.itemsize == 1 else value  # float8 has no arithmetic
    return value[:, None] if value.ndim == 1 else value
