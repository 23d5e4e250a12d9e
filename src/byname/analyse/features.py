"""Features: their mean and variance, outliers, units that never fire, and a list of the places that ran."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from copy import deepcopy
from functools import partial
from typing import Any, ClassVar, NamedTuple, Self, TypeAlias

import torch
from torch import Tensor, nn

from byname.analyse.analyser import Analyser, Sample
from byname.analyse.extremes import Extremes
from byname.analyse.layout import ChannelAnalyser, ChannelTally, highest, lowest, with_channel
from byname.analyse.moments import Moments, Variance
from byname.analyse.state import callable_name
from byname.analyse.statistic import Statistic
from byname.errors import BadArgumentError


class FeatureStatistics(ChannelAnalyser):
    """Mean and variance of each feature and of each channel, and the share of zeros.

        >>> import torch, byname
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.ReLU())
        >>> features = byname.analyse.FeatureStatistics()
        >>> with byname.observe(model, "1", features):
        ...     _ = model(torch.tensor([[1.0, -1.0], [3.0, 2.0]]))
        >>> figures = features.result()["1"]
        >>> figures["mean"], figures["variance"], figures["sparsity"]
        (tensor([2., 1.], dtype=torch.float64), tensor([2., 2.], dtype=torch.float64), 0.25)

    A feature is one place of a sample, a channel is one index of the dimension of the channels over all positions.
    The figures are ``mean`` and ``variance`` (ddof=1), of the shape of a sample; ``channel_mean`` and
    ``channel_variance`` of shape ``(channels,)``, over samples and positions; ``sparsity``, the share of values that
    are exactly zero, and ``channel_sparsity``; ``samples``; and ``nans``, how many values were NaN, which are left out.
    If samples have different shapes, there are no figures of features: ``mean`` and ``variance`` are left out, and
    ``note`` says so.

    Args:
        channel_dim: the dimension of the channels; by default found from the modules around the place.
        samples: ``"batch"``, or ``"tokens"`` if each position is a sample of its own, as the tokens of language models.

    Raises:
        BadArgumentError: in a forward, if the number of channels is another than before.
    """

    KEEPS: ClassVar = {"channels": partial(Variance, channel=1), "zeros": lambda: Zeros()}

    def begin(self, sample: Sample) -> dict[str, Any]:
        """Return empty statistics; where features are channels, only those of channels.

        Otherwise the figures of channels come from the features as long as samples have one shape.
        """
        kept = super().begin(sample)
        return kept if sample.value.ndim == 2 or self.samples == "tokens" else {**kept, "features": {}}

    def take(self, kept: Any, sample: Sample) -> None:
        """Add the values."""
        value = with_channel(sample.value)
        channels = self.by_channel(kept["layout"], sample, value)
        kept["zeros"].add(channels)
        if "features" not in kept and channels.ndim > 2:  # until now a sample was no more than its channels
            kept["features"] = {(channels.shape[1],): Variance()}
        shape = tuple(sample.value.shape[1:])
        if self._takes_features(kept, shape):
            kept["features"].setdefault(shape, Variance()).add(value.reshape(sample.value.shape))
        else:
            kept["channels"].add(channels)

    def figures(self, kept: Any) -> dict[Any, Any]:
        """Means, variances and zeros."""
        channels, zeros = self._channels(kept), kept["zeros"].result()
        known = channels.counts
        return {
            **_of_features(kept, channels),
            "channel_mean": channels.mean(),
            "channel_variance": channels.variance(),
            "sparsity": float(zeros.sum() / known.sum()),
            "channel_sparsity": zeros / known,
            "samples": kept["zeros"].count,
            "nans": channels.nans,
            **kept["layout"].result(),
        }

    def _takes_features(self, kept: Any, shape: tuple[int, ...]) -> bool:
        """Return whether there are figures of features; a second shape of samples ends them."""
        features = kept.get("features")
        if features and len(features) == 1 and shape not in features:
            kept["channels"] = self._channels(kept)
            features.update({one: Variance() for one in [*features, shape]})
        return features is not None and [*features] in ([], [shape])

    def _channels(self, kept: Any) -> Variance:
        """Return the figures of channels, also from those of the features."""
        dim = kept["layout"].channel_dim or self.channel_dim or 1
        pooled = [one.pooled(dim - (dim > 0)) for one in kept.get("features", {}).values() if one.begun]
        whole: Variance = deepcopy(kept["channels"])
        if not whole.begun and pooled:
            whole = pooled.pop()
        for one in pooled:
            whole.merge(one)
        return whole


def _of_features(kept: Any, channels: Variance) -> dict[str, Any]:
    features: dict[Any, Variance] = kept.get("features", {None: channels})
    if len(features) > 1 or any(one.count != kept["zeros"].count for one in features.values()):
        only = len(features) == 1 and kept["channels"].begun  # those of another, in whose samples were channels only
        shapes = [*([(kept["layout"].channels,)] if only else []), *features]
        return {"note": f"no figures of features: samples have shapes such as {' and '.join(map(str, shapes))}"}
    (found,) = features.values()
    return {"mean": found.mean(), "variance": found.variance()}


class Zeros(ChannelTally):
    """How many values of each channel, dimension 1, are exactly zero."""

    def _counted(self, samples: Tensor) -> Tensor:
        return samples.numel() // max(1, samples.shape[1]) - super()._counted(samples)


class Outliers(ChannelAnalyser):
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
        channel_dim: the dimension of the channels; by default found from the modules around the place.
        samples: ``"batch"``, or ``"tokens"`` if each position is a sample of its own, as the tokens of language models.

    Raises:
        BadArgumentError: in a forward, if the number of channels is another than before.
    """

    KEEPS: ClassVar = {"moments": partial(Moments, channel=1), "peaks": Extremes}

    def take(self, kept: Any, sample: Sample) -> None:
        """Add the values, and the largest magnitude of each sample and channel."""
        values = self.values(kept, sample)
        positions = [*range(2, values.ndim)]
        high, nans = highest(values, positions)
        magnitudes = torch.maximum(high, -lowest(values, positions))
        there = magnitudes >= 0
        kept["moments"].add(values)
        kept["peaks"].add(magnitudes, None if bool(there.all()) else there)
        kept["peaks"].nans += nans

    def figures(self, kept: Any) -> dict[Any, Any]:
        """Magnitudes and kurtosis."""
        moments, peaks = kept["moments"], kept["peaks"]
        largest, samples = peaks.max(), peaks.argmax()
        top = max(largest[samples >= 0].tolist(), default=math.nan)
        there = ((int(samples[channel]), channel) for channel in (largest == top).nonzero().flatten().tolist())
        sample, channel = min(there, default=(None, None))  # the first sample, and its first channel
        return {
            "max_abs": top,
            "max_abs_sample": sample,
            "max_abs_channel": channel,
            "kurtosis": _pooled_kurtosis(moments),
            "channel_max_abs": largest,
            "channel_kurtosis": moments.kurtosis(),
            "samples": peaks.count,
            "nans": peaks.nans,
            **kept["layout"].result(),
        }


