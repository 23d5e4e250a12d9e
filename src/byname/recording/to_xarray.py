"""To xarray: a series as an array with the coordinates (mode, iteration, rank, call)."""

from __future__ import annotations

import math
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import xarray
from numpy.typing import NDArray
from xarray.backends import BackendArray
from xarray.core import indexing

from byname.errors import BadArgumentError, BynameError
from byname.extras import needs
from byname.recording.export import AnyArray, exact_dtype, numpy_of, to_numpy
from byname.recording.facts import version
from byname.recording.series_records import MODES, MOMENT, Positions, SeriesRecords, cropped, read, tail_of
from byname.table import listed

MOST = 2**27
"""Elements that a mostly empty array may have: one GiB of float64."""


@dataclass(frozen=True, slots=True)
class Grid:
    """The axes that records span, and where each record is.

    Attributes:
        axes: the values that occur, sorted: modes, where there are both, iterations, ranks and calls.
        where: for each cell the number of the record that is valid there, -1 for none.
        recorded: whether that record was made there, and was not carried there from an earlier iteration.
    """

    axes: Mapping[str, AnyArray]
    where: Positions
    recorded: NDArray[np.bool_]

    def filled(self, iterations: Sequence[int] | None) -> Grid:
        """Return the grid with every record valid until the next of its rank; at these iterations if given."""
        if "mode" in self.axes:
            raise BynameError(
                "fill= needs the records of one mode: a value that changes in one mode also changes in the other"
            )
        steps, ranks, calls = self.where.shape
        in_order = self.where.transpose(1, 0, 2).reshape(ranks, steps * calls)
        latest = np.maximum.accumulate(np.where(in_order >= 0, np.arange(steps * calls), -1), axis=1)
        carried = np.where(latest >= 0, np.take_along_axis(in_order, np.maximum(latest, 0), axis=1), -1)
        whole = replace(self, where=carried.reshape(ranks, steps, calls).transpose(1, 0, 2))
        return whole if iterations is None else whole._at(_asked(iterations))

    def _at(self, iterations: Positions) -> Grid:
        """Return the grid at these iterations: each shows what was valid last."""
        known = self.axes["iteration"]
        if not len(known):
            return self
        bounded(len(iterations) * math.prod(self.where.shape[1:]), 0, "over the iterations asked for")
        rows = np.searchsorted(known, iterations, side="right") - 1
        before = (rows < 0).reshape(-1, 1, 1)
        hit = np.isin(iterations, known).reshape(-1, 1, 1)
        found = self.where[np.maximum(rows, 0)]
        where = np.where(before, -1, np.where(hit, found, found[..., -1:]))  # after the last call of an iteration
        recorded = self.recorded[np.maximum(rows, 0)] & hit & ~before
        return Grid({**self.axes, "iteration": iterations}, where, recorded)


def _asked(iterations: Sequence[int]) -> Positions:
    if isinstance(iterations, Sequence | np.ndarray):
        bounded(len(iterations), 0, "over the iterations asked for")
        found = np.unique(np.asarray(iterations))
        if found.size == 0 or found.dtype.kind in "iu":
            return found.astype(np.int64)
    raise BadArgumentError("fill= takes True or the iterations to fill, such as range(100)")


def grid_of(series: SeriesRecords, *, by_mode: bool = False) -> Grid:
    """Return the grid of a series; two records at one cell are refused, for one would hide the other."""
    columns = series.mode_names, *(series.records[name].astype(np.int64) for name in ("iteration", "rank", "call"))
    axes, inverses = zip(*(np.unique(column, return_inverse=True) for column in columns), strict=True)
    shape = tuple(map(len, axes))
    size = len(series)
    bounded(math.prod(shape), size, f"{shape[1]} iterations × {shape[2]} ranks × {shape[3]} calls of {series.path}")
    where = np.full(shape, -1, np.int64)
    where[tuple(inverses)] = np.arange(size)
    if np.count_nonzero(where >= 0) < size:
        raise BynameError(f"{series.path} has {_twice(series)}: an array holds only one; use .values")
    named = dict(zip(("mode", "iteration", "rank", "call"), axes, strict=True))
    if shape[0] < 2 and not by_mode:
        where = where.reshape(shape[1:])
        del named["mode"]
    return Grid(named, where, where >= 0)


def _twice(series: SeriesRecords) -> str:
    often = Counter(map(tuple, series.records[MOMENT].tolist()))
    (iteration, rank, call, evaluation), _ = often.most_common(1)[0]
    return f"two records of {MODES[evaluation]} iteration {iteration}, rank {rank}, call {call}"


