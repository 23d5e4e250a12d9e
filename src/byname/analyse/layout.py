"""Channels: which dimension of a value they are, counts for each, and how far its values reach."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor

from byname.analyse.analyser import Analyser, Sample
from byname.analyse.batches import checked_choice, comparable, may_hold_nan
from byname.analyse.statistic import Statistic, SummedStatistic
from byname.errors import BadArgumentError
from byname.table import listed


class ChannelAnalyser(Analyser):
    """An analyser with figures of each channel, whose dimension is given or found from the modules around a place."""

    SETTINGS: ClassVar[tuple[str, ...]] = ("channel_dim",)

    def __init__(self, *, channel_dim: int | None = None, samples: str = "batch") -> None:
        super().__init__()
        self.channel_dim = checked_channel_dim(channel_dim)
        self.samples = checked_choice(samples, "samples", ("batch", "tokens"))

    def settings(self) -> dict[str, Any]:
        """Return the settings of the class, and the samples if they are tokens."""
        return {**super().settings(), **({"samples": self.samples} if self.samples != "batch" else {})}

    def begin(self, sample: Sample) -> dict[str, Any]:
        """Return an empty layout, and the statistics of the class."""
        return {"layout": Layout(), **super().begin(sample)}

    def values(self, kept: Any, sample: Sample) -> Tensor:
        """Return the value with its channels as dimension 1, and note its layout."""
        return self.by_channel(kept["layout"], sample, with_channel(sample.value))

    def by_channel(self, layout: Layout, sample: Sample, value: Tensor) -> Tensor:
        """Return a value that has channels with them as dimension 1, and note its layout; tokens as rows."""
        dim = layout.take(sample, value, self.channel_dim)
        if self.samples == "tokens":
            return positions_of(value, dim)
        return value if dim == 1 else value.movedim(dim, 1)


class Layout(Statistic):
    """The layout of the values of a place: the dimension of the channels, their number, and why it was chosen."""

    STATE = ("channels", "channel_dim", "note")
    channels: int | None
    channel_dim: int | None  # None as long as values have two dimensions: there is no choice

    def take(self, sample: Sample, value: Tensor, asked: int | None) -> int:
        """Note the layout of one more value, and return the dimension of its channels, which `asked` may say."""
        known = self.channel_dim if asked is None else asked
        dim, note = feature_dim(sample, value, known)
        channels = value.shape[dim]
        if self.channels is not None and self.channels != channels:
            advice = ". For sequences (N, length, channels) give channel_dim=-1" if asked is None else ""
            raise BadArgumentError(
                f"there were {self.channels} channels before, and there are {channels} now, in dimension {dim} of a "
                f"value of shape {tuple(value.shape)}{advice}"
            )
        self.channels = channels
        if self.channel_dim is None:
            self.channel_dim, self.note = shown_dim(value, dim, asked), note
        self.count += 1
        return dim

    def result(self) -> dict[str, int]:
        """Return the dimension of the channels; nothing if there was no choice."""
        return {} if self.channel_dim is None else {"channel_dim": self.channel_dim}

    def _merge(self, other: Layout) -> None:
        if self.channels != other.channels:
            raise BadArgumentError(f"one has {self.channels} channels, and the other {other.channels}")
        if self.channel_dim is None:
            self.channel_dim, self.note = other.channel_dim, other.note


def shown_dim(value: Tensor, dim: int, asked: int | None) -> int | None:
    """Return the dimension of the channels for a result; None if there was no choice."""
    return None if value.ndim < 3 else asked if asked is not None else 1 if dim == 1 else -1


def feature_dim(sample: Sample, value: Tensor, asked: int | None) -> tuple[int, str | None]:
    """Return the dimension of the channels in a value, and a note if it was inferred.

    It is 1 of two dimensions, or the one that the user gave. Otherwise the modules of the model decide; see
    `byname.model.feature_dims`. In a model without modules that could decide it is 1, as in images; for three
    dimensions the note calls that a guess.
    """
    if asked is not None or value.ndim < 3 or sample.parameter:
        return channel_of(value, asked), None
    found = None if sample.around is None else sample.around.dim_of(value)
    if found is None and (sample.around is None or not sample.around.sizes_known):
        return 1, _ASSUMED.format(value.shape[1], tuple(value.shape)) if value.ndim == 3 else None
    if found is None:
        raise BadArgumentError(
            f"`{sample.path}`: the modules around it do not show which dimension of shape {tuple(value.shape)} the "
            "channels are: for (batch, tokens, features) give channel_dim=-1, for (batch, channels, length) "
            "channel_dim=1"
        )
    if found.own or (found.dim == 1 and value.ndim > 3):  # no note: images are unambiguous
        return channel_of(value, found.dim), None
    which = "the last dimension" if found.dim == -1 else "dimension 1"
    return channel_of(value, found.dim), (
        f"{which}, of {value.shape[found.dim]}, was taken for the channels of values of shape {tuple(value.shape)}, as "
        f"in the modules around it ({listed(found.by, 4)}); channel_dim= takes another"
    )


_ASSUMED = (
    "dimension 1, of {}, was assumed to be the channels of values of shape {}; no module of the model shows it: for "
    "(batch, tokens, features) give channel_dim=-1, for (batch, channels, length) channel_dim=1"
)


def checked_channel_dim(channel_dim: int | None) -> int | None:
    if channel_dim is not None and (type(channel_dim) is not int or channel_dim == 0):
        raise BadArgumentError(
            f"channel_dim is the index of a dimension, such as 1 or -1, not {channel_dim!r}"
            + ("; dimension 0 is the sample" if channel_dim == 0 else "")
        )
    return channel_dim


def channel_of(value: Tensor, channel_dim: int | None) -> int:
    """Return the dimension of the channels: 1, which is the last of two, unless another is asked for."""
    found = 1 if channel_dim is None else channel_dim + value.ndim * (channel_dim < 0)
    if not 0 < found < value.ndim:
        raise BadArgumentError(f"channel_dim={channel_dim} is not a dimension of a value of shape {tuple(value.shape)}")
    return found


def positions_of(value: Tensor, dim: int) -> Tensor:
    """Return one row for each position of each sample, and a column for each channel.

    >>> positions_of(torch.zeros(2, 3, 4, 4), 1).shape
    torch.Size([32, 3])
    """
    last = value.movedim(dim, -1)
    return last.reshape(math.prod(last.shape[:-1]), last.shape[-1])


def with_channel(value: Tensor) -> Tensor:
    """Return the value as dense real numbers; one number a sample, ``(N,)``, as one channel, ``(N, 1)``."""
    if not value.ndim:
        raise BadArgumentError("the first dimension of a value is the sample; this value has no dimensions")
    if value.is_complex():
        raise BadArgumentError(
            "complex values have no order: observe their real part, imaginary part or absolute value"
        )
    value = value.to_dense() if value.layout is not torch.strided else value
    value = value.float() if value.is_floating_point() and value.itemsize == 1 else value  # float8 has no arithmetic
    return value[:, None] if value.ndim == 1 else value


class ChannelTally(SummedStatistic):
    """Counts for each channel, dimension 1 of a batch of bools: the number of places where it is True.

    >>> ChannelTally().add([[True, False], [True, True]]).result()
    tensor([2, 1])
    """

    STATE = ("_counts",)

    def _of(self, samples: Tensor, weights: Tensor | None) -> tuple[tuple[Tensor, ...], int]:
        return (self._counted(samples),), 0

    def _counted(self, samples: Tensor) -> Tensor:
        return _nonzeros(comparable(samples), [0, *range(2, samples.ndim)])

    def result(self) -> Tensor:
        return self.known()[0]


_PIECE = 1 << 19
"""Values that are counted at a time: they stay in the cache, and float32 has room for such counts."""


def _nonzeros(samples: Tensor, over: list[int]) -> Tensor:
    """Return the number of nonzero values, on the CPU six times as fast as `torch.count_nonzero` (2.13)."""
    if samples.dtype is torch.bool:
        return samples.sum(over)
    count = len(samples)
    rows = _PIECE // max(1, samples.numel() // max(1, count))
    if samples.device.type != "cpu" or not rows:
        return torch.count_nonzero(samples, over)
    if count <= rows:
        return _nonzeros_of_piece(samples, over)
    return torch.stack([_nonzeros_of_piece(piece, over) for piece in torch.split(samples, rows)]).sum(0)


def _nonzeros_of_piece(piece: Tensor, over: list[int]) -> Tensor:
    return torch.ne(piece, 0, out=torch.empty_like(piece, dtype=torch.float32)).sum(over).long()


def highest(values: Tensor, dims: list[int]) -> tuple[Tensor, int]:
    """Return the largest values as float64, minus infinity if all are NaN, and the number of NaN.

    >>> highest(torch.tensor([[1.0, torch.nan], [torch.nan, torch.nan]]), [1])
    (tensor([1., -inf], dtype=torch.float64), 3)
    """
    return _end(values, dims, torch.amax, -torch.inf)


def lowest(values: Tensor, dims: list[int]) -> Tensor:
    """Return the smallest values as float64, infinity if all are NaN."""
    return _end(values, dims, torch.amin, torch.inf)[0]


def _end(
    values: Tensor, dims: list[int], end: Callable[[Tensor, list[int]], Tensor], none: float
) -> tuple[Tensor, int]:
    if not values.numel():
        left = [size for at, size in enumerate(values.shape) if at not in dims]
        return torch.full(left, none, dtype=torch.float64, device=values.device), 0
    found = end(values, dims) if dims else values
    if not may_hold_nan(found):
        return found.double(), 0
    unknown = values.isnan()
    values = values.masked_fill(unknown, none)
    return (end(values, dims) if dims else values).double(), int(unknown.sum())
