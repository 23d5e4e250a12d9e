"""Channels: which dimension of a value they are, counts for each, and how far its values reach."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from byname.analyse.analyser import Analyser
from byname.analyse.sample import Sample
from byname.analyse.statistics.batches import comparable
from byname.analyse.statistics.statistic import Statistic
from byname.errors import BadArgumentError

__all__ = [
    "Layout",
    "OfChannels",
    "Tally",
    "assumed_channel",
    "channel_of",
    "check_channels",
    "checked_channel",
    "highest",
    "lowest",
    "positions_of",
    "with_channel",
]


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

    def by_channel(self, layout: Layout, sample: Sample, value: Tensor) -> Tensor:
        """The value, which has channels, with them as dimension 1; how it lies is taken down.

        Raises:
            BadArgumentError: if the number of channels is another than before.
        """
        found = value.movedim(channel_of(value, self.channel_dim), 1)
        layout.take(sample, value, found.shape[1], self.channel_dim)
        return found


class Layout(Statistic):
    """How the values of a place lie: which dimension is taken for the channels, how many these are, and why."""

    STATE = ("channels", "channel_dim", "note")

    def __init__(self, *, nan: str = "omit") -> None:
        super().__init__(nan=nan)
        self.channels: int | None = None
        self.channel_dim: int | None = None  # as long as values have two dimensions there is no choice

    def take(self, sample: Sample, value: Tensor, channels: int, asked: int | None) -> None:
        """Takes down how one more value lies.

        Args:
            sample: what the value is of.
            value: with samples along dimension 0.
            channels: how many there are.
            asked: the dimension of the channels, if the user has said it.
        """
        if self.channels is not None and self.channels != channels:
            sequences = asked is None and ". Of sequences (N, length, channels) the channels are channel_dim=-1"
            raise BadArgumentError(
                f"there were {self.channels} channels before, and are {channels} now, along dimension "
                f"{1 if asked is None else asked} of a value of shape {tuple(value.shape)}{sequences or ''}"
            )
        self.channels = channels
        if value.ndim > 2 and self.channel_dim is None:
            self.channel_dim = 1 if asked is None else asked
            self.note = assumed_channel(sample, value, asked)
        self.count += 1

    def result(self) -> tuple[int | None, int | None]:
        """The dimension of the channels, and how many they are."""
        return self.channel_dim, self.channels

    def _add(self, samples: Tensor, weights: Tensor | None) -> NoReturn:
        raise BadArgumentError("a value is taken by take(...)")

    def _merge(self, other: Layout) -> None:
        if self.channels != other.channels:
            raise BadArgumentError(f"there are {self.channels} channels in one, and {other.channels} in the other")
        if self.channel_dim is None:
            self.channel_dim, self.note = other.channel_dim, other.note


def assumed_channel(sample: Sample, value: Tensor, asked: int | None) -> str | None:
    """What is to be said of dimension 1 being taken for the channels; None where that is known to be right.

    It is of what convolutions and their like give, and of images, which values of four dimensions mostly are. Values
    of three are as often ``(batch, tokens, features)``.
    """
    if asked is not None or value.ndim < 3 or (sample.output and isinstance(sample.module, _SECOND)):
        return None
    last = sample.output and isinstance(sample.module, _LAST)
    if value.ndim > 3 and not last:
        return None
    why = f"; the features of a {type(sample.module).__name__} are the last" if last else ""
    return (
        f"dimension 1, of {value.shape[1]}, was taken for the channels of values of shape {tuple(value.shape)}{why}: "
        "for (batch, tokens, features) give channel_dim=-1, for (batch, channels, length) channel_dim=1"
    )


_SECOND = (
    *(nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.GroupNorm, nn.Dropout1d),
    *(getattr(nn, f"{kind}Pool1d") for kind in ("Avg", "Max", "LP", "AdaptiveAvg", "AdaptiveMax")),
)
"""Modules that give channels along dimension 1, also of three."""
_LAST = (nn.Linear, nn.Bilinear, nn.Embedding, nn.LayerNorm, nn.MultiheadAttention, nn.RNNBase)
"""Modules that give features along the last dimension."""


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


class Tally(Statistic):
    """Counts of a channel each, dimension 1 of a batch of bools: in how many places it is True.

    >>> Tally().add([[True, False], [True, True]]).result()
    tensor([2, 1])
    """

    STATE = ("_counts",)

    def __init__(self, *, nan: str = "omit") -> None:
        super().__init__(nan=nan)
        self._counts: Tensor | None = None

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        if weights is not None:
            raise BadArgumentError("each sample counts once here: weights make no sense")
        self._take(self._counted(samples))

    def _counted(self, samples: Tensor) -> Tensor:
        return _nonzeros(comparable(samples), [0, *range(2, samples.ndim)])

    def _merge(self, other: Tally) -> None:
        self._take(other.result())

    def _take(self, more: Tensor) -> None:
        if self._counts is None:
            self._counts = more.clone()
        else:
            check_channels(self._counts, more)
            self._counts = self._counts + more.to(self._counts.device)

    def result(self) -> Tensor:
        """The counts, int64."""
        if self._counts is None:
            raise BadArgumentError("nothing was added yet")
        return self._counts.clone()


_PIECE = 1 << 19
"""Values that are counted at a time: they stay in the cache, and float32 has room for such counts."""


def _nonzeros(samples: Tensor, over: list[int]) -> Tensor:
    """How many values are not zero; in a sixth of the time that `torch.count_nonzero` takes on the CPU (2.13)."""
    rows = _PIECE // max(1, samples.numel() // max(1, len(samples)))
    if samples.device.type != "cpu" or not rows:
        return torch.count_nonzero(samples, over)
    counts = torch.zeros(samples.shape[1], dtype=torch.int64)
    for piece in torch.split(samples, rows):
        counts += torch.ne(piece, 0, out=torch.empty_like(piece, dtype=torch.float32)).sum(over).long()
    return counts


def check_channels(before: Tensor, now: Tensor) -> None:
    """Refuses another number of channels than before.

    Raises:
        BadArgumentError: if there is.
    """
    if len(before) != len(now):
        raise BadArgumentError(f"there were {len(before)} channels before, and are {len(now)} now")


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
