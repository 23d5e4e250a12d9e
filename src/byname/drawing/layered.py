"""Layered: one level of boxes in rows, each box below its sources, with few crossing lines.

This is the method of Sugiyama, Tagawa and Toda (1981): find the rows, then the order in each row, then the columns. A
line that passes through rows gets a position in each of them, so that no line crosses a box.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from byname.drawing.straight import Pull, columns, straighten

Point = tuple[float, float]

ROW_GAP, LABEL_GAP, RIM_GAP = 14.0, 11.0, 6.0
"""The gap between rows, the addition if shapes are written there, and the gap next to the rim of a box."""
BOX_GAP, LINE_GAP = 22.0, 13.0
SLOPE = 0.1
"""The additional gap between two rows for each unit that a line between them goes sideways, up to `MOST_SLOPE`."""
MOST_SLOPE = 36.0


@dataclass(frozen=True, slots=True)
class Node:
    """A box, or a point without size at which lines enter or leave the level.

    Attributes:
        width, height: the size of the box.
        shade: the size of its shadow to the right and downwards.
        label: the width of the text under it, right of its axis; left of it if a line leaves to the right.
        pin: "top" for a point at which lines enter, "bottom" for one at which they leave; "" for a box.
    """

    width: float
    height: float
    shade: float = 0.0
    label: float = 0.0
    pin: str = ""


@dataclass(frozen=True, slots=True)
class LayerEdge:
    """A line between nodes.

    Attributes:
        source, target: the numbers of the nodes.
        start, end: the distances from their axes at which the line begins and ends.
        weak: whether it pulls its ends less than other lines do.
    """

    source: int
    target: int
    start: float = 0.0
    end: float = 0.0
    weak: bool = False


@dataclass(slots=True)
class Level:
    """The layout of a level: the upper left corners of the nodes, the whole size, and the points of each edge."""

    corners: list[Point]
    width: float
    height: float
    routes: list[list[Point]]


@dataclass(slots=True)
class _Draft:
    """The nodes of a level, and the positions of long edges in the rows that they pass.

    Attributes:
        row: the row of each node and position.
        extents: the distances from its axis to its left and right end.
        gaps: the gap that it needs on both sides.
        up, down: the pulls of its neighbours above and below.
        passes: the numbers of the positions, by source, start and row.
        connected: the pairs that pull each other already.
    """

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

    def place_in(self, row: int, source: int, start: float) -> int:
        """Return the position at which the lines of one source pass a row; add it if it is new."""
        key = (source, start, row)
        if key not in self.passes:
            self.passes[key] = len(self.row)
            self.row.append(row)
            self.extents.append((0.0, 0.0))
            self.gaps.append(LINE_GAP)
            self.up.append([])
            self.down.append([])
        return self.passes[key]


def arrange(nodes: Sequence[Node], edges: Sequence[LayerEdge]) -> Level:
    """Return the layout of the nodes of a level and of the lines between them.

    >>> level = arrange([Node(40, 20), Node(60, 20)], [LayerEdge(0, 1)])
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
    xs = columns(rows, draft.extents, draft.gaps)
    straighten(rows, draft.extents, draft.up, draft.down, draft.gaps, xs)
    left = min((x - extent[0] for x, extent in zip(xs, draft.extents, strict=True)), default=0.0)
    right = max((x + extent[1] for x, extent in zip(xs, draft.extents, strict=True)), default=0.0)
    xs = [x - left for x in xs]
    bands = _bands(nodes, draft, rows, xs)
    corners = [(x - node.width / 2, _top(node, bands[row])) for node, x, row in zip(nodes, xs, draft.row, strict=False)]
    routes = [_route(nodes, edge, way, xs, bands, draft.row, corners) for edge, way in zip(edges, ways, strict=True)]
    return Level(corners, right - left, bands[-1][1] if bands else 0.0, routes)


def _draft(nodes: Sequence[Node], edges: Sequence[LayerEdge]) -> tuple[_Draft, list[list[int]]]:
    """Return the draft with rows and neighbours, and for each edge the positions that it passes."""
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


