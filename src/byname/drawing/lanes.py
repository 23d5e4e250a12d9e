"""At which x does each node of a row stand, so that edges run straight and nothing overlaps?"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Pull", "columns"]

SWEEPS = 24
LANE = 6.0
"""How strongly the places of one line want to be one above the other."""
LARGE = 3000
"""Nodes from which on there are fewer sweeps."""


@dataclass(frozen=True, slots=True)
class Pull:
    """A node wants to stand where `node` stands, plus `shift`, as strongly as `weight`."""

    node: int
    shift: float
    weight: float


def columns(
    rows: Sequence[Sequence[int]],
    extents: Sequence[tuple[float, float]],
    up: Sequence[Sequence[Pull]],
    down: Sequence[Sequence[Pull]],
    gaps: Sequence[float],
    lanes: Sequence[Sequence[int]],
) -> list[float]:
    """The x of each node's axis.

    Args:
        rows: the nodes of each row, from left to right.
        extents: how far each node reaches to the left and to the right of its axis.
        up, down: what pulls each node, from the row above and from the row below.
        gaps: the room that each node wants on both sides.
        lanes: nodes that all want to stand at the same x: the places that one line takes in the rows it passes.
    """
    xs = [0.0] * len(extents)
    for row in rows:
        _place(row, extents, gaps, xs, dict.fromkeys(row, (0.0, 1.0)))
    sweeps = 4 if len(extents) > LARGE else SWEEPS
    for sweep in range(sweeps):
        both = sweep >= sweeps - 4
        middle = {}
        for lane in lanes:
            middle.update(dict.fromkeys(lane, sum(xs[one] for one in lane) / len(lane)))
        for row in rows if sweep % 2 == 0 else reversed(rows):
            wishes = {}
            for node in row:
                pulls = [*up[node], *down[node]] if both else (up, down)[sweep % 2][node]
                if node in middle:
                    pulls = [*pulls, Pull(node, middle[node] - xs[node], LANE)]
                weight = sum(pull.weight for pull in pulls)
                wish = sum(pull.weight * (xs[pull.node] + pull.shift) for pull in pulls)
                wishes[node] = (wish / weight, weight) if weight else (xs[node], 0.05)
            _place(row, extents, gaps, xs, wishes)
    return xs


def _place(
    row: Sequence[int],
    extents: Sequence[tuple[float, float]],
    gaps: Sequence[float],
    xs: list[float],
    wishes: dict[int, tuple[float, float]],
) -> None:
    """Puts the nodes of a row as near to their wishes as the room allows: weighted least squares, in order.

    Nodes that would overlap are pooled and placed as one ("pool adjacent violators").
    """
    offsets = [0.0]
    for left, right in itertools.pairwise(row):
        offsets.append(offsets[-1] + extents[left][1] + extents[right][0] + min(gaps[left], gaps[right]))
    pools: list[list[float]] = []
    for node, offset in zip(row, offsets, strict=True):
        wish, weight = wishes[node]
        pools.append([wish - offset, weight, 1])
        while len(pools) > 1 and pools[-2][0] > pools[-1][0]:
            wish, weight, size = pools.pop()
            total = pools[-1][1] + weight
            pools[-1] = [(pools[-1][0] * pools[-1][1] + wish * weight) / total, total, pools[-1][2] + size]
    starts = [start for start, _, size in pools for _ in range(int(size))]
    for node, start, offset in zip(row, starts, offsets, strict=True):
        xs[node] = start + offset
