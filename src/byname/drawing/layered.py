"""Layered: one level of boxes in rows, each box below its sources, with few crossing lines.

This is the method of Sugiyama, Tagawa and Toda (1981): find the rows, then the order in each row, then the columns. A
line that passes through rows gets a position in each of them, so that no line crosses a box.
"""

from __future__ import annotations

import itertools
from bisect import bisect, bisect_right, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from math import inf

Position = tuple[float, float]

ROW_GAP, LABEL_GAP, RIM_GAP = 14.0, 11.0, 6.0
"""The gap between rows, the addition if shapes are written there, and the gap next to the rim of a box."""
BOX_GAP, LINE_GAP = 22.0, 13.0
SLOPE = 0.1
"""The additional gap between two rows for each unit that a line between them goes sideways, up to `MOST_SLOPE`."""
MOST_SLOPE = 36.0


@dataclass(frozen=True, slots=True)
class LayerNode:
    """A box, or a `pin`: a point at which lines enter the level at its "top", or leave it at its "bottom".

    Its shadow goes to the right and downwards; its label under it goes to the right, or left if a line leaves there.
    """

    width: float
    height: float
    shade: float = 0.0
    label: float = 0.0
    pin: str = ""


@dataclass(frozen=True, slots=True)
class LayerEdge:
    """A line between nodes, from and to distances from their axes; a weak one pulls its ends less than others."""

    source: int
    target: int
    start: float = 0.0
    end: float = 0.0
    weak: bool = False


@dataclass(slots=True)
class LevelLayout:
    """The layout of a level: the upper left corners of the nodes, the whole size, and the points of each edge."""

    corners: list[Position]
    width: float
    height: float
    routes: list[list[Position]]


@dataclass(frozen=True, slots=True)
class _Pull:
    """The wish of a node for the position of `node` plus `shift`, with the strength `weight`."""

    node: int
    shift: float
    weight: float


class _LayerGraph:
    """The nodes of a level, and further positions: those of long lines in the rows that they pass.

    Attributes:
        row: the row of each node and position.
        extents: the distances from its axis to its left and right end.
        up, down: the pulls of its neighbours above and below.
        ways: for each line the positions that it passes.
    """

    def __init__(self, nodes: Sequence[LayerNode], edges: Sequence[LayerEdge]) -> None:
        self.nodes = nodes
        tops, bottoms = ({at for at, node in enumerate(nodes) if node.pin == pin} for pin in ("top", "bottom"))
        self.row = ranks(len(nodes), [*{(edge.source, edge.target): None for edge in edges}], tops, bottoms)
        self.extents = [
            (max(node.width / 2, node.label), max(node.width / 2 + node.shade, node.label)) for node in nodes
        ]
        self.up: list[list[_Pull]] = [[] for _ in nodes]
        self.down: list[list[_Pull]] = [[] for _ in nodes]
        self._gaps = [LINE_GAP if node.pin else BOX_GAP for node in nodes]
        self._passes: dict[tuple[int, float, int], int] = {}
        self._connected: set[tuple[tuple[int, float], tuple[int, float]]] = set()
        self.ways = [self._way(edge) for edge in edges]

    def _way(self, edge: LayerEdge) -> list[int]:
        """Return the positions that a line passes. They and its ends pull each other; long lines pull strongly."""
        first, last = self.row[edge.source], self.row[edge.target]
        way = [self._place_in(row, edge.source, edge.start) for row in range(first + 1, last)]
        stops = [(edge.source, edge.start), *((place, 0.0) for place in way), (edge.target, edge.end)]
        for at, (upper, lower) in enumerate(itertools.pairwise(stops) if first < last else ()):
            of_end = 0.15 if way else 0.1 if edge.weak else 1.0
            weight = of_end if at in (0, len(way)) else 6.0
            if (upper, lower) not in self._connected:
                self._connected.add((upper, lower))
                self.up[lower[0]].append(_Pull(upper[0], upper[1] - lower[1], weight))
                self.down[upper[0]].append(_Pull(lower[0], lower[1] - upper[1], weight))
        return way

    def _place_in(self, row: int, source: int, start: float) -> int:
        """Return the position at which the lines of one source pass a row; add it if it is new."""
        key = (source, start, row)
        if key not in self._passes:
            self._passes[key] = len(self.row)
            self.row.append(row)
            self.extents.append((0.0, 0.0))
            self._gaps.append(LINE_GAP)
            self.up.append([])
            self.down.append([])
        return self._passes[key]

    def distance(self, left: int, right: int) -> float:
        """Return the distance that neighbours in a row keep."""
        return self.extents[left][1] + self.extents[right][0] + min(self._gaps[left], self._gaps[right])


