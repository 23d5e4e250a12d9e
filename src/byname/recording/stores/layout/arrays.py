"""How do rows get into an array of an HDF5 file without being written twice?

HDF5 makes the room, and the rows are then written there straight from where they are: past HDF5's chunk cache, which
would write a chunk again with every row that it gets, and past the journal. That is safe because nobody reads behind
the committed length of an array. It is done only in chunks that were made behind the end of the last commit, where
nothing else ever was; room that HDF5 uses again, text and filtered chunks take the usual way through HDF5.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy

from byname.recording.stores.journal.journal import JournaledFile

__all__ = ["Array", "Filters", "Settings", "dimension"]

CHUNK = 512 * 1024
"""Bytes of a chunk at most: many small rows, one row, or a part of a large one."""
LEAST, FEW = 4 * 1024, 4
"""Bytes and rows of a chunk at least, as long as four rows take no more than four times these bytes."""
PACKED = 2048
"""Rows of a chunk for a filter: packed, room that is not used takes none, and each window packs its last chunk anew."""
MANY = 16
"""Short chunks of an array from which on longer ones are worth writing it anew."""


@dataclass(frozen=True, slots=True)
class Filters:
    """What HDF5 does with the values before it writes them.

    Attributes:
        code: the number of the filter, 0 for none.
        options: its settings.
    """

    code: int = 0
    options: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Settings:
    """What the arrays of a file have in common.

    Attributes:
        disk: the file.
        filters: for values.
        rank: that nearly all records have.
    """

    disk: JournaledFile
    filters: Filters
    rank: int


class Array:
    """One array of the file, that grows along its first dimension.

    Args:
        group: where it is.
        name: its name there.
        kind: the type of its elements, of NumPy or HDF5.
        shape: of a row.
        settings: of the file.
        expected: so many rows come first. HDF5 makes room for whole chunks, so their size follows from it: a place
            that has few records takes little room, and one that has many has long chunks.
        usual: what reads where nothing was written; None where every row is written.
        filtered: whether the file's filters are for it.
    """

    __slots__ = (
        "_chunk",
        "_disk",
        "_found",
        "_id",
        "_kind",
        "_pieces",
        "_shape",
        "count",
        "dataset",
        "row_bytes",
        "usual",
    )

    def __init__(
        self,
        group: Any,
        name: str,
        kind: Any,
        shape: tuple[int, ...],
        settings: Settings,
        *,
        expected: int = 1,
        usual: int | None = None,
        filtered: bool = False,
    ) -> None:
        import h5py

        self._kind = h5py.h5t.py_create(kind, logical=True) if isinstance(kind, numpy.dtype) else kind
        self._shape = shape
        self.row_bytes = math.prod(shape) * self._kind.get_size()
        self.usual = usual
        self.count = 0
        text = self._kind.get_class() == h5py.h5t.STRING  # it lies elsewhere in the file, where no filter comes
        filters = settings.filters if filtered and not text else Filters()
        self._chunk = _chunk(shape, self._kind.get_size(), PACKED if filters.code else expected)
        self._pieces = _pieces(shape, self._chunk, self.row_bytes)
        self._found: tuple[int, list[int | None]] = (-1, [])
        written = usual is None and not filters.code and not text
        self._disk = settings.disk if written else None
        space = h5py.h5s.create_simple((0, *shape), (h5py.h5s.UNLIMITED, *shape))
        how = _creation(self._chunk, usual, filters, early=written)
        access = h5py.h5p.create(h5py.h5p.DATASET_ACCESS)
        if written:
            access.set_chunk_cache(0, 0, 0.75)  # HDF5 would not see what is written past a cache that it has read into
        self._id = h5py.h5d.create(group.id, name.encode(), self._kind, space, how, dapl=access)
        self.dataset = h5py.Dataset(self._id)

    def is_short_for(self, count: int) -> bool:
        """Whether so many rows would lie in many short chunks, and could lie in longer ones."""
        return self._chunk[0] * self.row_bytes * 4 <= CHUNK and count > MANY * self._chunk[0]

    def content(self) -> numpy.ndarray[Any, Any]:
        """All rows, as the bytes that the file holds."""
        from h5py import h5s

        out = numpy.empty(self.count * self.row_bytes, numpy.uint8)
        if out.size:
            self._id.read(h5s.create_simple((self.count, *self._shape)), self._id.get_space(), out, self._kind)
        return out

    def grow(self, count: int) -> None:
        """Makes the array this long; what is not written reads as the usual value."""
        if count > self.count:
            self._id.set_extent((count, *self._shape))
            self.count = count

    def put(self, start: int, rows: numpy.ndarray[Any, Any]) -> None:
        """Writes rows, of the type of the array."""
        self.put_bytes(start, len(rows), numpy.ascontiguousarray(rows).reshape(-1).view(numpy.uint8))

    def put_bytes(self, start: int, count: int, data: numpy.ndarray[Any, Any]) -> None:
        """Writes rows at the end, given as the bytes that the file is to hold."""
        self.grow(start + count)
        if data.nbytes != count * self.row_bytes:  # HDF5 would read past the end
            raise AssertionError(f"{data.nbytes} bytes for {count} rows of {self.row_bytes}")
        per = self._chunk[0]
        for first in range(start - start % per, start + count, per):
            begin, end = max(first, start), min(first + per, start + count)
            rows = data[(begin - start) * self.row_bytes : (end - start) * self.row_bytes]
            if rows.nbytes:
                self._put_in_chunk(first, begin, end - begin, rows)

    def put_objects(self, start: int, texts: list[str]) -> None:
        """Writes texts of any length."""
        self.grow(start + len(texts))
        self.dataset[start : start + len(texts)] = texts

    def _put_in_chunk(self, first: int, begin: int, count: int, rows: numpy.ndarray[Any, Any]) -> None:
        """Writes rows that lie in one chunk, or one row that is cut into several."""
        places = self._places(first) if self._disk is not None else []
        if self._disk is None or None in places:
            self._put_by_hdf5(begin, count, rows)
            return
        before = (begin - first) * self.row_bytes  # 0 where a row is cut
        for place, (_, low, high) in zip(places, self._pieces, strict=True):
            self._disk.write_unseen(before + place, rows if len(places) == 1 else rows[low:high])

    def _places(self, first: int) -> list[int | None]:
        """Where in the file the chunks with this row begin; None for room that was something else before."""
        if self._found[0] != first and self._disk is not None:
            fence = self._disk.fence
            infos = [self._id.get_chunk_info_by_coord((first, *tail)) for tail, _, _ in self._pieces]
            offsets = [info.byte_offset for info in infos]
            self._found = first, [at if at is not None and at >= fence else None for at in offsets]
        return self._found[1]

    def _put_by_hdf5(self, start: int, count: int, rows: numpy.ndarray[Any, Any]) -> None:
        from h5py import h5s

        there = self._id.get_space()
        there.select_hyperslab((start, *(0 for _ in self._shape)), (count, *self._shape))
        self._id.write(h5s.create_simple((count, *self._shape)), there, rows, self._kind)


def dimension(group: Any, name: str, size: int | None, settings: Settings) -> Array:
    """A dimension that has a name and a length and no values of its own, as netCDF writes it.

    Args:
        group: where it is.
        name: its name there.
        size: its length; None where it grows.
        settings: of the file.
    """
    array = Array(group, name, numpy.dtype(">f4"), (), settings, usual=0)
    array.dataset.make_scale(f"This is a netCDF dimension but not a netCDF variable. {size or 0:9d}")
    if size:
        array.grow(size)
    return array


def _chunk(shape: tuple[int, ...], itemsize: int, expected: int) -> tuple[int, ...]:
    """So many rows that a chunk has about the bytes it should, or a part of one row."""
    row = max(math.prod(shape) * itemsize, 1)
    if row < CHUNK:
        few = max(LEAST // row, min(FEW, FEW * LEAST // row))
        rows = min(max(few, 1 << (expected - 1).bit_length()), CHUNK // row)
        return (max(rows, 1), *(max(size, 1) for size in shape))
    sizes = list(shape)
    for number, size in enumerate(sizes):
        below = math.prod(sizes[number + 1 :]) * itemsize
        sizes[number] = max(1, min(size, 2 * CHUNK // below))
        if sizes[number] > 1:
            break
    return (1, *sizes)


Piece = tuple[tuple[int, ...], int, int]


def _pieces(shape: tuple[int, ...], chunk: tuple[int, ...], row_bytes: int) -> list[Piece]:
    """The chunks that a row lies in, in their order: where in the row each begins, and which of its bytes it has."""
    steps = [range(0, max(size, 1), step) for size, step in zip(shape, chunk[1:], strict=True)]
    corners = list(itertools.product(*steps))
    if len(corners) == 1:
        return [(corners[0], 0, row_bytes)]
    inner = [row_bytes // math.prod(shape[: number + 1]) for number in range(len(shape))]  # bytes of one index each
    begins = [sum(at * size for at, size in zip(corner, inner, strict=True)) for corner in corners]
    return list(zip(corners, begins, [*begins[1:], row_bytes], strict=True))


def _creation(chunk: tuple[int, ...], usual: int | None, filters: Filters, *, early: bool) -> Any:
    from h5py import h5d, h5p, h5z

    how = h5p.create(h5p.DATASET_CREATE)
    how.set_chunk(chunk)
    how.set_obj_track_times(False)
    if early:
        how.set_alloc_time(h5d.ALLOC_TIME_EARLY)
        how.set_fill_time(h5d.FILL_TIME_NEVER)  # every row is written; filling the chunk first would write it twice
    if usual is not None:
        how.set_fill_value(numpy.array(usual, "<i4"))
    if filters.code:
        how.set_shuffle()
        how.set_filter(filters.code, h5z.FLAG_MANDATORY, filters.options)
    return how
