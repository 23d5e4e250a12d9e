"""To xarray: a series as an array with the coordinates (mode, iteration, rank, call)."""

from __future__ import annotations

import math
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from byname.errors import BadArgumentError, BynameError
from byname.extras import needs
from byname.recording.export import AnyArray, SeriesRecords, common_type, numpy_of, to_numpy
from byname.recording.facts import version
from byname.recording.lazy import Positions, cropped, read, tail_of
from byname.table import listed

if TYPE_CHECKING:
    import dask.array
    import xarray

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


def grid_of(series: SeriesRecords) -> Grid:
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


def _twice(series: SeriesRecords) -> str:
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


CHUNK_BYTES = 2**26
"""About what a piece of a lazy array takes where no size is asked for."""


@dataclass(frozen=True, slots=True)
class _Source:
    """Where the numbers come from: `take` gives the records at some positions, each of shape `inner`."""

    take: Callable[[Positions], AnyArray]
    inner: tuple[int, ...]
    dtype: np.dtype[Any]
    missing: Any
    mask: AnyArray | None = None

    def placed(self, where: Positions) -> AnyArray:
        """The records in the cells of a grid, and what stands for nothing in the others."""
        present = where >= 0
        out = np.full((*where.shape, *self.inner), self.missing, self.dtype)
        out[present] = self.take(where[present])
        return out

    def masked(self, where: Positions) -> AnyArray | None:
        """Which elements are values and no padding."""
        return (
            None
            if self.mask is None
            else _Source(self.mask.__getitem__, self.inner, np.dtype(bool), False).placed(where)
        )


def to_xarray(
    series: SeriesRecords,
    fill: bool | Sequence[int],
    chunks: int | str | Mapping[str, int | str] | None,
    dims: Sequence[str] | None = None,
) -> xarray.DataArray:
    """The values of a series by mode (where there are both), iteration, rank, call and their own dimensions."""
    with needs("to_xarray()", "xarray"):
        import xarray
    grid = grid_of(series)
    if fill is not False:
        grid = grid.filled(None if fill is True else fill)
    several = len(grid.modes) > 1
    where = grid.where if several else grid.where.reshape(grid.where.shape[1:])
    source = _in_memory(series, grid) if chunks is None else _in_pieces(series)
    outer = _OUTER[0 if several else 1 :]
    names = (*outer, *_own_dims(series, dims, source.inner, outer))
    data = source.placed(where) if chunks is None else _lazy(source, where, _per_piece(chunks, source, where))
    mask = source.masked(where)
    coords = _coordinates(grid, outer, several, fill is not False)
    coords |= {} if mask is None else {"mask": (names, mask)}
    array: xarray.DataArray = xarray.DataArray(data, coords, names, name=series.path, attrs=_attributes(series))
    return _rechunked(array, chunks)


def together(arrays: Mapping[str, xarray.DataArray]) -> xarray.DataArray:
    """Return the arrays of several places as one, with their paths as its first dimension.

    Raises:
        BynameError: there is none, or their values have different shapes.
    """
    if not arrays:
        raise BynameError("nothing was recorded at these places")
    with needs("to_xarray()", "xarray"):
        import xarray

    inner = {path: tuple(one.sizes[dim] for dim in one.dims if dim not in _OUTER) for path, one in arrays.items()}
    if len({*inner.values()}) > 1:
        shapes = listed([f"{path} {shape}" for path, shape in inner.items()], 4)
        raise BynameError(f"the values of these places have different shapes ({shapes}): take them one by one")
    paths = xarray.Variable("path", [*arrays])
    whole: xarray.DataArray = xarray.concat(
        [one.drop_attrs() for one in arrays.values()], paths, join="outer", coords="different", compat="equals"
    )
    return whole.rename(None)


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
            f"dims= has a name of its own for each dimension of the values of {series.path}, which have shape {inner}; "
            f"not {names!r:.80}, and none of {', '.join(outer)}"
        )
    return names


def _attributes(series: SeriesRecords) -> dict[str, str | int]:
    asked = {} if series.sampling is None else series.sampling.facts()
    return {"path": series.path, "byname_version": version(), **asked}


def _coordinates(grid: Grid, outer: tuple[str, ...], several: bool, filled: bool) -> dict[str, Any]:
    axes = {"mode": grid.modes, "iteration": grid.iterations, "rank": grid.ranks, "call": grid.calls}
    shape = tuple(len(axes[name]) for name in outer)
    coords: dict[str, Any] = {name: axes[name] for name in outer}
    coords["recorded"] = (outer, grid.recorded.reshape(shape))
    if filled:
        coords["filled"] = (outer, ((grid.where >= 0) & ~grid.recorded).reshape(shape))
    return coords