def _connect(draft: _Draft, edge: LayerEdge, way: list[int]) -> None:
    """Make the ends of an edge and the positions that it passes pull each other; long lines pull strongly."""
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
    """Return the upper and the lower end of each row."""
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
    edge: LayerEdge,
    way: list[int],
    xs: list[float],
    bands: list[Point],
    row: list[int],
    corners: list[Point],
) -> list[Point]:
    """Return the points of a line: it goes straight down through each row, and sideways between rows."""
    start, end = xs[edge.source] + edge.start, xs[edge.target] + edge.end
    points = [(start, corners[edge.source][1] + nodes[edge.source].height)]
    if row[edge.target] > row[edge.source]:
        points.append((start, bands[row[edge.source]][1]))
        for place in way:
            points += [(xs[place], band) for band in bands[row[place]]]
        points.append((end, bands[row[edge.target]][0]))
    points.append((end, corners[edge.target][1]))
    return list(dict.fromkeys(points))


def ranks(count: int, edges: Sequence[tuple[int, int]], top: set[int], bottom: set[int]) -> list[int]:
    """Return the row of each node, from 0.

    The row is the length of the longest path from above. Then nodes with fewer neighbours above than below, or with
    none above, move down towards those below.

    Args:
        count: the number of nodes.
        edges: pairs (from, to); a cycle is cut at its node with the lowest number.
        top, bottom: the nodes that are above or below all others.
    """
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        above[target].append(source)
        below[source].append(target)
    order = _sorted(count, above, below)
    place = {node: position for position, node in enumerate(order)}
    row = [0] * count
    for node in order:
        if node not in top:
            earlier = [row[one] for one in above[node] if place[one] < place[node]]
            row[node] = max([1 if top else 0, *(one + 1 for one in earlier)])
    for node in reversed(order):
        later = [row[one] for one in below[node] if place[one] > place[node]]
        if later and node not in top and len(above[node]) < max(1, len(later)):
            row[node] = max(row[node], min(later) - 1)
    last = max(row, default=0)
    for node in bottom:
        row[node] = last + (len(bottom) < count)
    return row


def _sorted(count: int, above: list[list[int]], below: list[list[int]]) -> list[int]:
    """Return the nodes in an order in which edges go forward, except in cycles."""
    missing = [len(sources) for sources in above]
    ready = [node for node in range(count) if not missing[node]]
    order: list[int] = []
    done = [False] * count
    stuck = 0
    while len(order) < count:
        while ready:
            node = ready.pop(0)
            if not done[node]:
                done[node] = True
                order.append(node)
                for one in below[node]:
                    missing[one] -= 1
                    if missing[one] == 0:
                        ready.append(one)
        while stuck < count and done[stuck]:
            stuck += 1
        if stuck < count:
            ready.append(stuck)
    return order


SWEEPS = 10
LARGE = 2000
"""A level with more edges than this is ordered with fewer sweeps."""

Neighbours = Sequence[Sequence[int]]


def order_rows(rows: list[list[int]], above: Neighbours, below: Neighbours) -> list[list[int]]:
    """Return the rows with their nodes in an order with fewer crossings.

    Sweeps downwards and upwards sort each row by barycentres; the best result of all sweeps is returned.

    Args:
        rows: the nodes of each row.
        above, below: for each node, its neighbours above and below.
    """
    best, fewest = [list(row) for row in rows], crossings(rows, below)
    many = sum(map(len, below)) > LARGE
    rows = [list(row) for row in rows]
    for sweep in range(2 if many else SWEEPS):
        if not fewest:
            break
        if sweep % 2 == 0:
            for upper, lower in itertools.pairwise(rows):
                _sort(lower, upper, above)
        else:
            for upper, lower in zip(rows[-2::-1], rows[:0:-1], strict=False):
                _sort(upper, lower, below)
        count = crossings(rows, below)
        if count < fewest:
            best, fewest = [list(row) for row in rows], count
    return best


def _sort(row: list[int], fixed: list[int], neighbours: Neighbours) -> None:
    """Sort a row by the mean position of each node's neighbours in the fixed row; nodes without any stay in place."""
    place = {node: position for position, node in enumerate(fixed)}
    wish: dict[int, float] = {}
    for position, node in enumerate(row):
        places = [place[one] for one in neighbours[node] if one in place]
        wish[node] = sum(places) / len(places) if places else position * len(fixed) / max(1, len(row))
    row.sort(key=wish.__getitem__)


def crossings(rows: Sequence[Sequence[int]], below: Neighbours) -> int:
    """Return the number of pairs of edges that cross between neighbouring rows."""
    total = 0
    for upper, lower in itertools.pairwise(rows):
        place = {node: position for position, node in enumerate(lower)}
        passed: list[int] = []
        for node in upper:
            targets = sorted(place[one] for one in below[node] if one in place)
            total += sum(len(passed) - bisect_right(passed, target) for target in targets)
            for target in targets:
                insort(passed, target)
    return total