def arrange(nodes: Sequence[LayerNode], edges: Sequence[LayerEdge]) -> LevelLayout:
    """Return the layout of the nodes of a level and of the lines between them.

    >>> level = arrange([LayerNode(40, 20), LayerNode(60, 20)], [LayerEdge(0, 1)])
    >>> level.corners[0][1] < level.corners[1][1]
    True
    """
    layers = _LayerGraph(nodes, edges)
    rows: list[list[int]] = [[] for _ in range(max(layers.row, default=0) + 1)]
    for node, row in enumerate(layers.row):
        rows[row].append(node)
    above, below = ([[pull.node for pull in pulls] for pulls in some] for some in (layers.up, layers.down))
    rows = order_rows(rows, above, below)
    xs = _straight(layers, rows)
    left = min((x - extent[0] for x, extent in zip(xs, layers.extents, strict=True)), default=0.0)
    right = max((x + extent[1] for x, extent in zip(xs, layers.extents, strict=True)), default=0.0)
    xs = [x - left for x in xs]
    bands = _bands(layers, rows, xs)
    corners = [
        (x - node.width / 2, _top(node, bands[row])) for node, x, row in zip(nodes, xs, layers.row, strict=False)
    ]
    routes = [_route(layers, edge, way, xs, bands, corners) for edge, way in zip(edges, layers.ways, strict=True)]
    return LevelLayout(corners, right - left, bands[-1][1] if bands else 0.0, routes)


def _bands(layers: _LayerGraph, rows: list[list[int]], xs: list[float]) -> list[Position]:
    """Return the upper and the lower end of each row."""
    bands: list[Position] = []
    y = 0.0
    for row in rows:
        own = [layers.nodes[node] for node in row if node < len(layers.nodes)]
        height = max((node.height + node.shade for node in own), default=0.0)
        bands.append((y, y + height))
        gap = ROW_GAP if own and not all(node.pin for node in own) else RIM_GAP
        gap += LABEL_GAP if any(node.label for node in own) else 0.0
        pulls = [(pull, node) for node in row for pull in layers.down[node]]
        aside = max((abs(xs[pull.node] + pull.shift - xs[node]) for pull, node in pulls), default=0.0)
        y += height + gap + min(MOST_SLOPE, SLOPE * aside)
    return bands


def _top(node: LayerNode, band: Position) -> float:
    if node.pin:
        return band[0] if node.pin == "top" else band[1]
    return (band[0] + band[1] - node.height - node.shade) / 2


def _route(
    layers: _LayerGraph,
    edge: LayerEdge,
    way: list[int],
    xs: list[float],
    bands: list[Position],
    corners: list[Position],
) -> list[Position]:
    """Return the points of a line: it goes straight down through each row, and sideways between rows."""
    row, start, end = layers.row, xs[edge.source] + edge.start, xs[edge.target] + edge.end
    points = [(start, corners[edge.source][1] + layers.nodes[edge.source].height)]
    if row[edge.target] > row[edge.source]:
        points.append((start, bands[row[edge.source]][1]))
        for place in way:
            points += [(xs[place], band) for band in bands[row[place]]]
        points.append((end, bands[row[edge.target]][0]))
    points.append((end, corners[edge.target][1]))
    return list(dict.fromkeys(points))


def ranks(count: int, edges: Sequence[tuple[int, int]], top: set[int], bottom: set[int]) -> list[int]:
    """Return the row of each node, from 0; those at the top or bottom are above or below all others.

    The row is the length of the longest path from above; a cycle is cut at its node with the lowest number. Then nodes
    with fewer neighbours above than below, or with none above, move down towards those below.
    """
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        above[target].append(source)
        below[source].append(target)
    order = _sorted(above)
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


def _sorted(above: list[list[int]]) -> list[int]:
    """Return the nodes in an order in which edges go forward, except in cycles."""
    sources = dict(enumerate(map(set, above)))
    while True:
        try:
            return [*TopologicalSorter(sources).static_order()]
        except CycleError as error:
            first = min(error.args[1])
            sources[first] -= {*error.args[1]}


SWEEPS = 10
LARGE = 2000
"""A level with more edges than this is ordered with fewer sweeps."""

Neighbours = Sequence[Sequence[int]]