def _pooled_kurtosis(moments: Moments) -> float:
    """Return the excess kurtosis of all values: central moments of channels, moved to the mean of all (Pebay 2008)."""
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


class NameList(Analyser):
    """The places that ran, in the order in which they first ran, with shapes and dtypes; values are not read.

        >>> import torch, byname
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> names = byname.analyse.NameList()
        >>> with byname.observe(model, "*", names):
        ...     for size in (4, 4, 1):
        ...         _ = model(torch.ones(size, 2))
        >>> names.names
        ('0', '1')
        >>> names.result()["1"]
        {'calls': 3, 'shape': (None, 3), 'dtype': 'float32'}

    The figures are ``calls``, how many tensors passed; ``shape``, in which a dimension that changed is None, and all
    of it if their number changed; and ``dtype``, several with commas.
    """

    @property
    def names(self) -> tuple[str, ...]:
        """The places, as `paths`."""
        return self.paths

    def begin(self, sample: Sample) -> Passings:
        """Nothing yet."""
        return Passings()

    def take(self, kept: Any, sample: Sample) -> None:
        """Note a tensor."""
        kept.add(sample.value)

    def figures(self, kept: Any) -> dict[Any, Any]:
        """Return calls, shape and dtype."""
        return {"calls": kept.count, **kept.result()}


