"""Heat maps: some values of a series as small pictures, to be gone through one after the other."""

from __future__ import annotations

import base64
import itertools
import math
from typing import Any

import numpy as np

from byname.recording.export import numpy_of
from byname.recording.series import Series
from byname.reporting.thinning import Array, spread

SIDE = 64
"""Rows and columns that a picture has at most; larger tensors are averaged in blocks."""
FRAMES = 40
"""Number of moments that are shown at most."""
CELLS = 40_000
"""Cells that all pictures of a place have at most, less than three bytes each."""
COLUMNS = 200
"""Number of moments side by side, where each value is one column."""
SLICES = 8
"""Number of slices that are shown of a tensor of more than two dimensions, such as the heads of an attention."""
LARGEST = 2**28
"""Bytes of a value that is still read for a picture."""


def heat_map(series: Series) -> dict[str, Any] | None:
    """Return pictures of the values of a series as plain data; None where the values have no two sides.

    A vector becomes a column, and the columns of all moments one picture. Of a larger tensor the last two dimensions
    are shown, for some moments and some slices.
    """
    shape = _common({tuple(shape) for shape in series.shapes})
    sides = [at for at, size in enumerate(shape) if size > 1]
    if not sides or math.prod(shape) * 4 > LARGEST:
        return None
    if len(sides) == 1:
        return _columns(series, shape) if len(series) > 1 else None
    return _frames(series, shape, sides)


def _common(shapes: set[tuple[int, ...]]) -> tuple[int, ...]:
    """Return the part of their shapes that all values have; batches of different sizes have the slices of the least."""
    if len(shapes) > 1 and len({shape[1:] for shape in shapes}) == 1 and min(map(len, shapes)) > 2:
        return min(shapes)
    return shapes.pop() if len(shapes) == 1 else ()


def _columns(series: Series, shape: tuple[int, ...]) -> dict[str, Any] | None:
    numbers = spread(len(series), COLUMNS).tolist()
    found = [_picture(series.values[number], math.prod(shape), 1) for number in numbers]
    if any(one is None for one in found):
        return None
    picture = np.concatenate([one for one in found if one is not None], axis=1)
    facts = {"rows": math.prod(shape), "columns": len(numbers), "slices": [""], "labels": [""], "of": len(series)}
    return {**_coded(picture[None, None]), **facts, "moments": _moments(series, numbers)}


def _frames(series: Series, shape: tuple[int, ...], sides: list[int]) -> dict[str, Any] | None:
    rows, columns = shape[sides[-2]], shape[sides[-1]]
    slices = _slices(shape, sides)
    side = SIDE
    while side > 8 and CELLS // (min(side, rows) * min(side, columns)) < 8 * min(len(slices), 4):
        side //= 2
    cells = min(side, rows) * min(side, columns)
    slices = slices[: max(1, min(len(slices), CELLS // (8 * cells)))]
    numbers = spread(len(series), max(1, min(FRAMES, CELLS // (cells * len(slices))))).tolist()
    pictures: list[list[Array]] = []
    for number in numbers:
        value = series.values[number]
        found = [_picture(value[one], rows, columns, side) for one in slices]
        if any(one is None for one in found):
            return None
        pictures.append([one for one in found if one is not None])
    names = [f"[{', '.join(':' if type(at) is slice else str(at) for at in one)}]" for one in slices]
    return {
        **_coded(np.array(pictures)),
        "rows": rows,
        "columns": columns,
        "slices": names if shape != (rows, columns) else [""],
        "labels": _moments(series, numbers),
        "of": len(series),
        "there": math.prod(shape) // rows // columns,
    }


def _slices(shape: tuple[int, ...], sides: list[int]) -> list[tuple[Any, ...]]:
    """Return where the first slices lie: all along the last dimension before the picture, at 0 in those before it."""
    last = sides[-3] if len(sides) > 2 else -1
    ranges: list[list[Any]] = [
        [slice(None)] if at in sides[-2:] else [*range(min(SLICES, shape[at]))] if at == last else [0]
        for at in range(len(shape))
    ]
    return list(itertools.product(*ranges))


def _moments(series: Series, numbers: list[int]) -> list[str]:
    """Return when each of these records was, as far as that tells it from others."""
    columns = [("", series.modes), ("call ", series.calls), ("rank ", series.ranks)]
    several = [(word, column) for word, column in columns if len(set(column)) > 1]
    return [
        ", ".join([f"{series.iterations[number]:,}", *(f"{word}{column[number]}" for word, column in several)])
        for number in numbers
    ]


def _picture(value: Any, rows: int, columns: int, side: int = SIDE) -> Array | None:
    array = numpy_of(value).reshape(rows, columns)
    if array.dtype.kind not in "fiub":
        return None
    array = array.astype(np.float64)
    if np.abs(array[np.isfinite(array)]).max(initial=0) > 1e38:  # no room for it in the 16 bits of a cell
        return None
    return _shrunk(_shrunk(array, 0, side), 1, side)


def _shrunk(array: Array, axis: int, most: int) -> Array:
    """Return the means of equal stretches along an axis, if it is longer than that."""
    size = array.shape[axis]
    if size <= most:
        return array
    edges = np.linspace(0, size, most + 1).astype(np.int64)
    counts = np.diff(edges).reshape((-1, 1) if axis == 0 else (1, -1))
    with np.errstate(invalid="ignore"):  # the mean of both infinities is NaN
        shrunk: Array = np.add.reduceat(array, edges[:-1], axis=axis) / counts
    return shrunk


def _coded(pictures: Array) -> dict[str, Any]:
    """Return pictures by moment and slice as the upper 16 bits of 32-bit floats, which keep two to three digits."""
    bits = np.ascontiguousarray(pictures, np.float32).view(np.uint32)
    upper = np.where(np.isnan(pictures), 0x7FC0, (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16)
    cells = base64.b64encode(upper.astype("<u2").tobytes()).decode("ascii")
    return {"height": pictures.shape[2], "width": pictures.shape[3], "cells": cells}