def bounded(elements: int, own: int, what: str) -> None:
    """Refuse an array that would be huge, and nearly empty: only `own` of its elements have a value."""
    if elements > MOST and elements > 4 * own:
        raise BynameError(
            f"one array {what} would have {elements:,} elements, of which {own:,} have a value. Take a part "
            "of the series (series[:1000]), or use .values or .to_pandas(), which have no empty cells"
        )


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the numbers come from: `take` gives the records at some positions, each of shape `inner`."""

    take: Callable[[Positions], AnyArray]
    inner: tuple[int, ...]
    dtype: np.dtype[Any]
    missing: Any

    def placed(self, where: Positions) -> AnyArray:
        """Return the records in the cells of a grid, and the filling of the empty cells."""
        present = where >= 0
        out = np.full((*where.shape, *self.inner), self.missing, self.dtype)
        out[present] = self.take(where[present])
        return out


class _Cells(BackendArray):
    """The cells of a grid as an array of xarray's: a part of it is read when it is asked for."""

    def __init__(self, source: _Source, where: Positions) -> None:
        self._source, self._where = source, where
        self.shape, self.dtype = (*where.shape, *source.inner), source.dtype

    def __getitem__(self, key: indexing.ExplicitIndexer) -> AnyArray:
        found: AnyArray = indexing.explicit_indexing_adapter(
            key, self.shape, indexing.IndexingSupport.BASIC, self._read
        )
        return found

    def _read(self, key: tuple[int | slice, ...]) -> AnyArray:
        where = np.asarray(self._where[key[: self._where.ndim]])
        return self._source.placed(where)[(..., *key[self._where.ndim :])]


def to_xarray(
    series: SeriesRecords,
    fill: bool | Sequence[int],
    chunks: int | str | Mapping[str, int | str] | None,
    dims: Sequence[str] | None = None,
    *,
    by_mode: bool = False,
) -> xarray.DataArray:
    """Return the values of a series by mode (where there are both), iteration, rank, call and their own dimensions."""
    grid = grid_of(series, by_mode=by_mode)
    if fill is not False:
        grid = grid.filled(None if fill is True else fill)
    outer = tuple(grid.axes)
    source, mask = _in_memory(series, grid) if chunks is None else (_in_pieces(series), None)
    names = (*outer, *_own_dims(series, dims, source.inner, outer))
    where = grid.where
    coords: dict[str, Any] = {**grid.axes, "recorded": (outer, grid.recorded)}
    coords |= {} if fill is False else {"filled": (outer, (where >= 0) & ~grid.recorded)}
    coords |= {} if mask is None else {"mask": (names, mask.placed(where))}
    data = source.placed(where) if chunks is None else _in_chunks(_Cells(source, where), names, chunks)
    return xarray.DataArray(data, coords, names, name=series.path, attrs=_attributes(series))


def _in_chunks(cells: _Cells, dims: Sequence[str], asked: int | str | Mapping[str, int | str]) -> xarray.Variable:
    """Return the cells as an array of dask's, in pieces of the sizes asked for."""
    sizes = {"iteration": "auto", **asked} if isinstance(asked, Mapping) else {"iteration": asked}
    if unknown := [str(name) for name in sizes if name not in dims]:
        raise BadArgumentError(f"chunks= names {', '.join(unknown)}; the dimensions are {', '.join(dims)}")
    each = sizes["iteration"]
    if each != "auto" and (type(each) is not int or each < 1):
        raise BadArgumentError(
            f'chunks= takes a number of iterations, "auto", or a dict of sizes by dimension, not {each!r}'
        )
    with needs("to_xarray(chunks=...)", "dask"):
        import dask.array  # noqa: F401
    whole = xarray.Variable(dims, indexing.LazilyIndexedArray(cells))
    return whole.chunk(sizes, name=f"byname-{uuid.uuid4().hex}")  # else dask would read the values to find a name


def together(found: Mapping[str, SeriesRecords], *how: Any) -> xarray.DataArray:
    """Return the arrays of several places as one, with their paths as its first dimension."""
    if not found:
        raise BynameError("nothing was recorded at these places")
    by_mode = len({mode for series in found.values() for mode in np.unique(series.mode_names)}) > 1
    arrays = {path: to_xarray(series, *how, by_mode=by_mode) for path, series in found.items()}
    if any("mask" in one.coords for one in arrays.values()):
        arrays = {path: one if "mask" in one.coords else _masked(one) for path, one in arrays.items()}
    inner = {path: tuple(one.sizes[dim] for dim in one.dims if dim not in _OUTER) for path, one in arrays.items()}
    if len({*inner.values()}) > 1:
        shapes = listed([f"{path} {shape}" for path, shape in inner.items()], 4)
        raise BynameError(f"the values of these places have different shapes ({shapes}): take them one by one")
    dtype = np.result_type(*(one.dtype for one in arrays.values()))
    known = np.concatenate([np.zeros(0, dtype), *(np.ravel(one) for one in arrays.values() if dtype.kind == "O")])
    empty = {"values": np.full(1, _missing(known), dtype)[0], "recorded": False, "filled": False, "mask": False}
    named = [one.drop_attrs().to_dataset(name="values") for one in arrays.values()]
    join: Any = {"join": "outer", "data_vars": "all", "coords": "different", "compat": "equals"}
    return xarray.concat(named, xarray.Variable("path", [*arrays]), fill_value=empty, **join)["values"].rename(None)


