"""Straight: the horizontal positions of boxes, chosen so that lines have few kinks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

PASSES = 10
AT_ONCE, LARGE = 12, 500
"""One in `AT_ONCE` of the chains that cross is cut before the next look; from `LARGE` chains on, a third of them."""

Rows = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Pull:
    """The wish of a node for the position of `node` plus `shift`, with the strength `weight`."""

    node: int
    shift: float
    weight: float


Pulls = Sequence[Sequence[Pull]]


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


def straighten(
    rows: Rows,
    extents: Sequence[tuple[float, float]],
    up: Pulls,
    down: Pulls,
    gaps: Sequence[float],
    xs: list[float],
) -> None:
    """Make chains of nodes straight, and move each chain to where its neighbours pull it.

    A chain goes from a node to its only neighbour below, or to the middle one of an odd number. The neighbour must have
    the node as its middle one above.

    Args:
        rows: the nodes of each row, from left to right.
        extents: the distances from the axis of each node to its left and right end.
        up, down: for each node, the pulls of its neighbours above and below.
        gaps: the gap that each node needs on both sides.
        xs: the position of each node; changed in place.
    """
    chains = [_Chain(members) for members in _members(rows, up, down, xs)]
    order = None
    while order is None:
        order = _sorted(_connected(chains, rows, extents, gaps), chains)
    number_of = {node: number for number, chain in enumerate(chains) for node, _ in chain.members}
    offset = {node: offset for chain in chains for node, offset in chain.members}
    for number in order:
        chain = chains[number]
        chain.x = sum(xs[node] - aside for node, aside in chain.members) / len(chain.members)
        chain.x = max([chain.x, *(chains[one].x + need for one, need in chain.before.items())])
        for node, aside in chain.members:
            outer = (pull for pull in (*up[node], *down[node]) if number_of[pull.node] != number)
            chain.pulls += [(number_of[one.node], offset[one.node] + one.shift - aside, one.weight) for one in outer]
    for number in range(PASSES):
        for one in reversed(order) if number % 2 == 0 else order:
            _move(chains, chains[one])
    for chain in chains:
        for node, aside in chain.members:
            xs[node] = chain.x + aside


def _move(chains: list[_Chain], chain: _Chain) -> None:
    """Move a chain to the weighted mean of its pulls, as far as its neighbours leave room."""
    weight = sum(pull[2] for pull in chain.pulls)
    if weight:
        wish = sum(strength * (chains[one].x + shift) for one, shift, strength in chain.pulls) / weight
        low = max((chains[one].x + need for one, need in chain.before.items()), default=-inf)
        high = min((chains[one].x - need for one, need in chain.after.items()), default=inf)
        chain.x = min(max(wish, low), max(low, high))


def _members(rows: Rows, up: Pulls, down: Pulls, xs: Sequence[float]) -> list[list[tuple[int, float]]]:
    """Return all nodes in chains, each node with its position relative to the first node of its chain."""
    chain_of: dict[int, list[tuple[int, float]]] = {}
    chains: list[list[tuple[int, float]]] = []
    for node in (node for row in rows for node in row):
        upper = _middle(up[node], xs)
        partner = None if upper is None else _middle(down[upper.node], xs)
        if upper is not None and partner is not None and partner.node == node and upper.node in chain_of:
            chain = chain_of[upper.node]
            chain.append((node, chain[-1][1] + upper.shift))
        else:
            chain = [(node, 0.0)]
            chains.append(chain)
        chain_of[node] = chain
    return chains


def _middle(pulls: Sequence[Pull], xs: Sequence[float]) -> Pull | None:
    """Return the middle one of the strongest pulls; None if their number is even."""
    strongest = max((pull.weight for pull in pulls), default=0.0)
    among = sorted((pull for pull in pulls if pull.weight == strongest), key=lambda pull: xs[pull.node] + pull.shift)
    return among[len(among) // 2] if len(among) % 2 else None


def _connected(
    chains: list[_Chain], rows: Rows, extents: Sequence[tuple[float, float]], gaps: Sequence[float]
) -> list[_Chain]:
    """Note the chains that are neighbours in a row, and the distance that they must keep; return the chains."""
    spot = {node: (chain, number, aside) for number, chain in enumerate(chains) for node, aside in chain.members}
    for chain in chains:
        chain.before.clear()
        chain.after.clear()
    for left, right in (pair for row in rows for pair in _pairs(row)):
        (one, number, aside), (other, other_number, other_aside) = spot[left], spot[right]
        need = extents[left][1] + extents[right][0] + min(gaps[left], gaps[right]) + aside - other_aside
        one.after[other_number] = max(need, one.after.get(other_number, -inf))
        other.before[number] = max(need, other.before.get(number, -inf))
    return chains


def _pairs(row: Sequence[int]) -> Iterator[tuple[int, int]]:
    return itertools.pairwise(row)


def _sorted(linked: list[_Chain], chains: list[_Chain]) -> list[int] | None:
    """Return the chains from left to right. If chains cross there is no such order: cut some and return None."""
    missing = [len(chain.before) for chain in linked]
    ready = [number for number, count in enumerate(missing) if not count]
    order: list[int] = []
    while ready:
        number = ready.pop()
        order.append(number)
        for one in linked[number].after:
            missing[one] -= 1
            if not missing[one]:
                ready.append(one)
    if len(order) == len(chains):
        return order
    stuck = set(range(len(chains))) - set(order)
    worst = sorted(stuck, key=lambda number: (_crosses(linked[number], stuck), len(linked[number].members), -number))
    for number in worst[-max(1, len(stuck) // (AT_ONCE if len(chains) < LARGE else 3)) :]:
        members = chains[number].members
        if len(members) > 1:
            half = len(members) // 2
            chains[number] = _Chain(members[:half])
            chains.append(_Chain([(node, aside - members[half][1]) for node, aside in members[half:]]))
    return None


def _crosses(chain: _Chain, stuck: set[int]) -> bool:
    """Return whether a chain of several nodes has chains of a cycle on both sides."""
    return len(chain.members) > 1 and bool(stuck & chain.before.keys()) and bool(stuck & chain.after.keys())


def columns(rows: Rows, extents: Sequence[tuple[float, float]], gaps: Sequence[float]) -> list[float]:
    """Return the x of the axis of each node, with the nodes of a row side by side, centred at 0.

    Args:
        rows: the nodes of each row, from left to right.
        extents: the distances from the axis of each node to its left and right end.
        gaps: the gap that each node needs on both sides.
    """
    xs = [0.0] * len(extents)
    for row in rows:
        offsets = [0.0]
        for left, right in itertools.pairwise(row):
            offsets.append(offsets[-1] + extents[left][1] + extents[right][0] + min(gaps[left], gaps[right]))
        middle = sum(offsets) / len(offsets)
        for node, offset in zip(row, offsets, strict=False):
            xs[node] = offset - middle
    return xs