def _in_memory(series: SeriesRecords, grid: Grid) -> _Source:
    """All numbers at once, padded where their sizes differ."""
    shapes = [tuple(shape) for shape in series.shapes]
    if len({len(shape) for shape in shapes}) > 1:
        known = listed(sorted({str(shape) for shape in shapes}), 4)
        raise BynameError(f"the values of {series.path} differ in their number of dimensions ({known}): use .values")
    inner = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
    bounded(
        grid.where.size * math.prod(inner),
        sum(map(math.prod, shapes)),
        f"of {series.path}, of shape {grid.where.shape[1:] + inner},",
    )
    if len(set(shapes)) > 1:
        return _padded(series, shapes, inner)
    array = to_numpy(series.values, shapes)
    if array.dtype == object and inner:
        raise _unlike(series)
    return _Source(array.__getitem__, array.shape[1:], array.dtype, _missing(array))


def _padded(series: SeriesRecords, shapes: list[tuple[int, ...]], inner: tuple[int, ...]) -> _Source:
    pieces = [numpy_of(cropped(value, shape)) for value, shape in zip(series.values, shapes, strict=True)]
    dtype = common_type(piece.dtype for piece in pieces)
    if dtype is None:
        raise _unlike(series)
    missing = _missing(np.zeros(0, dtype))
    array = np.full((len(pieces), *inner), missing, dtype)
    mask = np.zeros(array.shape, bool)
    for number, piece in enumerate(pieces):
        own = tuple(slice(0, size) for size in piece.shape)
        array[number][own] = piece
        mask[number][own] = True
    return _Source(array.__getitem__, inner, dtype, missing, mask)


def _unlike(series: SeriesRecords) -> BynameError:
    types = sorted({str(getattr(value, "dtype", type(value).__name__)) for value in series.values})
    return BynameError(
        f"the values of {series.path} are of types that no array holds together ({', '.join(types)}): use .values"
    )


def _missing(array: AnyArray) -> Any:
    """What stands in a cell without a value."""
    if array.dtype == object:
        return "" if all(type(value) is str for value in array) else None
    return {"f": np.nan, "c": complex(np.nan, np.nan)}.get(array.dtype.kind, 0)


def _in_pieces(series: SeriesRecords) -> _Source:
    """The same without reading a value now, where the values lie in a file."""
    shapes = {tuple(shape) for shape in series.shapes}
    tail = tail_of(series.values) if len(shapes) == 1 else None
    if tail is not None:
        return _Source(partial(read, series.values), tail[0], tail[1], _missing(np.zeros(0, tail[1])))
    array = to_numpy(series.values, series.shapes) if len(shapes) <= 1 else np.zeros(0, object)
    if array.dtype == object:
        raise BynameError(f"chunks= is for numbers of one shape, which those of {series.path} are not: leave it out")
    return _Source(array.__getitem__, array.shape[1:], array.dtype, _missing(array))


def _per_piece(chunks: int | str | Mapping[str, int | str], source: _Source, where: Positions) -> int:
    """The number of iterations in one piece."""
    asked = chunks.get("iteration", "auto") if isinstance(chunks, Mapping) else chunks
    if asked == "auto":
        iterations: int = max(where.shape[-3], 1)
        each = where.size // iterations * math.prod(source.inner) * source.dtype.itemsize
        fitting: int = CHUNK_BYTES // max(each, 1)
        return min(max(fitting, 1), iterations)
    if type(asked) is not int or asked < 1:
        raise BadArgumentError(
            f'chunks= is a number of iterations, "auto", or a dict of sizes by dimension, not {asked!r}'
        )
    return asked


def _lazy(source: _Source, where: Positions, iterations: int) -> dask.array.Array:
    with needs("to_xarray(chunks=...)", "dask"):
        import dask.array
    sizes = tuple(iterations if dim == where.ndim - 3 else -1 for dim in range(where.ndim))
    cells = dask.array.from_array(where, chunks=sizes, name=False)  # type: ignore[no-untyped-call]
    everything = range(where.ndim + len(source.inner))
    blocks: dask.array.Array = dask.array.map_blocks(  # type: ignore[no-untyped-call]
        source.placed,
        cells,
        name=f"byname-{uuid.uuid4().hex}",  # else dask would read the values to find a name for them
        dtype=source.dtype,
        chunks=(*cells.chunks, *((size,) for size in source.inner)),
        new_axis=list(everything[where.ndim :]),
        meta=np.empty((0,) * len(everything), source.dtype),
    )
    return blocks


def _rechunked(array: xarray.DataArray, chunks: int | str | Mapping[str, int | str] | None) -> xarray.DataArray:
    others = {name: size for name, size in chunks.items() if name != "iteration"} if isinstance(chunks, Mapping) else {}
    unknown = [str(name) for name in others if name not in array.dims]
    if unknown:
        raise BadArgumentError(
            f"chunks= names {', '.join(unknown)}; the dimensions are {', '.join(map(str, array.dims))}"
        )
    return array.chunk(others) if others else array