class Passings(Statistic):
    """The number of tensors, and their shape and dtype; `count` is the number of tensors, not of samples."""

    STATE = ("_shape", "_dtypes")
    _shape: tuple[int | None, ...] | None
    _dtypes: Sequence[str] = ()

    def add(self, value: Tensor) -> Self:  # type: ignore[override]
        """Take one more tensor, of any number of dimensions."""
        self._take(tuple(value.shape), [str(value.dtype).removeprefix("torch.")])
        self.count += 1
        return self

    def _merge(self, other: Passings) -> None:
        self._take(other._shape, other._dtypes)

    def _take(self, shape: tuple[int | None, ...] | None, dtypes: Sequence[str]) -> None:
        self._shape = shape if not self.count else _common(self._shape, shape)
        self._dtypes = [*dict.fromkeys([*self._dtypes, *dtypes])]

    def result(self) -> dict[str, Any]:
        """Return the shape and the types."""
        return {"shape": self._shape, "dtype": ", ".join(self._dtypes)}


def _common(one: tuple[int | None, ...] | None, other: tuple[int | None, ...] | None) -> tuple[int | None, ...] | None:
    if one is None or other is None or len(one) != len(other):
        return None
    return tuple(mine if mine == others else None for mine, others in zip(one, other, strict=True))


Fires: TypeAlias = "float | Callable[[Tensor], Tensor] | None"


class DeadUnits(ChannelAnalyser):
    """Units that never fired: a unit is a channel, and fires in a sample if it does at any of its positions.

        >>> import torch, byname
        >>> model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.ReLU())
        >>> units = byname.analyse.DeadUnits()
        >>> with byname.observe(model, "1", units):
        ...     _ = model(torch.tensor([[1.0, -1.0, 2.0], [-1.0, -1.0, 3.0]]))
        >>> figures = units.result()["1"]
        >>> figures["dead"], figures["fired"]
        (1, tensor([1, 0, 2]))

    The figures are ``dead``, how many units fired in no sample; ``total``, how many there are; ``fired``, in how many
    samples each unit fired, int64 of shape ``(channels,)``; ``samples``; and ``nans``, how many values were NaN, which
    never fire. The positions may be others in each batch. The ``notes`` of the result, and of the handle, say
    which dimension was taken for the units, if modules around the place decided it.

    A value fires above zero, which is right for ReLU and all that are like it (GELU, SiLU, Mish, ELU, LeakyReLU ...)
    and for what comes before one. Where another rule holds, the module's class, or the operation's name, decides:
    sigmoid and softplus fire above 0.001, softmax above 0.000001 (their logarithms above the logarithms of these);
    tanh, hardtanh, softsign, tanhshrink and GLU farther than 0.001 from zero; hardshrink and softshrink anywhere but
    at zero; `torch.nn.Threshold` and `torch.nn.Hardtanh` as their arguments say.

    Args:
        fires: a number, above which a value fires; or a function, which is given the value and returns bools of its
            shape. By default the rule above.
        channel_dim: the dimension of the units; by default found from the modules around the place.
        samples: ``"batch"``, or ``"tokens"`` if each position is a sample of its own, as the tokens of language models.

    Raises:
        BadArgumentError: if an argument is none of these; in a forward, if the number of units is another than before.
    """

    SETTINGS = ("channel_dim", "fires")

    def __init__(self, *, fires: Fires = None, channel_dim: int | None = None, samples: str = "batch") -> None:
        super().__init__(channel_dim=channel_dim, samples=samples)
        number = isinstance(fires, int | float) and not isinstance(fires, bool) and not math.isnan(fires)
        if not (fires is None or callable(fires) or number):
            raise BadArgumentError(f"fires= takes a number, or a function that returns bools, not {fires!r}")
        self.fires = fires

    def begin(self, sample: Sample) -> dict[str, Any]:
        """No firings yet, by the rule of the place."""
        if callable(self.fires):
            rule: Any = callable_name(self.fires)
        else:
            rule = tuple(rest_of(sample) if self.fires is None else SilentValue(float(self.fires)))
        return {**super().begin(sample), "firings": Firings(rule=rule)}

    def take(self, kept: Any, sample: Sample) -> None:
        """Count in which samples the units fire."""
        value, rest = with_channel(sample.value), SilentValue()
        if callable(self.fires):
            value, nans = with_channel(self._asked(sample.value)), int(sample.value.isnan().sum())
        else:
            rest, nans = SilentValue(*kept["firings"].rule), 0
        units = self.by_channel(kept["layout"], sample, value)
        fired, unknown = rest.fired(units, [*range(2, units.ndim)])
        kept["firings"].add(fired)
        kept["firings"].nans += nans + unknown

    def figures(self, kept: Any) -> dict[Any, Any]:
        """Return the counts."""
        firings, fired = kept["firings"], kept["firings"].result()
        dead = int((fired == 0).sum()) if firings.count else 0
        counts = {"samples": firings.count, "nans": firings.nans, **kept["layout"].result()}
        return {"dead": dead, "total": len(fired), "fired": fired, **counts}

    def _asked(self, value: Tensor) -> Tensor:
        """Return where units fire according to the function; NaN never does."""
        assert callable(self.fires)
        fired = self.fires(value)
        if not isinstance(fired, Tensor) or fired.dtype is not torch.bool or fired.shape != value.shape:
            found = f"{tuple(fired.shape)} of {fired.dtype}" if isinstance(fired, Tensor) else type(fired).__name__
            raise BadArgumentError(f"fires(value) must return bools of shape {tuple(value.shape)}, not {found}")
        return fired & ~value.isnan()


