"""Moments: which record of a series was in force at an iteration, found without a look at every record."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np

from byname.recording.views.frames import Records
from byname.recording.views.reading import Positions

__all__ = ["Moments"]


@dataclass(frozen=True, slots=True)
class _Sorted:
    """Some records in the order of their iterations, then calls, then as they came."""

    numbers: Positions
    iterations: Positions
    calls: Positions

    def last(self, iteration: int, call: int) -> int | None:
        """The last record of this moment or one before it."""
        low = bisect_left(self.iterations, iteration)
        high = bisect_right(self.iterations, iteration, lo=low)
        found = bisect_right(self.calls, call, lo=low, hi=high)
        return int(self.numbers[found - 1]) if found else None


class Moments:
    """The records of a series, sorted once for each rank and mode that is asked for.

    Args:
        series: the records; they are taken as they are now.
    """

    __slots__ = ("_calls", "_found", "_here", "_iterations", "_modes", "_ranks", "several")

    def __init__(self, series: Records) -> None:
        self._iterations, self._ranks, self._calls = (
            np.array(column, np.int64) for column in (series.iterations, series.ranks, series.calls)
        )
        self._modes = np.array(list(series.modes), np.str_)
        self._found: dict[tuple[int, str | None], _Sorted] = {}
        self._here: dict[int, Positions] = {}
        self.several = len(set(series.modes)) > 1

    def last(self, iteration: int, call: int, rank: int, mode: str | None) -> int | None:
        """The number of the record in force, of this rank or of one that stands for all; None where there is none."""
        known = self._found.get((rank, mode))
        if known is None:
            here = self.of_rank(rank)
            mine = here if mode is None else here[self._modes[here] == mode]
            order = mine[np.lexsort((mine, self._calls[mine], self._iterations[mine]))]
            known = self._found[rank, mode] = _Sorted(order, self._iterations[order], self._calls[order])
        return known.last(iteration, call)

    def following(self, number: int, rank: int) -> int | None:
        """The number of the next record of a rank, in the order in which they came."""
        here = self.of_rank(rank)
        after = int(np.searchsorted(here, number, side="right"))
        return int(here[after]) if after < len(here) else None

    def of_rank(self, rank: int) -> Positions:
        """The numbers of the records of a rank, and of those that stand for all."""
        if rank not in self._here:
            self._here[rank] = np.flatnonzero((self._ranks == rank) | (self._ranks == -1))
        return self._here[rank]

    def fits(self, series: Any, number: int | None) -> bool:
        """Whether the series is still as it was, as far as one record tells."""
        if len(series.iterations) != len(self._iterations):
            return False
        return number is None or (
            series.iterations[number] == self._iterations[number] and series.calls[number] == self._calls[number]
        )
