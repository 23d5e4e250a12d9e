"""Axes: where byname's plots are drawn, their colours, and their frame."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from byname.extras import needs
from byname.source.tracebacks import running_shell

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, LINES = "#24292f", "#6e7781", "#d8dee4"
FILL, EDGE = "#a8c7e6", "#1f5f99"
CURVE = EDGE
COLORMAP = "viridis"


def axes_of_size(axes: Axes | None, width: float, height: float) -> Axes:
    """Return the axes given, or those of a new figure, in inches, which is pyplot's if the program uses that."""
    with needs("plot()", "matplotlib"):
        from matplotlib.figure import Figure as OfNobody
    if axes is not None:
        return axes
    make: Any = OfNobody
    # pyplot stays out where the user sees no figures of it: it chooses a window system, and keeps every figure
    if "matplotlib.pyplot" in sys.modules or running_shell() is not None:
        with needs("plot()", "matplotlib"):
            from matplotlib import pyplot
        make = pyplot.figure
    figure: Figure = make(figsize=(width, min(height, 60.0)), layout="constrained", dpi=120)
    return figure.add_subplot()


def colours(count: int) -> list[Any]:
    """Return colours for a number of curves, in their order from dark to light; none is too light for white paper."""
    with needs("plot()", "matplotlib"):
        from matplotlib import colormaps
    return [colormaps[COLORMAP](0.75 * number / max(count - 1, 1)) for number in range(count)]


def style_axes(axes: Axes) -> None:
    """Hide every spine but the bottom one, and grey the tick labels."""
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(LINES)
    axes.tick_params(colors=GREY, labelsize=8.5, which="both")


def legend(axes: Axes, count: int) -> None:
    """Draw a legend at the right; of more than 24 curves it names 24, evenly spread."""
    handles, labels = axes.get_legend_handles_labels()
    if count > 24:
        kept = sorted({round(number * (count - 1) / 23) for number in range(24)})
        handles, labels = [handles[number] for number in kept], [labels[number] for number in kept]
    axes.legend(
        handles, labels, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False, fontsize=7, labelcolor=INK
    )
