"""DeadUnits: which units never fire over all the data, and when a unit fires under each activation function."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor, nn

from byname.analyse.analysers.channels import ChannelTally, Layout, OfChannels, highest, lowest, with_channel
from byname.analyse.sample import Sample
from byname.analyse.statistics.states import callable_name, plain
from byname.errors import BadArgumentError

Fires: TypeAlias = "float | Callable[[Tensor], Tensor] | None"


class DeadUnits(OfChannels):
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
    which dimension was taken for the units, where modules around the place told it.

    A value fires above zero, which is right for ReLU and all that are like it (GELU, SiLU, Mish, ELU, LeakyReLU ...)
    and for what comes before one. Where another rule holds, the module's class, or the operation's name, decides:
    sigmoid and softplus fire above 0.001, softmax above 0.000001 (their logarithms above the logarithms of these);
    tanh, hardtanh, softsign, tanhshrink and GLU farther than 0.001 from zero; hardshrink and softshrink anywhere but
    at zero; `torch.nn.Threshold` and `torch.nn.Hardtanh` as their arguments say.

    Args:
        fires: a number, above which a value fires; or a function, which is given the value and returns bools of its
            shape. By default the rule above.
        channel_dim: the dimension of the units; by default what the modules around the place tell.

    Raises:
        BadArgumentError: if an argument is none of these; in a forward, if the number of units is another than before.
    """

    def __init__(self, *, fires: Fires = None, channel_dim: int | None = None) -> None:
        super().__init__(channel_dim=channel_dim)
        if not (fires is None or callable(fires) or _is_number(fires)):
            raise BadArgumentError(f"fires is a number, or a function of the value that returns bools, not {fires!r}")
        self.fires = fires

    def settings(self) -> dict[str, Any]:
        """Which dimension the units are, and when they fire."""
        return {**super().settings(), "fires": plain(self.fires)}

    def begin(self, sample: Sample) -> dict[Any, Any]:
        """No firings yet, by the rule of the place."""
        return {"layout": Layout(), "firings": self._firings(sample)}

    def _firings(self, sample: Sample) -> Firings:
        if callable(self.fires):
            return Firings(rule=callable_name(self.fires))
        rest = rest_of(sample) if self.fires is None else Rest(float(self.fires))
        return Firings(rule=tuple(rest))

    def take(self, kept: Any, sample: Sample) -> None:
        """Counts in which samples the units fire."""
        value, rest = with_channel(sample.value), Rest()
        if callable(self.fires):
            value, nans = with_channel(self._asked(sample.value)), int(sample.value.isnan().sum())
        else:
            rest, nans = Rest(*kept["firings"].rule), 0
        units = self.by_channel(kept["layout"], sample, value)
        fired, unknown = rest.fired(units, [*range(2, units.ndim)])
        kept["firings"].add(fired)
        kept["firings"].nans += nans + unknown

    def figures(self, kept: Any) -> dict[Any, Any]:
        """The counts."""
        firings = kept["firings"]
        fired = firings.result()
        dead = int((fired == 0).sum()) if firings.count else 0
        counts = {"samples": firings.count, "nans": firings.nans, **kept["layout"].figures()}
        return {"dead": dead, "total": len(fired), "fired": fired, **counts}

    def _asked(self, value: Tensor) -> Tensor:
        """Where the function says that units fire; NaN never does."""
        assert callable(self.fires)
        fired = self.fires(value)
        if not isinstance(fired, Tensor) or fired.dtype is not torch.bool or fired.shape != value.shape:
            found = f"{tuple(fired.shape)} of {fired.dtype}" if isinstance(fired, Tensor) else type(fired).__name__
            raise BadArgumentError(f"fires(value) returns bools of the shape {tuple(value.shape)}, not {found}")
        return fired & ~value.isnan()


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and not math.isnan(value)


class Firings(ChannelTally):
    """In how many samples each unit fired.

    >>> Firings(rule=(0.0, 0.0, False)).add([[True, False], [True, True]]).result()
    tensor([2, 1])

    Args:
        rule: what fires; counts of different rules are not put together.
    """

    SETTINGS = ("rule",)

    def __init__(self, *, rule: Any, nan: str = "omit") -> None:
        super().__init__(nan=nan)
        self.rule = rule


class Rest(NamedTuple):
    """Where the values of a silent unit are.

    Attributes:
        value: the value of a unit that does not fire.
        tolerance: how far from there a value still counts as silent.
        both: whether a unit fires on both sides of it; else only above.
    """

    value: float = 0.0
    tolerance: float = 0.0
    both: bool = False

    def fired(self, units: Tensor, dims: list[int]) -> tuple[Tensor, int]:
        """Whether a unit fires anywhere along the other dimensions, and how many values are NaN, which never fire.

        Args:
            units: the values.
            dims: the dimensions that are neither the sample nor the unit.
        """
        high, nans = highest(units, dims)
        fired = high - self.value > self.tolerance
        if self.both:
            fired |= self.value - lowest(units, dims) > self.tolerance
        return fired, nans


ABOVE_ZERO = Rest()
_SMALL = 1e-3  # where the slope of sigmoid and softplus is as small
_SHARE = 1e-6  # of softmax, whose values get smaller the more there are
_TWO_SIDED = Rest(0.0, _SMALL, both=True)
_EXACT_ZERO = Rest(0.0, 0.0, both=True)

_OF_CLASS: dict[type[nn.Module], Rest] = {
    nn.Sigmoid: Rest(0.0, _SMALL),
    nn.Softplus: Rest(0.0, _SMALL),
    nn.Softmax: Rest(0.0, _SHARE),
    nn.Softmax2d: Rest(0.0, _SHARE),
    nn.Softmin: Rest(0.0, _SHARE),
    nn.LogSigmoid: Rest(math.log(_SMALL)),
    nn.LogSoftmax: Rest(math.log(_SHARE)),
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


def rest_of(sample: Sample) -> Rest:
    """Where the units of a place rest, by the class of the module whose output it is, or the name of an operation.

    What is no known activation function fires above zero.
    """
    if sample.output:
        return _of_module(sample.module)
    name = re.sub(r"\[.*$", "", sample.path).rpartition(".")[2]
    return _OF_OPERATION.get(re.sub(r"_?(_\d+)?$", "", name), ABOVE_ZERO)


def _of_module(module: nn.Module) -> Rest:
    if isinstance(module, nn.Threshold):
        above = module.threshold >= module.value
        return Rest(float(module.threshold)) if above else Rest(float(module.value), both=True)
    if isinstance(module, nn.Hardtanh):  # nn.ReLU6 is one, too
        return Rest(float(module.min_val)) if module.min_val >= 0 else _TWO_SIDED
    return next((rest for kind, rest in _OF_CLASS.items() if isinstance(module, kind)), ABOVE_ZERO)
