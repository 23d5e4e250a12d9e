"""Where do boxes in boxes stand when nobody knows what goes from where to where? One under the other, as registered."""

from __future__ import annotations

from byname.drawing.measure import HEADER, MARGIN, PADDING, measure
from byname.drawing.nested_boxes import Nest, Placed
from byname.drawing.view import View

__all__ = ["outline"]

GAP = 8.0


def outline(view: View) -> Nest:
    """Places the boxes of a view as a list: all boxes in one box have the same width."""
    measures = {number: measure(view.plan, view.plan.items[number], labelled=False) for number in view.shown}
    sizes: dict[int, tuple[float, float]] = {}
    for number in reversed(view.shown):
        one = measures[number]
        inside = [(sizes[child], measures[child].shade) for child in view.children(number)]
        if inside:
            width = max(*(size[0] + shade for size, shade in inside), one.header - 2 * PADDING)
            height = sum(size[1] + shade for size, shade in inside) + GAP * (len(inside) - 1)
            sizes[number] = width + 2 * PADDING, height + HEADER + PADDING * 1.5
        else:
            sizes[number] = one.width, one.height
    places = {0: Placed(0.0, 0.0, sizes[0][0] + 2 * (MARGIN - PADDING), sizes[0][1])}
    for number in view.shown:
        around = places[number]
        y = around.y + (MARGIN if number == 0 else HEADER + PADDING / 2)
        for child in view.children(number):
            shade = measures[child].shade
            places[child] = Placed(around.x + PADDING, y, around.width - 2 * PADDING - shade, sizes[child][1])
            y += sizes[child][1] + shade + GAP
    return Nest(places, [], measures)
