"""Which record stands at which iteration, rank and call? A grid of record numbers, with holes where there is none."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from byname.errors import BadArgumentError, BynameError
from byname.recording.views.frames import Records
from byname.recording.views.reading import Positions

__all__ = ["Grid", "bounded", "grid_of"]

MOST = 2**27
"""Elements that a mostly empty array may have: one GiB of float64."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The axes that records span, and where each record is.

    Attributes:
        modes, iterations, ranks, calls: the values that occur, sorted.
        where: for each (mode, iteration, rank, call) the number of the record that is valid there, -1 for none.
        recorded: whether that record was made there, and was not carried there from an earlier iteration.
    """

    modes: NDArray[np.str_]
    iterations: Positions
    ranks: Positions
    calls: Positions
    where: Positions
    recorded: NDArray[np.bool_]

    def filled(self, iterations: Sequence[int] | None) -> Grid:
        """The same with every record valid until the next of its rank; at these iterations if given.

        Raises:
            BynameError: for both modes, of which nobody knows what came first.
        """
        if len(self.modes) > 1:
            raise BynameError(
                "fill= needs the records of one mode: a value that changes in one is changed in the other"
            )
        modes, steps, ranks, calls = self.where.shape
        in_order = self.where.transpose(0, 2, 1, 3).reshape(modes, ranks, steps * calls)
        positions = np.where(in_order >= 0, np.arange(steps * calls), -1)
        latest = np.maximum.accumulate(positions, axis=2) if positions.size else positions
        carried = np.where(latest >= 0, np.take_along_axis(in_order, np.maximum(latest, 0), axis=2), -1)
        where = carried.reshape(modes, ranks, steps, calls).transpose(0, 2, 1, 3)
        whole = Grid(self.modes, self.iterations, self.ranks, self.calls, where, self.recorded)
        return whole if iterations is None else whole._at(_asked(iterations))

    def _at(self, iterations: Positions) -> Grid:
        """The grid at these iterations: each shows what was valid last."""
        if not len(self.iterations):
            return self
        rows = np.searchsorted(self.iterations, iterations, side="right") - 1
        cells = len(iterations) * math.prod(self.where.shape) // len(self.iterations)
        bounded(cells, 0, "over the iterations asked for")
        before = (rows < 0).reshape(1, -1, 1, 1)
        hit = np.isin(iterations, self.iterations).reshape(1, -1, 1, 1)
        found = self.where[:, np.maximum(rows, 0)]
        where = np.where(before, -1, np.where(hit, found, found[..., -1:]))  # after the last call of an iteration
        recorded = self.recorded[:, np.maximum(rows, 0)] & hit & ~before
        return Grid(self.modes, iterations, self.ranks, self.calls, where, recorded)


def _asked(iterations: Sequence[int]) -> Positions:
    if isinstance(iterations, Sequence | np.ndarray):
        bounded(len(iterations), 0, "over the iterations asked for")
        found = np.unique(np.asarray(iterations))
        if found.size == 0 or found.dtype.kind in "iu":
            return found.astype(np.int64)
    raise BadArgumentError("fill= takes True, or the iterations at which values are wanted, such as range(100)")


def grid_of(series: Records) -> Grid:
    """The grid of a series; two records at one cell are refused, for one would hide the other."""
    axis: NDArray[Any]
    axes: list[NDArray[Any]] = []
    inverses: list[NDArray[Any]] = []
    types = (np.str_, np.int64, np.int64, np.int64)
    for column, dtype in zip((series.modes, series.iterations, series.ranks, series.calls), types, strict=True):
        axis, inverse = np.unique(np.array(list(column), dtype), return_inverse=True)
        axes.append(axis)
        inverses.append(inverse)
    shape = tuple(map(len, axes))
    size = len(series.iterations)
    bounded(math.prod(shape), size, f"{shape[1]} iterations × {shape[2]} ranks × {shape[3]} calls of {series.path}")
    where = np.full(shape, -1, np.int64)
    where[tuple(inverses)] = np.arange(size)
    if np.count_nonzero(where >= 0) < size:
        raise BynameError(f"{series.path} has {_twice(series)}: as an array one would hide the other; use .values")
    return Grid(axes[0], axes[1], axes[2], axes[3], where, where >= 0)


def _twice(series: Records) -> str:
    seen: set[tuple[str, int, int, int]] = set()
    for cell in zip(series.modes, series.iterations, series.ranks, series.calls, strict=True):
        if cell in seen:
            return f"two records of {cell[0]} iteration {cell[1]}, rank {cell[2]}, call {cell[3]}"
        seen.add(cell)
    raise AssertionError("only asked where there is one")


def bounded(elements: int, own: int, what: str) -> None:
    """Refuses an array that would be huge, and nearly empty.

    Args:
        elements: of the array.
        own: those of the values themselves.
        what: the array, in words.
    """
    if elements > MOST and elements > 4 * own:
        raise BynameError(
            f"one array {what} would have {elements:,} elements, of which {own:,} have a value. Take a part "
            "of the series (series[:1000]), or use .values or .to_pandas(), which hold no empty cells"
        )
