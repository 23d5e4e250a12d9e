"""When does a unit fire? That depends on the activation function: on where its values rest, and how near they come."""

from __future__ import annotations

import math
import re
from typing import NamedTuple

from torch import Tensor, nn

from byname.analyse.analysers.ends import highest, lowest
from byname.analyse.analysers.sample import Sample

__all__ = ["Rest", "rest_of"]


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
