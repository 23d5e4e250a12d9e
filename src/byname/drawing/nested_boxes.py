"""Nested boxes: the layout of boxes inside boxes, and the sizes of the texts in them.

The layout goes from the inside outwards: each open box is laid out as one level, and is then a single node of the level
around it. A line leaves a box through its lower side and enters through its upper side. Lines from one source share
their path.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field

from byname.drawing.layered import LayerEdge, LayerNode, LevelLayout, Position, arrange
from byname.drawing.plan import DrawnItem, Plan
from byname.drawing.view import View, Wires
from byname.drawing.words import item_title, subtitle, text_width
from byname.text import shape_text

End = tuple[str, int]
"""A node of a level: ("box", item); ("in", source) or ("out", source) is the point where its lines cross the rim."""

_Segment = tuple[int, End, End, int]
"""A piece of a line: the box in which it lies, its two ends, and the item at which the whole line begins."""


@dataclass(slots=True)
class _Level:
    """One open box while it is laid out: the numbers of its nodes and edges, and the layout of its contents."""

    ends: dict[End, int] = field(default_factory=dict)
    edges: dict[tuple[End, End, int], int] = field(default_factory=dict)
    drawn: LevelLayout | None = None


class Nester:
    """Lays out a view: places its items, and returns the points of its links."""

    def __init__(self, view: View) -> None:
        self.view = view
        self.plan, self.items = view.plan, view.plan.items
        sources = {link.source for link in view.links}
        for number in view.shown:
            measure(self.plan, self.items[number], labelled=number in sources)
        self.levels: defaultdict[int, _Level] = defaultdict(_Level)
        self.shift: dict[int, Position] = {}

    def nest(self) -> list[list[Position]]:
        for number in self.view.shown:
            level = self.levels[number]
            for child in self.view.children(number):
                level.ends.setdefault(("box", child), len(level.ends))
        ways = [self.way(link) for link in self.view.links]
        for number in reversed(self.view.shown):
            self.lay_out(number)
        self.place()
        return [self.route(way) for way in ways]

    def way(self, link: Wires) -> list[_Segment]:
        """Return the pieces of a link: out of the boxes around its source, across, and into those around its target."""
        up, down = list(self.plan.above(link.source)), list(self.plan.above(link.target))
        shared = set(up) & set(down)
        up, down = [one for one in up if one not in shared], [one for one in down if one not in shared]
        rim = self.plan.items[up[-1]].parent
        pieces = []
        for inner, outer in itertools.pairwise(up):
            pieces.append(self.piece(outer, ("box", inner), ("out", link.source), link.source))
        pieces.append(self.piece(rim, ("box", up[-1]), ("box", down[-1]), link.source))
        for outer, inner in zip(down[::-1], down[-2::-1], strict=False):
            pieces.append(self.piece(outer, ("in", link.source), ("box", inner), link.source))
        return pieces

    def piece(self, box: int, start: End, end: End, source: int) -> _Segment:
        level = self.levels[box]
        for one in (start, end):
            level.ends.setdefault(one, len(level.ends))
        level.edges.setdefault((start, end, source), len(level.edges))
        return box, start, end, source

    def lay_out(self, number: int) -> None:
        """Set the layout of the contents of an open box, and its size."""
        if number not in self.view.open:
            return
        item, level = self.items[number], self.levels[number]
        edges = [
            LayerEdge(
                source=level.ends[start],
                target=level.ends[end],
                start=self.aside(start, "out", source),
                end=self.aside(end, "in", source),
                weak=self.items[source].kind in ("parameter", "constant"),
            )
            for start, end, source in level.edges
        ]
        drawn = level.drawn = arrange([self.node(end) for end in level.ends], edges)
        page = number == 0
        item.width = max(drawn.width + 2 * PADDING, 0.0 if page else item.header)
        left = any(kind == "out" for kind, _ in level.ends)  # by a line, which needs no room before the rim
        above, below = (MARGIN, MARGIN) if page else (HEADER + PADDING / 2, 2.0 if left else PADDING)
        self.shift[number] = (item.width - drawn.width) / 2, above
        item.height = drawn.height + above + below

    def node(self, end: End) -> LayerNode:
        kind, number = end
        if kind != "box":
            return LayerNode(0.0, 0.0, pin="top" if kind == "in" else "bottom")
        item, is_open = self.items[number], number in self.view.open
        return LayerNode(item.width, item.height, shade=item.shade, label=0.0 if is_open else item.label)

    def aside(self, end: End, side: str, source: int) -> float:
        """Return the distance from the axis of a box at which a line of this source crosses its rim."""
        kind, number = end
        if kind != "box" or number not in self.view.open or (side, source) not in self.levels[number].ends:
            return 0.0
        return self.port(number, (side, source)) - self.items[number].width / 2

    def port(self, number: int, end: End) -> float:
        """Return the x, within a box, at which a line crosses its rim."""
        level = self.levels[number]
        assert level.drawn is not None
        return self.shift[number][0] + level.drawn.corners[level.ends[end]][0]

    def place(self) -> None:
        """Set the position of each box in the picture."""
        for number in self.view.shown:
            level = self.levels[number]
            if level.drawn is None:
                continue
            x, y = self.inside(number)
            for (kind, child), node in level.ends.items():
                if kind == "box":
                    corner = level.drawn.corners[node]
                    self.items[child].x, self.items[child].y = x + corner[0], y + corner[1]

    def inside(self, number: int) -> Position:
        item, (across, down) = self.items[number], self.shift[number]
        return item.x + across, item.y + down

    def route(self, way: list[_Segment]) -> list[Position]:
        """Return the points of a whole line: those of its pieces, one after the other."""
        points: list[Position] = []
        for box, start, end, source in way:
            level = self.levels[box]
            assert level.drawn is not None
            x, y = self.inside(box)
            route = level.drawn.routes[level.edges[start, end, source]]
            points += [(x + across, y + down) for across, down in route]
        return _corners([(round(across, 1), round(down, 1)) for across, down in points])


def _corners(points: list[Position]) -> list[Position]:
    """Return the points of a line without those inside its vertical parts."""
    kept: list[Position] = []
    for point in points:
        while len(kept) > 1 and kept[-2][0] == kept[-1][0] == point[0]:
            kept.pop()
        if not kept or kept[-1] != point:
            kept.append(point)
    return kept


TITLE, SUBTITLE, LABEL = 12.0, 10.5, 9.5
"""Font sizes."""

HEADER, PADDING, MARGIN, SHADE = 24.0, 14.0, 16.0, 8.0
"""The height of an open box's title; the padding of a box; the margin of the picture; the shadow of a repeated box."""

