"""How large is each box, and how wide is the text under it? Sizes in pixels, shared by layout and SVG."""

from __future__ import annotations

from dataclasses import dataclass

from byname.drawing.plan import Item, Plan
from byname.drawing.words import shape_text, subtitle, text_width, title

__all__ = ["HEADER", "MARGIN", "PADDING", "SHADE", "Measure", "measure"]

TITLE, SUBTITLE, LABEL = 12.0, 10.5, 9.5
"""Sizes of the letters."""

HEADER, PADDING, MARGIN, SHADE = 24.0, 14.0, 16.0, 8.0
"""Height of a box's title, room inside it, room around the picture, reach of the shadow of a repeat."""

PILL, CARD = 22.0, 36.0
"""Heights of a box of one line and of one of two lines."""


@dataclass(frozen=True, slots=True)
class Measure:
    """The texts of a box and the room that they take: `width` and `height` of a closed one, `header` of an open one."""

    title: str
    subtitle: str
    width: float
    height: float
    header: float
    label: float
    shade: float


def measure(plan: Plan, item: Item, labelled: bool) -> Measure:
    """The texts and sizes of an item; `labelled` says that the shape of what comes out is written under it."""
    first, second = title(plan, item), subtitle(plan, item)
    wide = text_width(first, TITLE, bold=True), text_width(second, SUBTITLE)
    marks = sum(text_width(mark, LABEL) + 22 for mark in item.marks)
    label = (
        max((text_width(shape_text(shape), LABEL) for shape in item.shapes[:1]), default=0.0) + 8 if labelled else 0.0
    )
    return Measure(
        title=first,
        subtitle=second,
        width=round(max(*wide, marks) + 20, 1),
        height=(CARD if second else PILL) + (16 if item.marks else 0),
        header=round(sum(wide) + marks + 32, 1),
        label=label,
        shade=SHADE if item.run is not None else 0.0,
    )
