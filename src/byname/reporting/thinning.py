"""Thinning: a long series as a few hundred points, each with the range and the quartiles of what it stands for."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from byname.recording.export import NUMBERS, as_float, numpy_of
from byname.recording.series import Series
from byname.recording.series_records import picked_values, read, tail_of

Array: TypeAlias = NDArray[Any]

POINTS = 400
"""Points of a curve on the page, about 50 bytes each."""
READ = 2**27
"""Bytes that are read of a place."""
CHUNK = 32 * 2**20
"""Bytes that are read at once."""
SORTED = 50_000
"""Numbers of one point that are sorted for its quartiles; of more, as many evenly spaced ones."""
_QUARTILES = np.array([0.0, 0.25, 0.5, 0.75, 1.0])


@dataclass(slots=True)
class Curve:
    """A series in one mode as points from left to right."""

    name: str
    first: list[int] = field(default_factory=list)  # the iterations of each point's first record, and of the last
    last: list[int] = field(default_factory=list)
    figures: list[list[float] | None] = field(default_factory=list)  # smallest finite number, quartiles, largest
    size: list[float | None] = field(default_factory=list)  # the root mean square of a point's finite numbers
    bad: list[tuple[int, int, int]] = field(default_factory=list)  # the point, and how many are NaN and infinite
    records: int = 0
    taken: int = 0  # of all records
    without: int = 0  # those of them that have no number
    sampled: bool = False  # the quartiles of some points are those of a sample

    def add(self, first: int, last: int, numbers: Array) -> None:
        """Add the point that stands for some numbers, at the iterations from first to last."""
        finite = np.isfinite(numbers)
        if not finite.all():
            nan = int(np.isnan(numbers).sum())
            self.bad.append((len(self.first), nan, len(numbers) - int(finite.sum()) - nan))
            numbers = numbers[finite]
        self.first.append(first)
        self.last.append(last)
        self.figures.append(self._five(numbers) if len(numbers) else None)
        self.size.append(math.sqrt(np.square(numbers, dtype=np.float64).mean()) if len(numbers) else None)

    def _five(self, numbers: Array) -> list[float]:
        step = -(-len(numbers) // SORTED)
        ordered = np.sort(numbers[::step])
        places = _QUARTILES * (len(ordered) - 1)
        below = places.astype(np.int64)
        above = np.minimum(below + 1, len(ordered) - 1)
        low = ordered[below].astype(np.float64)
        five: list[float] = (low + (places - below) * (ordered[above].astype(np.float64) - low)).tolist()
        if step > 1:
            self.sampled = True
            five[0], five[4] = float(numbers.min()), float(numbers.max())
        return five

    def drawn(self) -> dict[str, Any]:
        """Return the curve as the page has it: one list if all numbers of each point are the same, else five."""
        figures = [None if one is None else list(map(rounded, one)) for one in self.figures]
        single = all(one is None or one[0] == one[4] for one in figures)
        columns = [[None if one is None else one[at] for one in figures] for at in ((2,) if single else range(5))]
        last = None if self.last == self.first else self.last
        return {"name": self.name, "first": self.first, "last": last, "figures": columns, "bad": self.bad}


def rounded(number: float) -> float:
    """Return a number with six digits.

    >>> rounded(1 / 3)
    0.333333
    """
    return float(f"{number:.6g}")


def curves_of(series: Series) -> list[Curve]:
    """Return the curves of a series, one for each mode; none where no value is a number.

    The values of all ranks and calls of an iteration are one point; a point stands for neighbouring iterations where
    there are more than `POINTS`. Of a series of more than `READ` bytes, evenly spaced records are read.
    """
    modes = np.array(list(series.modes), np.str_)
    names = list(dict.fromkeys(modes.tolist()))
    found = (_curve(series, np.flatnonzero(modes == name), name if len(names) > 1 else "") for name in names)
    return [one for one in found if one.first]


def _curve(series: Series, here: Array, name: str) -> Curve:
    iterations = np.array(series.iterations, np.int64)[here]
    order = np.argsort(iterations, kind="stable")
    here, iterations = here[order], iterations[order]
    kept = spread(len(here), max(POINTS, READ // max(1, _bytes_each(series, here))))
    curve = Curve(name, records=len(here), taken=len(kept))
    here, iterations = here[kept], iterations[kept]
    _, turns = np.unique(iterations, return_inverse=True)
    groups = turns // -(-(int(turns[-1]) + 1) // POINTS) if len(turns) else turns
    starts = np.flatnonzero(np.diff(groups, prepend=-1))
    for start, stop, pieces in _pieces(series, here, starts):
        numbers = pieces[0] if len(pieces) == 1 else np.concatenate(pieces)
        curve.without += 0 if len(pieces) == 1 and len(numbers) else sum(not len(one) for one in pieces)
        if len(numbers):
            curve.add(int(iterations[start]), int(iterations[stop - 1]), numbers)
    return curve


def spread(count: int, most: int) -> Array:
    """Return up to `most` numbers below `count`, evenly spaced from the first to the last."""
    return np.arange(count) if count <= most else np.linspace(0, count - 1, most).round().astype(np.int64)


def _bytes_each(series: Series, here: Array) -> int:
    sizes: list[int] = [math.prod(series.shapes[number]) * 4 for number in here[:: max(1, len(here) // 20)].tolist()]
    return sum(sizes) // max(1, len(sizes))


def _pieces(series: Series, here: Array, starts: Array) -> Iterator[tuple[int, int, list[Array]]]:
    """Yield where each group of records starts and stops, which begin at `starts`, and its numbers in pieces."""
    stops = np.append(starts[1:], len(here))
    each = max(1, _bytes_each(series, here))
    begin = 0
    while begin < len(starts):
        end = int(np.searchsorted(stops, starts[begin] + max(1, CHUNK // each), "right"))
        end = max(end, begin + 1)
        first = int(starts[begin])
        values = _read(series, here[first : int(stops[end - 1])])
        for start, stop in zip(starts[begin:end].tolist(), stops[begin:end].tolist(), strict=True):
            part: Any = values[start - first : stop - first]
            flat = [_real(part.reshape(-1))] if type(part) is np.ndarray else [*map(numbers_in, part)]
            yield start, stop, flat
        begin = end


def _read(series: Series, positions: Array) -> Sequence[Any]:
    """Return the values at these positions: one array where they lie in arrays, otherwise a list."""
    if isinstance(series.values, Tensor):
        return numpy_of(series.values[positions])  # type: ignore[return-value]
    if not isinstance(series.values, list | tuple) and tail_of(series.values) is not None:
        return read(series.values, positions)  # type: ignore[return-value]
    return list(picked_values(series.values, positions))


def numbers_in(value: Any) -> Array:
    """Return the numbers of one value without its dimensions; none for what has no numbers. |z| for complex ones."""
    if issubclass(type(value), Tensor):
        return _real(numpy_of(value).reshape(-1))
    return np.array([as_float(value)] if type(value) in NUMBERS else [], np.float64)


def _real(numbers: Array) -> Array:
    if numbers.dtype.kind == "c":
        return np.abs(numbers)
    if numbers.dtype.kind in "fiu":
        return numbers.astype(np.float32) if numbers.dtype == np.float16 else numbers
    return numbers.astype(np.float64) if numbers.dtype.kind == "b" else np.zeros(0)


def of_numbers(numbers: Array, points: int, at: Sequence[int] | None = None) -> Curve:
    """Return the curve of an array of numbers by their index, or by where they are."""
    curve, at = Curve("", records=len(numbers), taken=len(numbers)), range(len(numbers)) if at is None else at
    for piece in np.array_split(np.arange(len(numbers)), min(points, len(numbers)) or 1):
        if len(piece):
            curve.add(at[piece[0]], at[piece[-1]], _real(numbers[piece]))
    return curve