PILL, CARD = 22.0, 36.0
"""The heights of a closed box with one line of text and with two."""


def measure(plan: Plan, item: DrawnItem, labelled: bool) -> None:
    """Set the texts and sizes of an item; if `labelled`, the shape of a call's output is written under it."""
    item.title, item.subtitle = item_title(plan, item), subtitle(plan, item)
    wide = text_width(item.title, TITLE, bold=True), text_width(item.subtitle, SUBTITLE)
    marks = sum(text_width(mark, LABEL) + 22 for mark in item.marks)
    item.width = round(max(*wide, marks) + 20, 1)
    item.height = (CARD if item.subtitle else PILL) + (16 if item.marks else 0)
    item.header = round(sum(wide) + marks + 32, 1)
    item.shade = SHADE if item.run is not None else 0.0
    if labelled and item.kind not in ("input", "parameter", "constant", "output"):
        item.label = max((text_width(shape_text(shape), LABEL) for shape in item.shapes[:1]), default=0.0) + 8


GAP = 8.0


def outline(view: View) -> list[list[Position]]:
    """Lay out a view without links: each box contains a column of boxes of the same width."""
    items = view.plan.items
    for number in reversed(view.shown):
        item = items[number]
        measure(view.plan, item, labelled=False)
        inside = [items[child] for child in view.children(number)]
        if inside:
            width = max(*(one.width + one.shade for one in inside), item.header - 2 * PADDING)
            item.width = width + 2 * PADDING
            height = sum(one.height + one.shade for one in inside) + GAP * (len(inside) - 1)
            item.height = height + HEADER + PADDING * 1.5
    items[0].width += 2 * (MARGIN - PADDING)
    for number in view.shown:
        around = items[number]
        y = around.y + (MARGIN if number == 0 else HEADER + PADDING / 2)
        for child in (items[one] for one in view.children(number)):
            child.x, child.y = around.x + PADDING, y
            child.width = around.width - 2 * PADDING - child.shade
            y += child.height + child.shade + GAP
    return []