def _masked(array: xarray.DataArray) -> xarray.DataArray:
    """Return an array without padding with the mask that says so: the masks of others do not hold for it."""
    there = array.recorded | array.filled if "filled" in array.coords else array.recorded
    return array.assign_coords(mask=there.broadcast_like(array))


_OUTER = ("mode", "iteration", "rank", "call")


def _own_dims(
    series: SeriesRecords, asked: Sequence[str] | None, inner: tuple[int, ...], outer: Sequence[str]
) -> tuple[str, ...]:
    """Return the names of the values' own dimensions: those asked for, or ``dim_0``, ``dim_1`` ..."""
    if asked is None:
        return tuple(f"dim_{number}" for number in range(len(inner)))
    names = (asked,) if isinstance(asked, str) else tuple(asked)
    right = all(type(name) is str and name not in outer for name in names) and len({*names}) == len(names)
    if len(names) != len(inner) or not right:
        raise BadArgumentError(
            f"dims= takes one name for each dimension of the values of {series.path}, which have shape {inner}; no "
            f"name twice, and none of {', '.join(outer)}; not {names!r:.80}"
        )
    return names


def _attributes(series: SeriesRecords) -> dict[str, str | int]:
    asked = {} if series.sampling is None else series.sampling.facts()
    return {"path": series.path, "byname_version": version(), **asked}


def _in_memory(series: SeriesRecords, grid: Grid) -> tuple[_Source, _Source | None]:
    """Return all numbers, padded where their sizes differ, and which of them are no padding."""
    shapes = [tuple(shape) for shape in series.shapes]
    if len({len(shape) for shape in shapes}) > 1:
        known = listed(sorted({str(shape) for shape in shapes}), 4)
        raise BynameError(f"the values of {series.path} differ in their number of dimensions ({known}): use .values")
    inner = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
    bounded(
        grid.where.size * math.prod(inner),
        sum(map(math.prod, shapes)),
        f"of {series.path}, of shape {grid.where.shape[-3:] + inner},",
    )
    if len(set(shapes)) > 1:
        return _padded(series, shapes, inner)
    array = to_numpy(series.values, shapes)
    if array.dtype == object and inner:
        raise _unlike(series)
    return _of_array(array), None


def _of_array(array: AnyArray) -> _Source:
    return _Source(array.__getitem__, array.shape[1:], array.dtype, _missing(array))


def _padded(series: SeriesRecords, shapes: list[tuple[int, ...]], inner: tuple[int, ...]) -> tuple[_Source, _Source]:
    pieces = [numpy_of(cropped(value, shape)) for value, shape in zip(series.values, shapes, strict=True)]
    dtype = exact_dtype(piece.dtype for piece in pieces)
    if dtype is None:
        raise _unlike(series)
    missing = _missing(np.zeros(0, dtype))
    array = np.full((len(pieces), *inner), missing, dtype)
    mask = np.zeros(array.shape, bool)
    for number, piece in enumerate(pieces):
        own = tuple(slice(0, size) for size in piece.shape)
        array[number][own] = piece
        mask[number][own] = True
    return _of_array(array), _of_array(mask)


def _unlike(series: SeriesRecords) -> BynameError:
    types = sorted({str(getattr(value, "dtype", type(value).__name__)) for value in series.values})
    return BynameError(f"one array cannot hold the values of {series.path}, of types {', '.join(types)}: use .values")


def _missing(array: AnyArray) -> Any:
    if array.dtype == object:
        return "" if all(type(value) is str for value in array) else None
    return {"f": np.nan, "c": complex(np.nan, np.nan)}.get(array.dtype.kind, 0)


def _in_pieces(series: SeriesRecords) -> _Source:
    """Return all numbers as `_in_memory` does, but without reading a value now where they lie in a file."""
    shapes = {tuple(shape) for shape in series.shapes}
    tail = tail_of(series.values) if len(shapes) == 1 else None
    if tail is not None:
        return _Source(partial(read, series.values), tail[0], tail[1], _missing(np.zeros(0, tail[1])))
    array = to_numpy(series.values, series.shapes) if len(shapes) <= 1 else np.zeros(0, object)
    if array.dtype == object:
        raise BynameError(f"chunks= needs numbers of one shape, unlike those of {series.path}: leave it out")
    return _of_array(array)
