"""Straight: the positions of boxes from left to right, chosen so that lines have few kinks."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

__all__ = ["Pull", "columns", "straighten"]

PASSES = 10
AT_ONCE, LARGE = 12, 500
"""Of how many chains that cross others one is cut before looking again; a third of them where there are many chains."""

Rows = Sequence[Sequence[int]]


@dataclass(frozen=True, slots=True)
class Pull:
    """A node wants to stand where `node` stands, plus `shift`, as strongly as `weight`."""

    node: int
    shift: float
    weight: float


Pulls = Sequence[Sequence[Pull]]


@dataclass(slots=True)
class _Chain:
    """Nodes that move as one.

    Attributes:
        members: each node, with its place relative to the first one.
        x: where the first one stands.
        before, after: chains to the left and to the right, and how far off they must stay.
        pulls: chains that pull, by how far from their own x, and how strongly.
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
    """Makes chains of nodes stand straight, near where they are, and moves each to where its neighbours pull it.

    A chain goes from a node to its only neighbour below, or to the middle one of an odd number, and so upwards.
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
    """Moves a chain to the mean of its wishes, as far as its neighbours leave room."""
    weight = sum(pull[2] for pull in chain.pulls)
    if weight:
        wish = sum(strength * (chains[one].x + shift) for one, shift, strength in chain.pulls) / weight
        low = max((chains[one].x + need for one, need in chain.before.items()), default=-inf)
        high = min((chains[one].x - need for one, need in chain.after.items()), default=inf)
        chain.x = min(max(wish, low), max(low, high))


def _members(rows: Rows, up: Pulls, down: Pulls, xs: Sequence[float]) -> list[list[tuple[int, float]]]:
    """All nodes in chains, each node with its place relative to the first one."""
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
    """The middle one of the strongest pulls, if there is one."""
    strongest = max((pull.weight for pull in pulls), default=0.0)
    among = sorted((pull for pull in pulls if pull.weight == strongest), key=lambda pull: xs[pull.node] + pull.shift)
    return among[len(among) // 2] if len(among) % 2 else None


def _connected(
    chains: list[_Chain], rows: Rows, extents: Sequence[tuple[float, float]], gaps: Sequence[float]
) -> list[_Chain]:
    """Notes which chains stand side by side in some row, and how far apart they must stay."""
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
    """The chains from left to right. Where two cross there is no such order: some are cut, and None returned."""
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
    """Return whether a chain of several nodes stands between other chains of a cycle."""
    return len(chain.members) > 1 and bool(stuck & chain.before.keys()) and bool(stuck & chain.after.keys())


def columns(rows: Rows, extents: Sequence[tuple[float, float]], gaps: Sequence[float]) -> list[float]:
    """Return the x of each node's axis, with the nodes of a row side by side, around 0.

    Args:
        rows: the nodes of each row, from left to right.
        extents: how far each node reaches to the left and to the right of its axis.
        gaps: the room that each node wants on both sides.
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
