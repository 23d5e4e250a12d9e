"""Where do boxes and lines of one level stand, those that are side by side in one box?

The way of Sugiyama, Tagawa and Toda (1981): rows, then the order in each row, then the columns. A line that passes rows
gets a place in each of them, so that no line crosses a box.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

from byname.drawing.crossing import order_rows
from byname.drawing.lanes import Pull, columns
from byname.drawing.row_ranks import ranks
from byname.drawing.straight import straighten

__all__ = ["Edge", "Level", "Node", "Point", "arrange"]

Point = tuple[float, float]

ROW_GAP, LABEL_GAP, RIM_GAP = 14.0, 11.0, 6.0
"""Between rows, more where shapes are written, and less beside a rim."""
BOX_GAP, LINE_GAP = 22.0, 13.0
SLOPE = 0.1
"""How much further two rows stand apart for each unit that a line between them goes sideways, up to `MOST_SLOPE`."""
MOST_SLOPE = 36.0
MOST_STRAIGHT = 3000
"""Places in a level up to which it is worth the time to take out the last kinks."""


@dataclass(frozen=True, slots=True)
class Node:
    """A box, or with no width and height a point where lines enter ("top") or leave ("bottom") the level.

    Attributes:
        width, height: of the box.
        shade: how far its shadow reaches to the right and downwards.
        label: width of the text under it, right of its axis, or left of it where a line leaves to the right.
        pin: "top", "bottom" or "".
    """

    width: float
    height: float
    shade: float = 0.0
    label: float = 0.0
    pin: str = ""


@dataclass(frozen=True, slots=True)
class Edge:
    """A line between nodes, and how far from their axes it begins and ends. One that is weak gives way to others."""

    source: int
    target: int
    start: float = 0.0
    end: float = 0.0
    weak: bool = False


@dataclass(slots=True)
class Level:
    """Left and upper ends of the boxes, the whole size, and the points of each edge."""

    corners: list[Point]
    width: float
    height: float
    routes: list[list[Point]]


@dataclass(slots=True)
class _Draft:
    """Nodes with the places that long edges take in the rows they pass."""

    row: list[int]
    extents: list[tuple[float, float]]
    gaps: list[float]
    up: list[list[Pull]] = field(default_factory=list)
    down: list[list[Pull]] = field(default_factory=list)
    passes: dict[tuple[int, float, int], int] = field(default_factory=dict)
    connected: set[tuple[int, float, int, float]] = field(default_factory=set)

    def connect(self, upper: int, start: float, lower: int, end: float, weight: float) -> None:
        if (upper, start, lower, end) not in self.connected:
            self.connected.add((upper, start, lower, end))
            self.up[lower].append(Pull(upper, start - end, weight))
            self.down[upper].append(Pull(lower, end - start, weight))

    def lanes(self) -> list[list[int]]:
        """The places of each line that passes rows."""
        found: dict[tuple[int, float], list[int]] = {}
        for (source, start, _), place in self.passes.items():
            found.setdefault((source, start), []).append(place)
        return list(found.values())

    def place_in(self, row: int, source: int, start: float) -> int:
        """Where the lines of one source pass a row."""
        key = (source, start, row)
        if key not in self.passes:
            self.passes[key] = len(self.row)
            self.row.append(row)
            self.extents.append((0.0, 0.0))
            self.gaps.append(LINE_GAP)
            self.up.append([])
            self.down.append([])
        return self.passes[key]


def arrange(nodes: Sequence[Node], edges: Sequence[Edge]) -> Level:
    """Places the nodes of a level and the lines between them.

    >>> level = arrange([Node(40, 20), Node(60, 20)], [Edge(0, 1)])
    >>> level.corners[0][1] < level.corners[1][1]
    True
    """
    draft, ways = _draft(nodes, edges)
    rows: list[list[int]] = [[] for _ in range(max(draft.row, default=0) + 1)]
    for node, row in enumerate(draft.row):
        rows[row].append(node)
    above = [[pull.node for pull in pulls] for pulls in draft.up]
    below = [[pull.node for pull in pulls] for pulls in draft.down]
    rows = order_rows(rows, above, below)
    xs = columns(rows, draft.extents, draft.up, draft.down, draft.gaps, draft.lanes())
    if len(draft.row) <= MOST_STRAIGHT:
        straighten(rows, draft.extents, draft.up, draft.down, draft.gaps, xs)
    left = min((x - extent[0] for x, extent in zip(xs, draft.extents, strict=True)), default=0.0)
    right = max((x + extent[1] for x, extent in zip(xs, draft.extents, strict=True)), default=0.0)
    xs = [x - left for x in xs]
    bands = _bands(nodes, draft, rows, xs)
    corners = [(x - node.width / 2, _top(node, bands[row])) for node, x, row in zip(nodes, xs, draft.row, strict=False)]
    routes = [_route(nodes, edge, way, xs, bands, draft.row, corners) for edge, way in zip(edges, ways, strict=True)]
    return Level(corners, right - left, bands[-1][1] if bands else 0.0, routes)


def _draft(nodes: Sequence[Node], edges: Sequence[Edge]) -> tuple[_Draft, list[list[int]]]:
    """Rows and neighbours, and for each edge the places it passes."""
    tops = {number for number, node in enumerate(nodes) if node.pin == "top"}
    bottoms = {number for number, node in enumerate(nodes) if node.pin == "bottom"}
    pairs = list(dict.fromkeys((edge.source, edge.target) for edge in edges))
    extents = [(max(node.width / 2, node.label), max(node.width / 2 + node.shade, node.label)) for node in nodes]
    gaps = [LINE_GAP if node.pin else BOX_GAP for node in nodes]
    draft = _Draft(ranks(len(nodes), pairs, tops, bottoms), extents, gaps, [[] for _ in nodes], [[] for _ in nodes])
    ways = []
    for edge in edges:
        inner = range(draft.row[edge.source] + 1, draft.row[edge.target])
        way = [draft.place_in(row, edge.source, edge.start) for row in inner]
        ways.append(way)
        _connect(draft, edge, way)
    return draft, ways


def _connect(draft: _Draft, edge: Edge, way: list[int]) -> None:
    """Lets the ends of an edge and the places it passes pull each other: lines that pass rows run straight."""
    if draft.row[edge.target] <= draft.row[edge.source]:
        return
    if not way:
        draft.connect(edge.source, edge.start, edge.target, edge.end, 0.1 if edge.weak else 1.0)
        return
    draft.connect(edge.source, edge.start, way[0], 0.0, 0.15)
    draft.connect(way[-1], 0.0, edge.target, edge.end, 0.15)
    for upper, lower in itertools.pairwise(way):
        draft.connect(upper, 0.0, lower, 0.0, 6.0)


def _bands(nodes: Sequence[Node], draft: _Draft, rows: list[list[int]], xs: list[float]) -> list[Point]:
    """The upper and lower end of each row."""
    bands: list[Point] = []
    y = 0.0
    for row in rows:
        own = [nodes[node] for node in row if node < len(nodes)]
        height = max((node.height + node.shade for node in own), default=0.0)
        bands.append((y, y + height))
        gap = ROW_GAP if own and not all(node.pin for node in own) else RIM_GAP
        gap += LABEL_GAP if any(node.label for node in own) else 0.0
        pulls = [(pull, node) for node in row for pull in draft.down[node]]
        aside = max((abs(xs[pull.node] + pull.shift - xs[node]) for pull, node in pulls), default=0.0)
        y += height + gap + min(MOST_SLOPE, SLOPE * aside)
    return bands


def _top(node: Node, band: Point) -> float:
    if node.pin:
        return band[0] if node.pin == "top" else band[1]
    return (band[0] + band[1] - node.height - node.shade) / 2


def _route(
    nodes: Sequence[Node],
    edge: Edge,
    way: list[int],
    xs: list[float],
    bands: list[Point],
    row: list[int],
    corners: list[Point],
) -> list[Point]:
    """The points of a line: straight down through each row, aside between them."""
    start, end = xs[edge.source] + edge.start, xs[edge.target] + edge.end
    points = [(start, corners[edge.source][1] + nodes[edge.source].height)]
    if row[edge.target] > row[edge.source]:
        points.append((start, bands[row[edge.source]][1]))
        for place in way:
            points += [(xs[place], band) for band in bands[row[place]]]
        points.append((end, bands[row[edge.target]][0]))
    points.append((end, corners[edge.target][1]))
    return list(dict.fromkeys(points))
