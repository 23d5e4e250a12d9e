"""Plot: recorded values over iterations, a line for numbers, and the median with its quantiles for tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from byname.axes import CURVE, GREY, LINES, axes_of_size, calm, colours, legend
from byname.errors import BynameError
from byname.recording.export import as_float
from byname.recording.series_records import SeriesRecords
from byname.table import listed
from byname.text import printable, shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_MOST = 100_000
"""Numbers of a value that quantiles are computed from; every n-th of a larger one."""


def plotted(series: Mapping[str, SeriesRecords], axes: Axes | None) -> Axes:
    """Return the axes, with each series drawn in them; every value is read, one after the other.

    Raises:
        BynameError: there are no numbers to draw.
        NotInstalledError: matplotlib is not installed.
    """
    lines = {printable(path): line for path, one in series.items() if len(line := _line(one))}
    if not lines:
        raise BynameError(f"there are no numbers to draw at {listed(list(map(printable, series)), 4) or 'no place'}")
    axes = axes_of_size(axes, 7.2, 3.6)
    found = [CURVE] if len(lines) == 1 else colours(len(lines))
    for (path, line), colour in zip(lines.items(), found, strict=True):
        _draw(axes, line, colour, shortened(path))
    axes.set_xlabel("iteration", color=GREY)
    calm(axes)
    axes.grid(color=LINES, linewidth=0.6)
    axes.set_axisbelow(True)
    if len(lines) == 1:
        axes.set_title(shortened(next(iter(lines))), loc="left")
    else:
        legend(axes, len(lines))
    return axes


def _draw(axes: Axes, line: np.ndarray[Any, Any], colour: Any, label: str) -> None:
    """Draw the median, and where values have more than one number the bands that hold 50 and 90 % of them."""
    iterations, low, lower, middle, upper, high = line.T
    axes.plot(iterations, middle, color=colour, linewidth=1.3, marker="o" if len(line) < 2 else None, label=label)
    if (high > low).any():
        axes.fill_between(iterations, lower, upper, color=colour, alpha=0.25, linewidth=0)
        axes.fill_between(iterations, low, high, color=colour, alpha=0.12, linewidth=0)


def _line(series: SeriesRecords) -> np.ndarray[Any, Any]:
    """Return the iteration and the quantiles of each value that has numbers; values are finite, NaN are left out."""
    found = [
        (iteration, *_quantiles(value))
        for iteration, value in zip(series.iterations, series.values, strict=True)
        if isinstance(value, Tensor | int | float) and not isinstance(value, bool)
    ]
    return np.array([one for one in found if not math.isnan(one[1])]).reshape(-1, 1 + len(_QUANTILES))


def _quantiles(value: Any) -> list[float]:
    numbers = value.detach() if isinstance(value, Tensor) else torch.tensor(as_float(value), dtype=torch.float64)
    numbers = (numbers.abs() if numbers.is_complex() else numbers).reshape(-1)
    numbers = numbers[:: max(1, numbers.numel() // _MOST)].double()
    numbers = numbers[numbers.isfinite()]
    if not numbers.numel():
        return [math.nan] * len(_QUANTILES)
    return torch.quantile(numbers, torch.tensor(_QUANTILES, dtype=numbers.dtype)).tolist()
