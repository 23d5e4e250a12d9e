"""Plots: figures of many places as bars, boxes, curves or a heat map, which stay readable with a hundred places."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from byname.analyse.tables import ResultLeaf, keys_of, plain_number, result_leaves, single
from byname.axes import COLORMAP, EDGE, FILL, GREY, INK, LINES, axes_of_size, colours, legend, style_axes
from byname.errors import BadArgumentError
from byname.table import closest
from byname.text import shortened

if TYPE_CHECKING:
    from matplotlib.axes import Axes


SPECTRA = ("eigenvalues", "singular_values", "spectrum")
"""Figures whose values come in order of size."""


def plotted_figures(figures: Mapping[str, Mapping[Any, Any]], name: str, figure: str | None, axes: Axes | None) -> Axes:
    leaves = _chosen([*result_leaves(figures)], name, figure)
    figure = leaves[0].figure
    if any(isinstance(leaf.value, Mapping) for leaf in leaves):
        drawn = _matrix(axes, leaves)
    elif all(single(leaf.value) for leaf in leaves):
        drawn = _numbers(axes, leaves)
    else:
        drawn = _tensors(axes, leaves)
    drawn.set_title(f"{name}: {figure}", loc="left")
    return drawn


def _chosen(leaves: list[ResultLeaf], name: str, figure: str | None) -> list[ResultLeaf]:
    drawable = [leaf for leaf in leaves if _has_numbers(leaf.value)]
    known = [*dict.fromkeys(leaf.figure for leaf in drawable)]
    if not known:
        raise BadArgumentError(f"these results of {name} have no numbers to draw")
    if figure is not None and figure not in known:
        raise BadArgumentError(f"{name} has no figure {figure!r} to draw; there is {closest(str(figure), known)}")
    return [leaf for leaf in drawable if leaf.figure == (known[0] if figure is None else figure)]


def _has_numbers(value: Any) -> bool:
    if isinstance(value, Mapping):
        return bool(value) and all(single(one) for one in value.values())
    return single(value) or (isinstance(value, Tensor) and not value.is_complex())


def _matrix(axes: Axes | None, leaves: Sequence[ResultLeaf]) -> Axes:
    """Draw one row for each place, and one column for each key."""
    keys = keys_of(leaves, [leaf.path for leaf in leaves])
    rows = {
        _label(leaf): [plain_number(leaf.value.get(key)) if isinstance(leaf.value, Mapping) else None for key in keys]
        for leaf in leaves
    }
    return draw_heat_map(axes, rows, [str(key) for key in keys], of=leaves[0].figure)


def _numbers(axes: Axes | None, leaves: Sequence[ResultLeaf]) -> Axes:
    """Draw one bar for each place; with classes a row for each place and a column for each class."""
    if not any(leaf.labels for leaf in leaves):
        return bars(axes, {leaf.path: float(plain_number(leaf.value)) for leaf in leaves}, of=leaves[0].figure)
    known = {(leaf.path, leaf.labels): plain_number(leaf.value) for leaf in leaves}
    classes = [*dict.fromkeys(leaf.labels for leaf in leaves)]
    rows = {leaf.path: [known.get((leaf.path, labels)) for labels in classes] for leaf in leaves}
    return draw_heat_map(axes, rows, [_words(labels) for labels in classes], of=leaves[0].figure)


def _tensors(axes: Axes | None, leaves: Sequence[ResultLeaf]) -> Axes:
    """Draw one box for each place, or one curve if the values are a spectrum."""
    values = {_label(leaf): torch.as_tensor(leaf.value).detach().double().flatten().tolist() for leaf in leaves}
    draw = curves if leaves[0].figure in SPECTRA else boxes
    return draw(axes, values, of=leaves[0].figure)


def _label(leaf: ResultLeaf) -> str:
    return f"{leaf.path}  {_words(leaf.labels)}" if leaf.labels else leaf.path


def _words(labels: tuple[Any, ...]) -> str:
    return " ".join(map(str, labels))


ROW = 0.2
"""Inches for each place."""
LEAST = 1e-14
"""A spectrum is drawn down to this part of its largest value; what is below is rounding."""
MOST_NUMBERS = 400
"""The most cells of a heat map with numbers in them."""


def bars(axes: Axes | None, values: Mapping[str, float], *, of: str) -> Axes:
    """Draw one bar for each place, the first at the top, with its number behind it."""
    axes = _rows_of(axes, [*values], of)
    known = [value if math.isfinite(value) else 0.0 for value in values.values()]
    drawn = axes.barh(range(len(known)), known, height=0.72, color=FILL, edgecolor=EDGE, linewidth=0.6)
    words = ["not defined" if math.isnan(value) else f"{value:.4g}" for value in values.values()]
    size = _text_size(axes, len(known))
    axes.bar_label(drawn, labels=words, padding=3, fontsize=size, color=GREY)
    axes.axvline(0, color=INK, linewidth=0.8)
    axes.margins(x=0.12)
    return axes


def boxes(axes: Axes | None, values: Mapping[str, Sequence[float]], *, of: str) -> Axes:
    """Draw one box for each place: half of the values in the box, all between the whiskers, a line at the median.

    Drawn by hand: `Axes.boxplot` reads all of rcParams, which chooses a backend and imports pyplot (matplotlib 3.11).
    """
    axes = _rows_of(axes, [*values], of)
    known = {row: [one for one in some if math.isfinite(one)] for row, some in enumerate(values.values())}
    found = {row: np.quantile(some, [0, 0.25, 0.5, 0.75, 1]) for row, some in known.items() if some}
    rows = np.array([*found], float)
    low, first, middle, third, high = np.array([*found.values()]).reshape(-1, 5).T
    axes.hlines(rows, low, high, color=EDGE, linewidth=0.8)
    for end in (low, high):
        axes.vlines(end, rows - 0.15, rows + 0.15, color=EDGE, linewidth=0.8)
    axes.barh(rows, third - first, left=first, height=0.6, color=FILL, edgecolor=EDGE, linewidth=0.6, zorder=2)
    axes.vlines(middle, rows - 0.3, rows + 0.3, color=INK, linewidth=1.4, zorder=3)
    axes.use_sticky_edges = False
    axes.margins(x=0.04)
    return axes


def curves(axes: Axes | None, values: Mapping[str, Sequence[float]], *, of: str) -> Axes:
    """Draw one curve for each place: its values from the largest on, with logarithmic axes."""
    widest = max(len(shortened(label)) for label in values)
    axes = axes_of_size(axes, 6.2 + 0.06 * widest, 4.4)
    for (label, several), colour in zip(values.items(), colours(len(values)), strict=True):
        known = sorted((one for one in several if math.isfinite(one) and one > 0), reverse=True)
        marker = "o" if len(known) < 2 else None
        axes.plot(range(1, len(known) + 1), known, color=colour, linewidth=1.3, marker=marker, label=shortened(label))
    axes.set(xscale="log", yscale="log")
    axes.set_xlabel("rank of the value", color=GREY)
    axes.set_ylabel(of, color=GREY)
    top = max((max(several, default=0) for several in values.values()), default=0)
    if 0 < top < math.inf:
        axes.set_ylim(bottom=max(axes.get_ylim()[0], top * LEAST))
    style_axes(axes)
    axes.grid(color=LINES, linewidth=0.6, which="major")
    legend(axes, len(values))
    return axes


def draw_heat_map(axes: Axes | None, rows: Mapping[str, Sequence[Any]], columns: Sequence[str], *, of: str) -> Axes:
    """Draw one cell for each place and column; missing values stay white."""
    widest = max(len(shortened(label)) for label in rows)
    cell = 0.36 if len(columns) <= 30 else 0.2
    width, height = 1.6 + 0.065 * widest + cell * len(columns), 1.1 + ROW * 1.3 * len(rows)
    axes = axes_of_size(axes, max(width, 4.0), max(height, 2.4))
    grid = np.array([[_finite(one) for one in row] for row in rows.values()])
    low, high = (0.0, 1.0) if of == "cka" else (None, None)
    image = axes.imshow(grid, cmap=COLORMAP, aspect="auto", vmin=low, vmax=high, interpolation="nearest")
    _ticks(axes, "y", [*rows])
    _ticks(axes, "x", columns)
    axes.tick_params(length=0, colors=INK)
    for spine in axes.spines.values():
        spine.set_visible(False)
    if grid.size <= MOST_NUMBERS and len(columns) <= 30:
        _numbers_in_cells(axes, grid, image)
    bar = axes.figure.colorbar(image, ax=axes, fraction=0.04, pad=0.02)
    bar.outline.set_visible(False)
    bar.ax.tick_params(labelsize=8, colors=GREY, length=0)
    return axes


def _numbers_in_cells(axes: Axes, grid: Any, image: Any) -> None:
    for (row, column), value in np.ndenumerate(grid):
        if not math.isnan(value):
            shade = image.norm(value)
            colour = INK if shade > 0.6 else "white"
            axes.text(column, row, f"{value:.2g}", ha="center", va="center", fontsize=6.5, color=colour)


def _finite(value: Any) -> float:
    """Return the number, or NaN for a value without a colour."""
    return float(value) if value is not None and math.isfinite(value) else math.nan


def _rows_of(axes: Axes | None, labels: Sequence[str], of: str) -> Axes:
    """Return axes with one row for each label, the first at the top."""
    axes = axes_of_size(axes, 7.2, max(1.1 + ROW * len(labels), 1.8))
    axes.set_ylim(len(labels) - 0.4, -0.6)
    axes.set_xlabel(of, color=GREY)
    style_axes(axes)
    _ticks(axes, "y", labels)
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color=LINES, linewidth=0.6)
    axes.set_axisbelow(True)
    return axes


def _ticks(axes: Axes, axis: str, labels: Sequence[str]) -> None:
    """Write names along an axis, fewer if there is no room for all."""
    size = _text_size(axes, len(labels), axis)
    step = max(1, math.ceil(4.5 / size))
    places = range(0, len(labels), step)
    words = [shortened(labels[place]) for place in places]
    turned = 90 if axis == "x" and max(map(len, words)) > 3 else 0
    setter = axes.set_yticks if axis == "y" else axes.set_xticks
    setter([*places], words, fontsize=max(size, 4.5), color=INK, rotation=turned)


def _text_size(axes: Axes, count: int, axis: str = "y") -> float:
    box = axes.get_window_extent()
    inches = (box.height if axis == "y" else box.width) / axes.figure.dpi
    return min(8.5, 72 * 0.85 * inches / max(count, 1))
