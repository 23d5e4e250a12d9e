"""How do a view and its places make a picture? Items become boxes, links become lines; nothing of the model is kept."""

from __future__ import annotations

from itertools import chain

from byname.drawing.measure import MARGIN
from byname.drawing.nested_boxes import Nest, nest
from byname.drawing.outline import outline
from byname.drawing.scene import Box, Line, Scene
from byname.drawing.view import View
from byname.drawing.words import repeated, tooltip

__all__ = ["compose"]


def compose(view: View, title: str) -> Scene:
    """The picture of a view."""
    nested = nest(view) if view.plan.flowing else outline(view)
    shown = [number for number in view.shown if number]
    numbers = {number: place for place, number in enumerate(shown)}
    boxes = tuple(_box(view, nested, number, numbers) for number in shown)
    lines = tuple(
        Line(
            source=numbers[link.source],
            target=numbers[link.target],
            shapes=link.shapes,
            via=tuple(dict.fromkeys(chain.from_iterable(wire.via for wire in link.wires))),
            repeated=", ".join(repeated(view.plan, link)),
            points=tuple(points),
        )
        for link, points in zip(view.links, nested.routes, strict=False)
    )
    page = nested.places[0]
    return Scene(title, boxes, lines, tuple(view.plan.notes), round(page.width + MARGIN / 2, 1), round(page.height, 1))


def _box(view: View, nested: Nest, number: int, numbers: dict[int, int]) -> Box:
    item, place, texts = view.plan.items[number], nested.places[number], nested.measures[number]
    return Box(
        number=numbers[number],
        parent=numbers.get(item.parent),
        kind=item.kind,
        path=item.path,
        operation=item.operation,
        title=texts.title,
        subtitle=texts.subtitle,
        tooltip=tooltip(view.plan, item),
        shapes=item.shapes,
        calls=tuple(sorted(view.stands_for[number])),
        repeats=len(item.run.groups) if item.run else 1,
        marks=tuple(item.marks),
        open=number in view.open,
        x=round(place.x, 1),
        y=round(place.y, 1),
        width=round(place.width, 1),
        height=round(place.height, 1),
    )
