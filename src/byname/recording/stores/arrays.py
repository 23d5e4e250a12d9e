"""Arrays: datasets of a file that grow by rows, their chunks, types and filters, and the names of their groups.

HDF5 has no type for bfloat16, but lets a file describe any float: two bytes, eight bits of exponent, which other tools
convert to float32. The eight-bit floats differ from it in how they write infinity, so they lie as bytes, and the name
of the dtype beside them says what they are. Bytes are never converted on the way: a NaN keeps its payload.

HDF5 makes the room, and the rows are then written there straight from where they are: past HDF5's chunk cache, which
would write a chunk again with every row that it gets, and past the journal. That is safe because nobody reads behind
the committed length of an array. It is done only in chunks that were made behind the end of the last commit, where
nothing else ever was; room that HDF5 uses again, text and filtered chunks take the usual way through HDF5.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias
from urllib.parse import unquote

import numpy
import torch

from byname.errors import BadArgumentError
from byname.recording.stores.journal.journaled_file import JournaledFile

FORMAT, VERSION = "byname recording", 2
ASKED = {"dtype": "converted_to"}
"""Attributes with other names than what was asked has: the attribute `dtype` says what the values are."""
_TAKEN = (".", "byname")
"""Names that HDF5 gives a meaning, or the journal (see `byname.recording.stores.journal.journaled_file`)."""


def group_name(path: str) -> str:
    """The name of a group for a place.

    Examples:
        >>> group_name("forward.x['a/b']")
        "forward.x['a%2Fb']"
    """
    safe = path.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    return f"%{ord(safe[0]):02X}{safe[1:]}" if safe in _TAKEN else safe


def place_of(group: str) -> str:
    """The place that a group is named by."""
    return unquote(group)


_NATIVE = {
    torch.bool: "bool",
    torch.float16: "<f2",
    torch.float32: "<f4",
    torch.float64: "<f8",
    torch.complex64: "<c8",
    torch.complex128: "<c16",
    torch.int8: "<i1",
    torch.int16: "<i2",
    torch.int32: "<i4",
    torch.int64: "<i8",
    torch.uint8: "<u1",
    torch.uint16: "<u2",
    torch.uint32: "<u4",
    torch.uint64: "<u8",
}


@lru_cache(maxsize=64)
def file_type(dtype: torch.dtype) -> Any:
    """The HDF5 type (``h5py.h5t.TypeID``) of the elements of tensors of a dtype."""
    import numpy
    from h5py import h5t

    if dtype in _NATIVE:
        return numbers(_NATIVE[dtype])
    if dtype is torch.bfloat16:
        kind = h5t.IEEE_F32LE.copy()
        kind.set_fields(15, 7, 8, 0, 7)  # where the sign, the exponent and the mantissa are, and how long
        kind.set_size(2)
        kind.set_ebias(127)
        return kind
    if dtype is torch.complex32:
        return h5t.py_create(numpy.dtype([("r", "<f2"), ("i", "<f2")]))
    if dtype.itemsize == 1:
        return numbers("<u1")
    return h5t.py_create(numpy.dtype(f"V{dtype.itemsize}"))


def taken_as(dtype: torch.dtype) -> torch.dtype:
    """The dtype that NumPy has for the numbers of another: float32 for bfloat16, without loss."""
    if dtype in _NATIVE:
        return dtype
    return torch.complex64 if dtype.is_complex else torch.float32


@lru_cache(maxsize=1)
def strings() -> Any:
    """The HDF5 type of text: UTF-8 of any length."""
    import h5py

    return h5py.h5t.py_create(h5py.string_dtype(), logical=True)


@lru_cache(maxsize=16)
def numbers(code: str) -> Any:
    """The HDF5 type of what NumPy has under a code such as ``"<i8"``."""
    import numpy
    from h5py import h5t

    return h5t.py_create(numpy.dtype(code), logical=True)


@lru_cache(maxsize=1)
def modes() -> Any:
    """The HDF5 type of modes: 0 is called train, 1 eval."""
    from h5py import h5t

    kind = h5t.enum_create(h5t.STD_I8LE)
    kind.enum_insert(b"train", 0)
    kind.enum_insert(b"eval", 1)
    return kind


CHUNK = 512 * 1024
"""Bytes of a chunk at most: many small rows, one row, or a part of a large one."""
LEAST = 1024
"""Bytes of a chunk at least, where a row has fewer: a place with one record takes little more than its value."""
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


class GrowingArray:
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
        "_packed",
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
        self._packed = bool(filters.code)
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

    @property
    def stored_bytes(self) -> int:
        """How many bytes the rows take in the file; room that was made for further ones does not count."""
        whole = int(self.count * self.row_bytes)
        return min(whole, int(self._id.get_storage_size())) if self._packed else whole

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
        if data.nbytes != count * self.row_bytes:  # HDF5 would read past the end
            raise AssertionError(f"{data.nbytes} bytes for {count} rows of {self.row_bytes}")
        self.grow(start + count)
        self._write(self._by_chunks(start, count, data))

    def put_each(self, start: int, rows: Sequence[numpy.ndarray[Any, Any]]) -> None:
        """Writes rows at the end, each given as its bytes; those that lie one behind the other in one go."""
        if any(row.nbytes != self.row_bytes for row in rows):
            raise AssertionError(f"rows of {[row.nbytes for row in rows]} bytes for rows of {self.row_bytes}")
        self.grow(start + len(rows))
        self._write((number - number % self._chunk[0], number, 1, row) for number, row in enumerate(rows, start))

    def _by_chunks(self, start: int, count: int, data: numpy.ndarray[Any, Any]) -> Iterator[_Rows]:
        per = self._chunk[0]
        for first in range(start - start % per, start + count, per):
            begin, end = max(first, start), min(first + per, start + count)
            yield first, begin, end - begin, data[(begin - start) * self.row_bytes : (end - start) * self.row_bytes]

    def put_objects(self, start: int, texts: list[str]) -> None:
        """Writes texts of any length."""
        self.grow(start + len(texts))
        self.dataset[start : start + len(texts)] = texts

    def _write(self, several: Iterable[_Rows]) -> None:
        """Writes rows, each time of one chunk, or one row that is cut into several."""
        if not self.row_bytes:
            return
        pieces: list[tuple[int, numpy.ndarray[Any, Any]]] = []
        for first, begin, count, rows in several:
            places = self._places(first) if self._disk is not None else [None]
            if None in places:
                self._put_by_hdf5(begin, count, rows)
                continue
            before = (begin - first) * self.row_bytes  # 0 where a row is cut
            for place, (_, low, high) in zip(places, self._pieces, strict=True):
                assert place is not None
                pieces.append((before + place, rows if len(places) == 1 else rows[low:high]))
        if self._disk is not None and pieces:
            self._disk.write_unseen(pieces)

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


def dimension(group: Any, name: str, size: int | None, settings: Settings) -> GrowingArray:
    """A dimension that has a name and a length and no values of its own, as netCDF writes it.

    Args:
        group: where it is.
        name: its name there.
        size: its length; None where it grows.
        settings: of the file.
    """
    array = GrowingArray(group, name, numpy.dtype(">f4"), (), settings, usual=0)
    array.dataset.make_scale(f"This is a netCDF dimension but not a netCDF variable. {size or 0:9d}")
    if size:
        array.grow(size)
    return array


def _chunk(shape: tuple[int, ...], itemsize: int, expected: int) -> tuple[int, ...]:
    """So many rows that a chunk has about the bytes it should, or a part of one row."""
    row = max(math.prod(shape) * itemsize, 1)
    if row < CHUNK:
        rows = min(max(LEAST // row, 1 << (expected - 1).bit_length()), CHUNK // row)
        return (max(rows, 1), *(max(size, 1) for size in shape))
    sizes = list(shape)
    for number, size in enumerate(sizes):
        below = math.prod(sizes[number + 1 :]) * itemsize
        sizes[number] = max(1, min(size, 2 * CHUNK // below))
        if sizes[number] > 1:
            break
    return (1, *sizes)


_Rows: TypeAlias = tuple[int, int, int, "numpy.ndarray[Any, Any]"]
"""Rows of one chunk: the first row of the chunk, the first of these, how many they are, and their bytes."""
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


def filters_of(compression: Any) -> Filters:
    """What HDF5 is to do with the values.

    Args:
        compression: None, ``"gzip"``, ``"lzf"``, a level with its name such as ``("gzip", 9)``, the number of a filter
            that is installed, alone or with its options, or an object of hdf5plugin.

    Raises:
        BadArgumentError: if there is no such filter here; the message has the names.
    """
    name, options = compression if type(compression) is tuple and len(compression) == 2 else (compression, None)
    if name is None:
        return Filters()
    if name == "gzip":
        return Filters(1, (_level(4 if options is None else options),))
    if name == "lzf" and options is None:
        return Filters(32000)
    if hasattr(type(name), "filter_id"):  # h5py.filters.FilterRefBase, of which hdf5plugin's filters are
        return _installed(name.filter_id, tuple(name.filter_options), compression)
    if type(name) is int:
        return _installed(name, (options,) if type(options) is int else tuple(options or ()), compression)
    raise _unknown(compression)


def _level(level: Any) -> int:
    if type(level) is not int or not 0 <= level <= 9:
        raise BadArgumentError(f"gzip has the levels 0 (fast) to 9 (small), not {level!r:.60}")
    return level


def _installed(code: int, options: tuple[int, ...], asked: Any) -> Filters:
    from h5py import h5z

    can_write = (
        0 < code < 2**16 and h5z.filter_avail(code) and h5z.get_filter_info(code) & h5z.FILTER_CONFIG_ENCODE_ENABLED
    )
    if not can_write or not all(type(one) is int for one in options):
        raise _unknown(asked)
    return Filters(code, options)


def _unknown(asked: Any) -> BadArgumentError:
    return BadArgumentError(
        f"compression={asked!r:.60} is no filter here; there are None, 'gzip', 'lzf', ('gzip', 0 to 9), "
        "and the numbers or objects of filters that are installed (hdf5plugin has many)"
    )
