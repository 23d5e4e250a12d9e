"""How long does it take to analyse values, against the least that PyTorch takes to look at them?"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from benchmarks.analysers import analysers
from benchmarks.quantiles import quantiles
from benchmarks.timing import Row, Variant, interleaved, small_heap, timed
from byname.analyse import Mean, Moments, Statistic, Variance

__all__ = ["analysing"]

_MILLI = 1e-3


def analysing() -> list[Row]:
    """Moments of an activation of 32 x 256 x 16 x 16 float32, the sketch of quantiles, and steps with analysers."""
    return [*_activation(), *quantiles(), *analysers()]


def _activation() -> list[Row]:
    """By one and by two threads."""
    activation = torch.randn(32, 256, 16, 16)
    rows = []
    for threads in (1, 2):
        with _threads(threads), small_heap():
            rows += _moments(activation, "each channel", f"{threads} thread{'s'[: threads - 1]}", (0, 2, 3), 1)
            rows += _moments(activation, "each feature", f"{threads} thread{'s'[: threads - 1]}", (0,), None)
    return rows


def _moments(x: Tensor, what: str, threads: str, over: tuple[int, ...], channel: int | None) -> list[Row]:
    """Seconds are those of all threads together: a thread that waits for another counts."""
    statistics: dict[str, tuple[Statistic, float | None]] = {
        "variance": (Variance(channel=channel), 2.0),
        "moments to the fourth": (Moments(channel=channel), 2.0),
    }
    if channel is None:
        statistics["mean"] = (Mean(), None)
    variants: dict[str, Variant] = {
        "floor": _timed(x, lambda given: torch.var_mean(given, over)),
        "again": _timed(x, lambda given: torch.var_mean(given, over)),
        **{name: _timed(x, statistic.add) for name, (statistic, _) in statistics.items()},
    }
    took = interleaved(variants, rounds=15)
    title = f"{what}, {threads}"
    return [
        Row(f"{title}: torch.var_mean", took.each("floor", 1, _MILLI), "ms"),
        Row(f"{title}: again (A/A)", took.ratio("again", "floor"), "x"),
        *(Row(f"{title}: {name}", took.ratio(name, "floor"), "x", limit) for name, (_, limit) in statistics.items()),
    ]


def _timed(x: Tensor, call: Callable[[Tensor], object]) -> Variant:
    return timed(lambda: (x, None), call)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)
