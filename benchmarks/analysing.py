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

_MILLI, _MICRO = 1e-3, 1e-6


def analysing() -> list[Row]:
    """Moments of an activation of 32 x 256 x 16 x 16 float32, the sketch of quantiles, and steps with analysers."""
    return [*_activation(), *_small_batches(), *quantiles(), *analysers()]


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


def _small_batches(rounds: int = 15, times: int = 200) -> list[Row]:
    """Variances that are kept over batches of 32 by 64, against the least that keeps them in float64."""
    x = torch.randn(32, 64)

    def by_hand(x: Tensor) -> None:
        """The update of Chan, Golub and LeVeque (1983) for two parts of a sample."""
        count, mean, squares = 0, torch.zeros(64, dtype=torch.float64), torch.zeros(64, dtype=torch.float64)
        for _ in range(times):
            batch = x.double()
            variance, middle = torch.var_mean(batch, 0, correction=0)
            total, difference = count + len(batch), middle - mean
            mean += difference * (len(batch) / total)
            squares += variance * len(batch) + difference**2 * (count * len(batch) / total)
            count = total

    def added(x: Tensor) -> None:
        statistic = Variance()
        for _ in range(times):
            statistic.add(x)

    with small_heap():
        took = interleaved({name: _timed(x, call) for name, call in (("hand", by_hand), ("added", added))}, rounds)
    return [
        Row("batches of 32 by 64: variance by hand in float64", took.each("hand", times, _MICRO), "µs"),
        Row("  Variance", took.ratio("added", "hand"), "×", 1.2),
    ]


def _timed(x: Tensor, call: Callable[[Tensor], object]) -> Variant:
    return timed(lambda: (x, None), call)


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    yield
    torch.set_num_threads(before)
