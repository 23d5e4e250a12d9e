"""Quantile: quantiles of each feature from a bounded sketch, with a bound of the error."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from byname.analyse.batches import (
    check_shape,
    checked_channel,
    checked_choice,
    checked_integer,
    common_type,
    known,
    missing,
    only_mask,
)
from byname.analyse.sketch import Sketch
from byname.analyse.statistic import Statistic
from byname.errors import BadArgumentError

_KEPT_AS = {
    torch.bool: torch.uint8,
    torch.uint16: torch.int32,
    torch.uint32: torch.int64,
    torch.float8_e4m3fn: torch.float32,
    torch.float8_e5m2: torch.float32,
    torch.float16: torch.float32,
    torch.bfloat16: torch.float32,
}
"""Dtypes that numpy or PyTorch 2.13 cannot sort, or only slowly, and dtypes that hold the same numbers."""


class FiveNumbers(NamedTuple):
    """The five-number summary of each feature (Tukey 1977), as float64."""

    minimum: Tensor
    lower_quartile: Tensor
    median: Tensor
    upper_quartile: Tensor
    maximum: Tensor


class Quantile(Statistic):
    """Quantiles of each feature, from a sketch of bounded size.

    >>> seen = Quantile().add([[1., 50.], [2., 40.], [4., 30.]])
    >>> seen.quantile(0.5)
    tensor([ 2., 40.], dtype=torch.float64)
    >>> seen.quantile([0.25, 1]).tolist(), seen.error_bound
    ([[1.5, 35.0], [4.0, 50.0]], 0.0)
    >>> seen.add(torch.randn(100_000, 2)).error_bound < 0.001
    True

    The first values are kept as they are: below ``2 * resolution`` of each feature (``64 * resolution`` of
    a single one) the answers are those of `numpy.quantile`. Later ones are thinned out, evenly along their
    order, by more the more there are.

    **The bound** holds for any data, in any order, merged in any way; it is no probability. ``quantile(q)`` lies
    between `numpy.quantile` of all values at ``q - error_bound`` and at ``q + error_bound``. It grows with the
    logarithm of the number n of values of a feature, about as ``log2(n / resolution) / (4 * resolution)``: 0.0018 for
    1e8 values (0.0013 of a single feature). The measured error was half of it or less, in all orders tried. The
    smallest and the largest value are exact. The proof is with the mechanism, in `byname.analyse.sketch`.

    Memory a feature: room for ``2 * resolution`` values (``64 * resolution`` of a single one), and
    for ``resolution`` more with each doubling of their number.

    Values are kept in their own type (float16 and bfloat16 as float32, bool as uint8), so integers are not rounded.
    float32 and float64 may be mixed, and so may integers; floating point and integers may not. Infinities take part.
    NaN is left out value by value; with ``nan="propagate"`` the quantiles of its feature become NaN. Weights are a mask
    of bools.

    Args:
        resolution: how many values a run has. Twice as many: half the error, twice the memory.
        channel: a dimension of the batch; one quantile for each of its indices, over all other dimensions. None for
            one quantile a feature, over the samples.
        nan: ``"omit"``, ``"propagate"`` or ``"raise"``.
    """

    SETTINGS = ("resolution", "channel")
    STATE = ("_shape", "_kept", "_spoilt")
    _shape: list[int] | None
    _kept: dict[str, Any] | None  # the attributes of the sketch
    _spoilt: Tensor | None  # which features have met NaN, if that matters

    def __init__(self, *, resolution: int = 2048, channel: int | None = None, nan: str = "omit") -> None:
        super().__init__(nan=nan)
        self.resolution = checked_integer(resolution, "resolution", 2)
        self.channel = checked_channel(channel)

    @property
    def _sketch(self) -> Sketch | None:
        return None if self._kept is None else Sketch.on(self._kept)

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        mask = only_mask(weights, "Quantile")
        shape = self._shape_of(samples)
        kind = self._kind(samples.dtype)
        part, isnan = missing(samples, mask, self.nan)
        sketch = self._sketch
        values = self._lines(samples).to(samples.device if sketch is None else self.device, kind)
        sketch = sketch or Sketch(len(values), self.resolution, kind, values.device)
        self._shape, self._kept = shape, vars(sketch)
        sketch.ready(kind)
        if isnan is not None:
            self.nans += int(isnan.sum())
            self._spoil(self._lines(isnan).any(1))
        sketch.add(values, None if part is None else self._lines(part).to(values.device))

    def _shape_of(self, samples: Tensor) -> list[int]:
        if self.channel is None:
            shape = list(samples.shape[1:])
        elif -samples.ndim <= self.channel < samples.ndim:
            shape = [samples.shape[self.channel]]
        else:
            raise BadArgumentError(f"a batch of shape {tuple(samples.shape)} has no dimension {self.channel}")
        if self._shape is not None:
            check_shape(self, self._shape, shape, "figures")
        return shape

    def _kind(self, given: torch.dtype) -> torch.dtype:
        kept = None if self._kept is None else self._kept["buffer"].dtype
        return common_type("Quantile", kept, _KEPT_AS.get(given, given))

    def _lines(self, samples: Tensor) -> Tensor:
        """Return the values of each feature along a line of its own: (features, values)."""
        if self.channel is None:
            return samples.reshape(len(samples), samples.shape[1:].numel()).T
        size = samples.shape[self.channel]
        rest = samples.numel() // size if size else 0
        return samples.movedim(self.channel, 0).reshape(size, rest)

    def _spoil(self, lines: Tensor | None) -> None:
        if self.nan == "propagate" and lines is not None:
            self._spoilt = lines.to(self.device) | (False if self._spoilt is None else self._spoilt)

    def _merge(self, other: Quantile) -> None:
        check_shape(self, known(self._shape), known(other._shape), "figures")
        mine = known(self._sketch)
        theirs = Sketch.on({**known(other._kept)})  # in a dict of its own, so that its type does not change there
        kind = self._kind(theirs.buffer.dtype)
        theirs.ready(kind)
        mine.ready(kind)
        mine.merge(theirs)
        self._spoil(other._spoilt)

    @property
    def error_bound(self) -> float:
        """The largest error of the share of a quantile, in the worst feature; 0 if all are exact."""
        sketch = self._sketch
        if sketch is None or not len(sketch.buffer):
            return 0.0
        off = (sketch.over + sketch.under + 1) // 2  # values
        return float((off.double() / (sketch.each() - 1).clamp(min=1)).max())

    def quantile(self, q: float | Sequence[float] | Tensor, *, interpolation: str = "linear") -> Tensor:
        """Return the quantiles: of the figures' shape, or (len(q), ...) for several shares.

        Args:
            q: one share from 0 to 1, or several.
            interpolation: ``"linear"`` between the two nearest values, as float64; or one of the two, in the type in
                which values are kept: ``"lower"`` or ``"higher"``. Features without any value are NaN.

        Raises:
            BadArgumentError: if nothing was added yet, if q is no share, or if integers should be NaN.
        """
        shares = torch.as_tensor(q, dtype=torch.float64, device=self.device)
        if shares.ndim > 1 or not bool(((shares >= 0) & (shares <= 1)).all()):
            raise BadArgumentError(f"q is a number from 0 to 1, or several, not {q!r}")
        checked_choice(interpolation, "interpolation", ("linear", "lower", "higher"))
        sketch = known(self._sketch)
        low, high, way = sketch.read(shares.reshape(-1))
        found = _between(low, high, way) if interpolation == "linear" else low if interpolation == "lower" else high
        found = self._without_undefined(found, sketch.each() == 0)
        return found.T.reshape([*shares.shape, *(self._shape or ())])

    def _without_undefined(self, found: Tensor, undefined: Tensor) -> Tensor:
        if self._spoilt is not None:
            undefined = undefined | self._spoilt
        if not bool(undefined.any()):
            return found
        if not found.is_floating_point():
            raise BadArgumentError(f"a feature has no values, and {found.dtype} has no NaN: use interpolation='linear'")
        return found.masked_fill(undefined[:, None], torch.nan)

    def median(self) -> Tensor:
        """Return the middle value of each feature, as float64."""
        return self.quantile(0.5)

    def result(self) -> FiveNumbers:
        """Return the smallest value, the quartiles and the largest value."""
        return FiveNumbers(*self.quantile([0, 0.25, 0.5, 0.75, 1]))


def _between(low: Tensor, high: Tensor, way: Tensor) -> Tensor:
    """Interpolate as numpy does, to the last digit, but exactly where both values are equal."""
    low, high = low.double(), high.double()
    span = high - low
    mixed = torch.where(way < 0.5, low + span * way, high - span * (1 - way))
    return torch.where((way == 0) | (low == high), low, mixed)
