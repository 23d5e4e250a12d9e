"""How far out do values lie? Their largest magnitude, in which sample it was, and the kurtosis."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from byname.analyse.analysers.channels import Layout, OfChannels, check_channels, highest, lowest, with_channel
from byname.analyse.sample import Sample
from byname.analyse.statistics.moments import Moments
from byname.analyse.statistics.statistic import Statistic
from byname.errors import BadArgumentError


class Outliers(OfChannels):
    """The largest magnitude and the kurtosis of all values of a place, and of each channel.

        >>> import torch, byname
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Identity())
        >>> outliers = byname.analyse.Outliers()
        >>> with byname.observe(model, "1", outliers):
        ...     _ = model(torch.tensor([[1.0, -1.0], [0.0, -9.0], [0.0, 1.0]]))
        >>> figures = outliers.result()["1"]
        >>> figures["max_abs"], figures["max_abs_sample"], figures["channel_max_abs"]
        (9.0, 1, tensor([1., 9.], dtype=torch.float64))

    The figures are ``max_abs``; ``max_abs_sample`` and ``max_abs_channel``, where it was first (samples are counted
    over all batches; after a merge those of the other follow); ``kurtosis``, the excess kurtosis m4 / m2² - 3 of the
    population, 0 for a normal distribution; ``channel_max_abs`` and ``channel_kurtosis`` of shape ``(channels,)``;
    ``samples``; and ``nans``, how many values were NaN, which are left out. Infinity is a magnitude; a kurtosis with
    infinities, or of values that are all the same, is NaN.

    Args:
        channel_dim: the dimension of the channels; by default what the modules around the place tell.

    Raises:
        BadArgumentError: in a forward, if the number of channels is another than before.
    """

    def begin(self, sample: Sample) -> dict[Any, Any]:
        """Nothing yet."""
        return {"layout": Layout(), "moments": Moments(channel=1), "peaks": Peaks()}

    def take(self, kept: Any, sample: Sample) -> None:
        """Adds the values."""
        value = with_channel(sample.value)
        value = self.by_channel(kept["layout"], sample, value)
        kept["peaks"].add(value)
        kept["moments"].add(value)

    def figures(self, kept: Any) -> dict[Any, Any]:
        """Magnitudes and kurtosis."""
        moments, peaks = kept["moments"], kept["peaks"]
        return {
            "max_abs": peaks.largest,
            "max_abs_sample": peaks.sample,
            "max_abs_channel": peaks.channel,
            "kurtosis": pooled_kurtosis(moments),
            "channel_max_abs": peaks.result(),
            "channel_kurtosis": moments.kurtosis(),
            "samples": peaks.count,
            "nans": peaks.nans,
            **kept["layout"].figures(),
        }


def pooled_kurtosis(moments: Moments) -> float:
    """The excess kurtosis of all values, of which the moments of each channel are known.

    The central moments of each channel are moved to the mean of all (Pebay 2008) and averaged.
    """
    some = moments.counts > 0
    if not bool(some.any()):
        return math.nan
    share = moments.counts[some] / moments.counts[some].sum()
    mean = moments.mean()[some]
    second, third, fourth = (moments.central_moment(order)[some] for order in (2, 3, 4))
    whole = (share * mean).sum()
    away = mean - whole
    spread = float((share * (second + away**2)).sum())
    fourths = float((share * (fourth + 4 * away * third + 6 * away**2 * second + away**4)).sum())
    rounding = torch.finfo(torch.float64).eps * float(whole)
    if spread <= rounding * rounding or not 1e-290 < fourths < math.inf:  # all the same, or too small or large to tell
        return math.nan
    return fourths / spread / spread - 3


class Peaks(Statistic):
    """The largest magnitude of each channel, dimension 1, and where the largest of all is.

    >>> peaks = Peaks().add([[1.0, -5.0], [2.0, 3.0]])
    >>> peaks.result(), peaks.sample, peaks.channel
    (tensor([2., 5.], dtype=torch.float64), 0, 1)
    """

    STATE = ("_peaks", "_sample")

    def __init__(self, *, nan: str = "omit") -> None:
        super().__init__(nan=nan)
        self._peaks: Tensor | None = None  # minus infinity as long as there is none
        self._sample: int | None = None

    def _add(self, samples: Tensor, weights: Tensor | None) -> None:
        positions = [*range(2, samples.ndim)]
        high, nans = highest(samples, positions)
        magnitudes = torch.maximum(high, -lowest(samples, positions))
        peaks, _ = highest(magnitudes, [0])
        sample = int(magnitudes.amax(1).argmax()) if magnitudes.numel() else None
        self._take(peaks, sample)
        self.nans += nans

    def _merge(self, other: Peaks) -> None:
        assert other._peaks is not None
        self._take(other._peaks, other._sample)

    def _take(self, peaks: Tensor, sample: int | None) -> None:
        mine = torch.full_like(peaks, -torch.inf) if self._peaks is None else self._peaks
        check_channels(mine, peaks)
        peaks = torch.maximum(mine, peaks.to(mine.device))
        if sample is not None and _top(peaks) > _top(mine):
            self._sample = self.count + sample
        self._peaks = peaks

    @property
    def largest(self) -> float:
        """The largest magnitude of all, NaN if there is none."""
        return float("nan") if self._sample is None else _top(self._known())

    @property
    def sample(self) -> int | None:
        """In which sample it was first."""
        return self._sample

    @property
    def channel(self) -> int | None:
        """In which channel it was; the first of several."""
        return None if self._sample is None else int(self._known().argmax())

    def result(self) -> Tensor:
        """The largest magnitude of each channel, NaN where there is none."""
        known = self._known()
        return torch.where(known == -torch.inf, torch.nan, known)

    def _known(self) -> Tensor:
        if self._peaks is None:
            raise BadArgumentError("nothing was added yet")
        return self._peaks


def _top(peaks: Tensor) -> float:
    return float(peaks.max()) if len(peaks) else -torch.inf
