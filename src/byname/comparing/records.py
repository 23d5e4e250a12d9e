"""Records: which records of two series stand for one moment, and how much their values differ."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import takewhile
from typing import Any

import numpy as np
import torch

from byname.comparing.difference import (
    DIFFERENT,
    EQUAL,
    ONLY,
    UNCOMPARED,
    WITHIN,
    Array,
    PlaceDiff,
    Tolerance,
    dtype_of,
    errors,
    measured,
)
from byname.recording.series import Series
from byname.recording.series_records import cropped

EVAL, RANK, ITERATION, CALL = range(4)
BLOCK = 4 << 20
"""Bytes of each of the two that are compared at once."""
MOST = 1 << 16
"""Records that are compared at once."""


def moments_of(series: Series) -> Array:
    """Return when the values of a series came: a row of mode (1 for eval), rank, iteration and call for each record."""
    columns = (series.records[name].astype(np.int64) for name in ("eval", "rank", "iteration", "call"))
    return np.stack([*columns], axis=1)


class RecordedRun:
    """One of the two recordings, or the run of one of the two models.

    Args:
        name: what it is called.
        places: the series of each place, in the order in which values came.
        cut: whether its last iteration may have ended early.
        turns: of a model, the place and call of each value in the order in which they came, with their numbers.
        kinds: of a model, which places are parameters and buffers.

    Attributes:
        order: the places in the order in which they run: parameters are recorded late, and were there before.
        last: the last iteration of each mode and rank.
        every: how many iterations lie at most between two values, as far as was asked.
        modes: the moments of a place that was recorded in both modes, in the order in which they came.
    """

    def __init__(
        self,
        name: str,
        places: Mapping[str, Series],
        cut: bool = False,
        turns: Mapping[tuple[str, int], int] | None = None,
        kinds: Mapping[str, str] | None = None,
    ) -> None:
        self.name, self.places, self.cut, self.turns, self.kinds = name, places, cut, turns, kinds or {}
        self.order = sorted(places, key=lambda path: not ((how := places[path].sampling) and how.state))
        self.last: dict[tuple[int, int], int] = {}
        self.every = min((how.every for one in places.values() if (how := one.sampling)), default=1)
        self.modes: Array | None = None
        for series in places.values():
            every = moments_of(series)
            for mode, rank in np.unique(every[:, :ITERATION], axis=0).tolist():
                last = every[(every[:, :ITERATION] == (mode, rank)).all(axis=1), ITERATION].max()
                self.last[mode, rank] = max(int(last), self.last.get((mode, rank), -1))
            if len(np.unique(every[:, EVAL])) > 1 and (self.modes is None or len(every) > len(self.modes)):
                self.modes = every

    def times(self, path: str, every: Array) -> Array:
        """Return a number for each moment of a place, by which moments are sorted."""
        if self.turns is not None:
            return np.array([self.turns.get((path, call), -1) for call in every[:, CALL].tolist()], float)
        found = every[:, ITERATION].astype(float)
        if (both := self.modes) is not None:
            for mode in (0, 1):
                came, here = np.flatnonzero(both[:, EVAL] == mode), every[:, EVAL] == mode
                iterations, first = np.unique(both[came, ITERATION], return_index=True)
                found[here] = np.interp(found[here], iterations, came[first])
        return found

    def ends(self, every: Array) -> Array:
        """Return for each moment the last iteration of its mode and rank; -1 where there is none."""
        found = np.full(len(every), -1)
        for moment, last in self.last.items():
            found[(every[:, :ITERATION] == moment).all(axis=1)] = last
        return found

    def before(self, first: PlaceDiff) -> list[str]:
        """Return the places that ran before a difference, the latest last."""
        if self.turns is not None:
            return [path for path, _ in self.turns][: int(first.time)]
        earlier = [*takewhile(lambda path: path != first.path, self.order)]
        return earlier or (self.order if first.iteration else [])


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs, and the tolerance with which they are compared."""

    a: RecordedRun
    b: RecordedRun
    tolerance: Tolerance

    def place(self, path: str, other: str) -> PlaceDiff:
        """Return how a place differs, which both runs have."""
        a, b = self.a.places[path], self.b.places[other]
        every, at, lacking = self._matched(path, a, b)
        state = np.where(lacking.any(axis=0), 2, 0)
        error = np.full(len(every), math.nan)
        both = np.flatnonzero((at >= 0).all(axis=0))
        for block, differs, beyond, size in _compared(a, at[0, both], b, at[1, both], self.tolerance):
            state[both[block]] = np.add(differs, beyond, dtype=int)
            error[both[block]] = size
        exact = self.tolerance.exact and (not len(both) or len({*_dtypes(a, at[0, both[0]], b, at[1, both[0]])}) == 1)
        worst = int(state.max(initial=0))
        found = PlaceDiff(path)
        if worst:
            number = int(np.flatnonzero(state >= (1 if exact else worst))[0])
            found = self._difference(path, a, b, every, at, number)
        compared = len(both) or not (len(a) or len(b))
        known = error[~np.isnan(error)]
        return replace(
            found,
            kind=self.a.kinds.get(path, "value"),
            path_b=other if other != path else "",
            state=(EQUAL if compared else UNCOMPARED, WITHIN, DIFFERENT)[worst],
            counts=worst == 2 or (exact and worst == 1),
            records=len(both) + int(lacking.sum()),
            differ=int((state > 0).sum()),
            largest=float(known.max()) if worst and len(known) else None,
        )

    def _matched(self, path: str, a: Series, b: Series) -> tuple[Array, Array, Array]:
        """Return the moments of both series in order, the record of each for a and b, and whether one lacks it."""
        own = moments_of(a), moments_of(b)
        if np.array_equal(*own):
            every, at = own[0], np.tile(np.arange(len(own[0])), (2, 1))
            lacking = np.zeros(at.shape, bool)
        else:
            every, where = np.unique(np.concatenate(own), axis=0, return_inverse=True)
            at = np.full((2, len(every)), -1)
            for row, here in zip(at, np.split(where.reshape(-1), [len(own[0])]), strict=True):
                row[here] = np.arange(len(here))
            alike = str(a.sampling) == str(b.sampling)
            found = [_in_force(series, every, row, alike) for series, row in zip((a, b), at, strict=True)]
            at, due = (np.stack(both) for both in zip(*found, strict=True))
            lacking = due & (at < 0)
        last = np.stack([run.ends(every) for run in (self.a, self.b)])
        whole = np.array([[not run.cut] for run in (self.a, self.b)])
        lacking &= every[:, ITERATION] < last + whole
        turn = -1 if path.endswith(".grad") else 1  # a backward reaches the last call first
        order = np.lexsort((every[:, RANK], turn * every[:, CALL], every[:, ITERATION], self.a.times(path, every)))
        order = order[(every[:, ITERATION] <= last.min(axis=0))[order]]
        return every[order], at[:, order], lacking[:, order]

    def _difference(self, path: str, a: Series, b: Series, every: Array, at: Array, number: int) -> PlaceDiff:
        mode, rank, iteration, call = every[number].tolist()
        in_a, in_b = at[:, number].tolist()
        if min(in_a, in_b) < 0:
            found = PlaceDiff(beyond=True, what=f"recorded {ONLY[in_a < 0]}")
        else:
            found = measured(_value(a, in_a), _value(b, in_b), self.tolerance)
        calls = int((every[:, :CALL] == every[number, :CALL]).all(axis=1).sum())
        time = float(self.a.times(path, every[[number]])[0])
        found = replace(found, path=path, call=call, calls=calls, time=time)
        when = "eval" if mode else "train"
        return found if self.a.turns is not None else replace(found, iteration=iteration, mode=when, rank=rank)


