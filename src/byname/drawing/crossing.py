"""In which order do the nodes of each row stand, so that few edges cross?"""

from __future__ import annotations

import itertools
from bisect import bisect_right, insort
from collections.abc import Sequence

__all__ = ["crossings", "order_rows"]

SWEEPS = 10
LARGE = 2000
"""Edges from which on a level is ordered with fewer sweeps."""

Neighbours = Sequence[Sequence[int]]


def order_rows(rows: list[list[int]], above: Neighbours, below: Neighbours) -> list[list[int]]:
    """Rows with their nodes in a better order: barycentres downwards and upwards, the best of all sweeps."""
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
    """Sorts a row by the mean place of each node's neighbours in the fixed row; nodes without any stay in place."""
    place = {node: position for position, node in enumerate(fixed)}
    wish: dict[int, float] = {}
    for position, node in enumerate(row):
        places = [place[one] for one in neighbours[node] if one in place]
        wish[node] = sum(places) / len(places) if places else position * len(fixed) / max(1, len(row))
    row.sort(key=wish.__getitem__)


def crossings(rows: Sequence[Sequence[int]], below: Neighbours) -> int:
    """How many pairs of edges cross between neighbouring rows."""
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