class Firings(ChannelTally):
    """The number of samples in which each unit fired by a rule; counts of different rules do not merge."""

    SETTINGS = ("rule",)

    def __init__(self, *, rule: Any, nan: str = "omit") -> None:
        super().__init__(nan=nan)
        self.rule = rule


class SilentValue(NamedTuple):
    """The value of a silent unit, the distance from it that is still silent, and whether both sides fire."""

    value: float = 0.0
    tolerance: float = 0.0
    both: bool = False

    def fired(self, units: Tensor, dims: list[int]) -> tuple[Tensor, int]:
        """Return whether units fire anywhere along these dimensions, and the number of NaN, which never fire."""
        high, nans = highest(units, dims)
        fired = (high - self.value if self.value else high) > self.tolerance  # nearly all rest at 0
        if self.both:
            fired |= self.value - lowest(units, dims) > self.tolerance
        return fired, nans


ABOVE_ZERO = SilentValue()
_SMALL = 1e-3  # where the slope of sigmoid and softplus is as small
_SHARE = 1e-6  # of softmax, whose values get smaller the more there are
_TWO_SIDED = SilentValue(0.0, _SMALL, both=True)
_EXACT_ZERO = SilentValue(0.0, 0.0, both=True)

_OF_CLASS: dict[type[nn.Module], SilentValue] = {
    nn.Sigmoid: SilentValue(0.0, _SMALL),
    nn.Softplus: SilentValue(0.0, _SMALL),
    nn.Softmax: SilentValue(0.0, _SHARE),
    nn.Softmax2d: SilentValue(0.0, _SHARE),
    nn.Softmin: SilentValue(0.0, _SHARE),
    nn.LogSigmoid: SilentValue(math.log(_SMALL)),
    nn.LogSoftmax: SilentValue(math.log(_SHARE)),
    nn.Tanh: _TWO_SIDED,
    nn.Softsign: _TWO_SIDED,
    nn.Tanhshrink: _TWO_SIDED,
    nn.GLU: _TWO_SIDED,
    nn.Hardshrink: _EXACT_ZERO,
    nn.Softshrink: _EXACT_ZERO,
}
_OF_OPERATION = {
    re.sub(r"(?<=[a-z])(?=(sigmoid|softmax)$)", "_", kind.__name__.lower()): rest for kind, rest in _OF_CLASS.items()
} | {"hardtanh": _TWO_SIDED}


def rest_of(sample: Sample) -> SilentValue:
    """Return the rest of the units of a place, by the class of the module it is the output of, or the operation."""
    if sample.output:
        return _of_module(sample.module)
    name = re.sub(r"\[.*$", "", sample.path).rpartition(".")[2]
    return _OF_OPERATION.get(re.sub(r"_?(_\d+)?$", "", name), ABOVE_ZERO)


def _of_module(module: nn.Module) -> SilentValue:
    if isinstance(module, nn.Threshold):
        above = module.threshold >= module.value
        return SilentValue(float(module.threshold)) if above else SilentValue(float(module.value), both=True)
    if isinstance(module, nn.Hardtanh):  # nn.ReLU6 is one, too
        return SilentValue(float(module.min_val)) if module.min_val >= 0 else _TWO_SIDED
    return next((rest for kind, rest in _OF_CLASS.items() if isinstance(module, kind)), ABOVE_ZERO)