def _in_force(series: Series, every: Array, at: Array, alike: bool) -> tuple[Array, Array]:
    """Return the record of each moment, and where one was due.

    Where only changes were recorded, and nothing in this iteration, the last record before it still holds. `alike`
    tells that the other series was sampled in the same way; else only the moments that both have are compared.
    """
    groups = np.cumsum((np.diff(every[:, :CALL], axis=0, prepend=every[:1, :CALL]) != 0).any(axis=1))
    ran = np.bincount(groups, at >= 0)[groups] > 0
    if not alike or series.sampling is None or not series.sampling.on_change:
        return at, ran | alike
    if len(np.unique(every[:, EVAL])) > 1:  # no record tells in which order the modes took turns
        return at, ran
    last = np.maximum.accumulate(np.where(at >= 0, np.arange(len(at)), -1))
    holds = ~ran & (last >= 0) & (every[last, :ITERATION] == every[:, :ITERATION]).all(axis=1)
    return np.where(holds, at[last], at), ran


def _compared(
    a: Series, in_a: Array, b: Series, in_b: Array, tolerance: Tolerance
) -> Iterator[tuple[slice, Array | bool, Array | bool, Array | float]]:
    """Yield for blocks of records which these are, which differ, which too much, and the errors."""
    largest = max((math.prod(shape) for series in (a, b) for shape, _ in series.kinds), default=1)
    step = min(MOST, max(1, BLOCK // (8 * max(largest, 1))))
    for begin in range(0, len(in_a), step):
        block = slice(begin, begin + step)
        one, other = (x[at[block]].to_numpy() if step > 1 else np.empty(0, object) for x, at in ((a, in_a), (b, in_b)))
        if one.dtype != object and other.dtype != object and one.shape == other.shape:
            allowed = tolerance.allowed(*_dtypes(a, in_a[begin], b, in_b[begin]))
            found = errors(one, other, allowed)
            yield block, found.elements > 0, found.beyond, found.error
            continue
        for number in range(begin, min(begin + step, len(in_a))):
            each = measured(_value(a, in_a[number]), _value(b, in_b[number]), tolerance)
            error = math.nan if each.error is None else each.error
            yield slice(number, number + 1), bool(each.elements) or each.beyond, each.beyond, error


def _value(series: Series, number: int) -> Any:
    return cropped(series.values[int(number)], tuple(series.shapes[int(number)]))


def _dtypes(a: Series, in_a: int, b: Series, in_b: int) -> tuple[torch.dtype, torch.dtype]:
    return dtype_of(_value(a, in_a)), dtype_of(_value(b, in_b))