def order_rows(rows: list[list[int]], above: Neighbours, below: Neighbours) -> list[list[int]]:
    """Return the rows with their nodes in an order with fewer crossings.

    Sweeps downwards and upwards sort each row by barycentres; the best result of all sweeps is returned.
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


PASSES = 10


@dataclass(slots=True)
class _Chain:
    """Nodes that move together.

    Attributes:
        members: each node, with its position relative to the first one.
        x: the position of the first node.
        before, after: the chains to the left and to the right, with the distance that they must keep.
        pulls: the other chains that pull, each with the wished distance from its x and the strength.
    """

    members: list[tuple[int, float]]
    x: float = 0.0
    before: dict[int, float] = field(default_factory=dict)
    after: dict[int, float] = field(default_factory=dict)
    pulls: list[tuple[int, float, float]] = field(default_factory=list)


def _straight(layers: _LayerGraph, rows: list[list[int]]) -> list[float]:
    """Return the x of the axis of each node, so that chains of nodes are straight and stand where others pull them.

    A chain goes from a node to its only neighbour below, or to the middle one of an odd number. The neighbour must have
    the node as its middle one above. Chains do not cross, so they have an order from left to right.
    """
    xs = _side_by_side(layers, rows)
    chains = _chains(layers, rows, xs)
    place = {node: (number, aside) for number, chain in enumerate(chains) for node, aside in chain.members}
    for left, right in (pair for row in rows for pair in itertools.pairwise(row)):
        (one, aside), (other, other_aside) = place[left], place[right]
        need = layers.distance(left, right) + aside - other_aside
        chains[one].after[other] = chains[other].before[one] = max(need, chains[other].before.get(one, -inf))
    order = [*TopologicalSorter({number: chain.before for number, chain in enumerate(chains)}).static_order()]
    for number in order:
        chain = chains[number]
        chain.x = sum(xs[node] - aside for node, aside in chain.members) / len(chain.members)
        chain.x = max([chain.x, *(chains[one].x + need for one, need in chain.before.items())])
        for node, aside in chain.members:
            outer = ((*place[pull.node], pull) for pull in (*layers.up[node], *layers.down[node]))
            chain.pulls += [(at, x + pull.shift - aside, pull.weight) for at, x, pull in outer if at != number]
    for number in range(PASSES):
        for one in reversed(order) if number % 2 == 0 else order:
            _move(chains, chains[one])
    for chain in chains:
        for node, aside in chain.members:
            xs[node] = chain.x + aside
    return xs


def _side_by_side(layers: _LayerGraph, rows: list[list[int]]) -> list[float]:
    """Return the x of each node with the nodes of a row side by side, centred at 0."""
    xs = [0.0] * len(layers.row)
    for row in rows:
        offsets = [0.0, *itertools.accumulate(layers.distance(*pair) for pair in itertools.pairwise(row))]
        middle = sum(offsets) / len(offsets)
        for node, offset in zip(row, offsets, strict=False):
            xs[node] = offset - middle
    return xs


def _move(chains: list[_Chain], chain: _Chain) -> None:
    """Move a chain to the weighted mean of its pulls, as far as its neighbours leave room."""
    weight = sum(pull[2] for pull in chain.pulls)
    if weight:
        wish = sum(strength * (chains[one].x + shift) for one, shift, strength in chain.pulls) / weight
        low = max((chains[one].x + need for one, need in chain.before.items()), default=-inf)
        high = min((chains[one].x - need for one, need in chain.after.items()), default=inf)
        chain.x = min(max(wish, low), max(low, high))


def _chains(layers: _LayerGraph, rows: list[list[int]], xs: list[float]) -> list[_Chain]:
    chain_of: dict[int, _Chain] = {}
    above: list[int] = []
    for row in rows:
        going_on = dict(_going_on(layers, above, row, xs))
        for node in row:
            if (pull := going_on.get(node)) is None:
                chain_of[node] = _Chain([(node, 0.0)])
            else:
                chain_of[node] = chain = chain_of[pull.node]
                chain.members.append((node, chain.members[-1][1] + pull.shift))
        above = row
    return list({id(chain): chain for chain in chain_of.values()}.values())


def _going_on(layers: _LayerGraph, above: list[int], row: list[int], xs: list[float]) -> Iterator[tuple[int, _Pull]]:
    """Yield the nodes that go on a chain of the row above; of two that would cross, the stronger or left one."""
    place_above, place = {node: at for at, node in enumerate(above)}, {node: at for at, node in enumerate(row)}
    wishes = [(node, pull) for node in row if (pull := _middle(layers.up[node], xs)) and pull.node in place_above]
    back = {pull.node: _middle(layers.down[pull.node], xs) for _, pull in wishes}
    mutual = [(node, pull) for node, pull in wishes if (other := back[pull.node]) and other.node == node]
    taken: list[tuple[int, int]] = []
    for node, pull in sorted(mutual, key=lambda one: -one[1].weight):
        pair = place[node], place_above[pull.node]
        at = bisect(taken, pair)
        if (at == 0 or taken[at - 1][1] < pair[1]) and (at == len(taken) or pair[1] < taken[at][1]):
            taken.insert(at, pair)
            yield node, pull


def _middle(pulls: list[_Pull], xs: list[float]) -> _Pull | None:
    """Return the middle one of the strongest pulls; None if their number is even."""
    strongest = max((pull.weight for pull in pulls), default=0.0)
    among = sorted((pull for pull in pulls if pull.weight == strongest), key=lambda pull: xs[pull.node] + pull.shift)
    return among[len(among) // 2] if len(among) % 2 else None
