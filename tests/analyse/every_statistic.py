"""Every statistic: how is it made, what are batches for it, and what comes out in the end?"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from byname import analyse
from byname.analyse import Statistic


def normal(generator, samples, features):
    """Floats of some size; the features differ."""
    values = torch.randn(samples, features, generator=generator, dtype=torch.float64)
    return values * torch.arange(1, features + 1) + 10


def labels(generator, samples, features):
    return torch.randint(0, 9, (samples, features), generator=generator)


def fired(generator, samples, features):
    return torch.rand(samples, features, generator=generator) < 0.4


@dataclass(frozen=True)
class Every:
    """One statistic.

    make: a new one, from keyword arguments that all have defaults.
    inputs: the arguments of `add` but the weights are made by these, from (generator, samples, features).
    figures: the methods that give all that comes out.
    ordered: those of them that tell the order of the samples.
    rtol: how far figures may lie apart when the data comes in other portions; 0 for exact ones.
    other: settings that differ from the default ones.
    any_shape: whether batches may differ in the shape of samples.
    """

    make: Callable[..., Any]
    inputs: tuple[Callable[..., torch.Tensor], ...]
    figures: tuple[str, ...]
    ordered: tuple[str, ...] = ()
    rtol: float = 0.0
    other: tuple[tuple[str, Any], ...] = (("nan", "raise"),)
    any_shape: bool = False

    def batch(self, samples, features=3, seed=0):
        generator = torch.Generator().manual_seed(seed)
        return tuple(make(generator, samples, features) for make in self.inputs)

    def told(self, statistic, leave=()):
        return {name: getattr(statistic, name)() for name in self.figures if name not in leave}


FLAT = 1e-12  # what float64 sums of some tens of numbers may differ by
EDGES = torch.tensor([-5.0, 5.0, 10.0, 12.5, 30.0])
PAIRS = ("iou", "intersection", "union")

EVERY = {
    "Bincount": Every(analyse.Bincount, (labels,), ("result",), other=(("minlength", 20),), any_shape=True),
    "Covariance": Every(
        analyse.Covariance, (normal,), ("mean", "variance", "covariance", "correlation"), rtol=FLAT
    ),
    "CrossCovariance": Every(
        analyse.CrossCovariance, (normal, normal), ("means", "covariance", "correlation"), rtol=FLAT
    ),
    "CrossIoU": Every(analyse.CrossIoU, (fired, fired), PAIRS, other=(("other_threshold", 2.0),)),
    "Extremes": Every(
        analyse.Extremes, (normal,), ("min", "max", "argmin", "argmax"), ordered=("argmin", "argmax")
    ),
    "Factor": Every(analyse.Factor, (normal,), ("singular_values", "eigenvalues"), rtol=FLAT),
    "Histogram": Every(
        partial(analyse.Histogram, edges=EDGES),
        (normal,),
        ("result", "density"),
        other=(("edges", [1.0, 2.0]),),
        any_shape=True,
    ),
    "History": Every(analyse.History, (normal,), ("result",), ordered=("result",), other=(("limit", 10**6),)),
    "IoU": Every(analyse.IoU, (fired,), PAIRS, other=(("threshold", torch.tensor([1.0, 2.0, 3.0])),)),
    "Mean": Every(analyse.Mean, (normal,), ("mean",), rtol=FLAT),
    "Moments": Every(
        analyse.Moments, (normal,), ("mean", "variance", "skewness", "kurtosis"), rtol=FLAT, other=(("channel", 1),)
    ),
    "NormMean": Every(analyse.NormMean, (normal,), ("mean",), rtol=FLAT, other=(("ord", 1),), any_shape=True),
    "Quantile": Every(analyse.Quantile, (normal,), ("median", "result"), other=(("resolution", 64),)),
    "SecondMoment": Every(analyse.SecondMoment, (normal,), ("second_moment",), rtol=FLAT),
    "TopK": Every(
        partial(analyse.TopK, k=3), (normal,), ("topk",), ordered=("topk",), other=(("largest", False),)
    ),
    "Variance": Every(
        analyse.Variance, (normal,), ("mean", "variance", "std"), rtol=FLAT, other=(("channel", 1),)
    ),
}  # fmt: skip


def public_statistics():
    """The names of all that `byname.analyse` has."""
    found = ((name, getattr(analyse, name)) for name in analyse.__all__)
    return {
        name for name, kind in found if isinstance(kind, type) and issubclass(kind, Statistic) and kind is not Statistic
    }


def saved(statistic):
    """The bytes of the file to which a statistic is saved."""
    with TemporaryDirectory() as folder:
        statistic.save(Path(folder) / "saved")
        return (Path(folder) / "saved").read_bytes()


def loaded(statistic):
    """The statistic as its file gives it back."""
    with TemporaryDirectory() as folder:
        statistic.save(Path(folder) / "saved")
        return type(statistic).load(Path(folder) / "saved")


def assert_same(one, other, rtol=0.0):
    """Figures or states are equal, as exactly as they claim to be."""
    assert type(one) is type(other)
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        one, other = one.double().numpy(), other.double().numpy()
        scale = np.abs(other[np.isfinite(other)]).max(initial=0)
        np.testing.assert_allclose(one, other, rtol=rtol, atol=rtol * scale)
    elif isinstance(one, dict):
        assert list(one) == list(other)
        for key in one:
            assert_same(one[key], other[key], rtol)
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for mine, others in zip(one, other):
            assert_same(mine, others, rtol)
    else:
        assert one == other or one != one and other != other
