"""Nested boxes: the layout of boxes inside boxes, and the sizes of the texts in them.

The layout goes from the inside outwards: each open box is laid out as one level, and is then a single node of the level
around it. A line leaves a box through its lower side and enters through its upper side. Lines from one source share
their path.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass, field

from byname.drawing.layered import LayerEdge, Level, Node, Point, arrange
from byname.drawing.plan import DrawnItem, Plan
from byname.drawing.view import View, Wires
from byname.drawing.words import shape_text, subtitle, text_width, title

End = tuple[str, int]
"""A node of a level: ("box", item); ("in", source) or ("out", source) is the point where its lines cross the rim."""

Segment = tuple[int, End, End, int]
"""A piece of a line: the box in which it lies, its two ends, and the item at which the whole line begins."""


@dataclass(frozen=True, slots=True)
class Placed:
    """The upper left corner and the size of the box of an item."""

    x: float
    y: float
    width: float
    height: float


@dataclass(slots=True)
class Nest:
    """A layout: the positions of all boxes by item, the points of all links, and the texts of the boxes by item."""

    places: dict[int, Placed]
    routes: list[list[Point]]
    measures: dict[int, Measure]


def nest(view: View) -> Nest:
    """Return the layout of a view."""
    return _Nester(view).nest()


@dataclass(slots=True)
class _Level:
    """One open box while it is laid out: the numbers of its nodes and edges, and the layout of its contents."""

    ends: dict[End, int] = field(default_factory=dict)
    edges: dict[tuple[End, End, int], int] = field(default_factory=dict)
    drawn: Level | None = None


class _Nester:
    def __init__(self, view: View) -> None:
        self.view = view
        self.plan = view.plan
        sources = {link.source for link in view.links}
        self.measures = {
            number: measure(self.plan, self.plan.items[number], number in sources and self.labelled(number))
            for number in view.shown
        }
        self.levels: defaultdict[int, _Level] = defaultdict(_Level)
        self.sizes: dict[int, Point] = {}
        self.shift: dict[int, Point] = {}

    def labelled(self, number: int) -> bool:
        return self.plan.items[number].kind not in ("input", "parameter", "constant", "output")

    def nest(self) -> Nest:
        for number in self.view.shown:
            level = self.levels[number]
            for child in self.view.children(number):
                level.ends.setdefault(("box", child), len(level.ends))
        ways = [self.way(link) for link in self.view.links]
        for number in reversed(self.view.shown):
            self.lay_out(number)
        places = self.places()
        return Nest(places, [self.route(way, places) for way in ways], self.measures)

    def way(self, link: Wires) -> list[Segment]:
        """Return the pieces of a link: out of the boxes around its source, across, and into those around its target."""
        up, down = list(self.plan.above(link.source)), list(self.plan.above(link.target))
        shared = set(up) & set(down)
        up, down = [one for one in up if one not in shared], [one for one in down if one not in shared]
        rim = self.plan.items[up[-1]].parent
        pieces = []
        for inner, outer in itertools.pairwise(up):
            start: End = ("out", link.source) if inner != link.source else ("box", inner)
            pieces.append(self.piece(outer, self.outward(inner, start), ("out", link.source), link.source))
        pieces.append(self.piece(rim, ("box", up[-1]), ("box", down[-1]), link.source))
        for outer, inner in zip(down[::-1], down[-2::-1], strict=False):
            pieces.append(self.piece(outer, ("in", link.source), ("box", inner), link.source))
        return pieces

    def outward(self, inner: int, start: End) -> End:
        """Return the end at which a line begins in the box around: for a line that has left a box, that box."""
        return ("box", inner) if start[0] == "out" else start

    def piece(self, box: int, start: End, end: End, source: int) -> Segment:
        level = self.levels[box]
        for one in (start, end):
            level.ends.setdefault(one, len(level.ends))
        level.edges.setdefault((start, end, source), len(level.edges))
        return box, start, end, source

    def lay_out(self, number: int) -> None:
        """Set the size of a box, and for an open box the layout of its contents."""
        measured = self.measures[number]
        if number not in self.view.open:
            self.sizes[number] = measured.width, measured.height
            return
        level = self.levels[number]
        edges = [
            LayerEdge(
                source=level.ends[start],
                target=level.ends[end],
                start=self.aside(start, "out", source),
                end=self.aside(end, "in", source),
                weak=self.plan.items[source].kind in ("parameter", "constant"),
            )
            for start, end, source in level.edges
        ]
        drawn = level.drawn = arrange([self.node(end) for end in level.ends], edges)
        page = number == 0
        width = max(drawn.width + 2 * PADDING, 0.0 if page else measured.header)
        above, below = (MARGIN, MARGIN) if page else (HEADER + PADDING / 2, self.lower(level))
        self.shift[number] = (width - drawn.width) / 2, above
        self.sizes[number] = width, drawn.height + above + below

    def lower(self, level: _Level) -> float:
        """Return the room below the contents of a box; less if lines leave it."""
        return 2.0 if any(kind == "out" for kind, _ in level.ends) else PADDING

    def node(self, end: End) -> Node:
        kind, number = end
        if kind != "box":
            return Node(0.0, 0.0, pin="top" if kind == "in" else "bottom")
        measured = self.measures[number]
        is_open = number in self.view.open
        return Node(*self.sizes[number], shade=measured.shade, label=0.0 if is_open else measured.label)

    def aside(self, end: End, side: str, source: int) -> float:
        """Return the distance from the axis of a box at which a line of this source crosses its rim."""
        kind, number = end
        if kind != "box" or number not in self.view.open or (side, source) not in self.levels[number].ends:
            return 0.0
        return self.port(number, (side, source)) - self.sizes[number][0] / 2

    def port(self, number: int, end: End) -> float:
        """Return the x, within a box, at which a line crosses its rim."""
        level = self.levels[number]
        assert level.drawn is not None
        return self.shift[number][0] + level.drawn.corners[level.ends[end]][0]

    def places(self) -> dict[int, Placed]:
        """Return the position of each box in the picture."""
        places = {0: Placed(0.0, 0.0, *self.sizes[0])}
        for number in self.view.shown:
            level = self.levels[number]
            if level.drawn is None:
                continue
            x, y = self.inside(places[number], number)
            for (kind, child), node in level.ends.items():
                if kind == "box":
                    corner = level.drawn.corners[node]
                    places[child] = Placed(x + corner[0], y + corner[1], *self.sizes[child])
        return places

    def inside(self, place: Placed, number: int) -> Point:
        return place.x + self.shift[number][0], place.y + self.shift[number][1]

    def route(self, way: list[Segment], places: dict[int, Placed]) -> list[Point]:
        """Return the points of a whole line: those of its pieces, one after the other."""
        points: list[Point] = []
        for box, start, end, source in way:
            level = self.levels[box]
            assert level.drawn is not None
            x, y = self.inside(places[box], box)
            route = level.drawn.routes[level.edges[start, end, source]]
            points += [(x + across, y + down) for across, down in route]
        return _corners([(round(across, 1), round(down, 1)) for across, down in points])


def _corners(points: list[Point]) -> list[Point]:
    """Return the points of a line without those inside its vertical parts."""
    kept: list[Point] = []
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


@dataclass(frozen=True, slots=True)
class Measure:
    """The texts of a box and their sizes.

    Attributes:
        title, subtitle: the first and the second line.
        width, height: the size of the box if it is closed.
        header: the width of its title if it is open.
        label: the width of the text under it.
        shade: the size of its shadow.
    """

    title: str
    subtitle: str
    width: float
    height: float
    header: float
    label: float
    shade: float


def measure(plan: Plan, item: DrawnItem, labelled: bool) -> Measure:
    """Return the texts and sizes of an item; if `labelled`, the shape of its output is written under it."""
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


GAP = 8.0


def outline(view: View) -> Nest:
    """Return the layout of a view without links: each box contains a column of boxes of the same width."""
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
