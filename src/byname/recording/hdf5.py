"""HDF5: the file that a closed recording is: an array for the values of each place, in one piece, and an index.

Whoever reads it by h5py, xarray or other programs finds groups, arrays, dimensions and attributes; `byname.open` goes
by the index.

HDF5 has no type for bfloat16, but lets a file describe any float: two bytes, eight bits of exponent, which other tools
convert to float32. The eight-bit floats differ from it in how they write infinity, so they lie as bytes, and the name
of the dtype beside them says what they are. Bytes are never converted on the way: a NaN keeps its payload.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy
import torch
from numpy.typing import NDArray

from byname.codec import bytes_of, dtype_named
from byname.recording.frame import COLUMNS, ENTRY, SEVERAL, StoredPlace, framed
from byname.recording.recording_file import FORMAT, MARK, VERSION, RecordingFile
from byname.recording.stored import Numbers, OpenFile, StoredValues, neighbours
from byname.recording.value_type import ValueType, json_of, numpy_dtype, numpy_has

BUFFER = 1 << 20
"""Bytes that are put together to be written at once: they stay in the processor's cache."""
_LARGE, _AT_ONCE = 1 << 17, 1 << 24
"""The least bytes of a run that the system copies itself, and the most that it copies at once."""
_CHUNK = 1 << 20
"""Bytes of a chunk that gzip packs, or one row that has more."""
_TAKEN = (".", "byname")
"""Names that HDF5 gives a meaning, or a recording."""
_TOGETHER = 4000
"""Arrays that a dimension lists; a longer list is too large for an attribute, and nobody who reads needs it."""
_DIMENSIONS = 31
"""Of a value that has a row in an array: HDF5 knows of 32, and one is that of the records."""


def group_name(path: str) -> str:
    """Return the name of a group for a place.

    >>> group_name("forward.x['a/b']")
    "forward.x['a%2Fb']"
    """
    safe = path.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    return f"%{ord(safe[0]):02X}{safe[1:]}" if safe in _TAKEN else safe


@lru_cache(maxsize=64)
def _numbers(code: str) -> Any:
    """Return the HDF5 type of what NumPy has under a code such as ``"<i8"``."""
    from h5py import h5t

    return h5t.py_create(numpy.dtype(code), logical=True)


@lru_cache(maxsize=1)
def _modes() -> Any:
    """Return the HDF5 type of modes: 0 is called train, 1 eval."""
    from h5py import h5t

    kind = h5t.enum_create(h5t.STD_I8LE)
    kind.enum_insert(b"train", 0)
    kind.enum_insert(b"eval", 1)
    return kind


@lru_cache(maxsize=64)
def _elements(kind: ValueType) -> Any:
    from h5py import h5t

    dtype = dtype_named(kind.dtype) if kind.kind == "tensor" else None
    if dtype is None or numpy_has(dtype) is dtype:
        return _numbers(numpy_dtype(kind).str)
    if dtype is torch.bfloat16:
        found = h5t.IEEE_F32LE.copy()
        found.set_fields(15, 7, 8, 0, 7)  # where the sign, the exponent and the mantissa are, and how long
        found.set_size(2)
        found.set_ebias(127)
        return found
    if dtype is torch.complex32:
        return h5t.py_create(numpy.dtype([("r", "<f2"), ("i", "<f2")]))
    return _numbers("<u1") if dtype.itemsize == 1 else h5t.py_create(numpy.dtype(f"V{dtype.itemsize}"))


def laid_out(file: Any, log: RecordingFile, level: int | None) -> tuple[int, int, _Copies]:
    """Make the groups, arrays and attributes of a log in an HDF5 file that is open, and no values.

    Return where the mark and the index are, and what is to be copied. Values are packed by gzip if there is a `level`.
    """
    writer = _Writer(file, log.file, level)
    mark = writer.array(file.create_group("byname"), "mark", _numbers("<u1"), (MARK.size,))
    for place in log.places.values():
        writer.place(place)
    writer.attach()
    _describe(file, log, max((place.last for place in log.places.values()), default=-1))
    frame = b"".join(writer.index(log))
    index = writer.array(file["byname"], "index", _numbers("<u1"), (len(frame),), [frame])
    return mark, index, writer.copies


class ByteRange(NamedTuple):
    """Bytes that lie together in a log."""

    at: int
    size: int


_Copies: TypeAlias = list[tuple[int, Iterable[Any]]]
"""Where in a file bytes are to be written, and which, in pieces: buffers, or runs of the log."""


def _describe(file: Any, log: RecordingFile, last: int) -> None:
    run = {**log.run, "format": FORMAT, "version": VERSION}
    coded = sorted(name for name, fact in run.items() if not _native(fact))
    for name, fact in run.items():
        file.attrs[name] = json.dumps(fact, default=str) if name in coded else fact
    file.attrs["json"] = json.dumps(coded)
    file.attrs["missing"] = json.dumps(log.missing)
    if log.ends:
        file.attrs["ends"] = json.dumps(log.ends)
    file.attrs.update(complete=log.complete, closed=log.ended, last_iteration=numpy.int64(last))


def _native(fact: Any) -> bool:
    if type(fact) is int:
        return -(2**63) <= fact < 2**63
    return type(fact) in (bool, float) or (type(fact) is str and "\0" not in fact and fact.isprintable())


class _Writer:
    """Makes the groups and arrays of an HDF5 file, into which the values of a log are then copied past HDF5.

    Values are packed if there is a `level` of gzip.
    """

    def __init__(self, file: Any, log: OpenFile, level: int | None) -> None:
        self._file, self._log, self._level = file, log, level
        self._buffer = memoryview(bytearray(BUFFER))
        self._places: list[tuple[str, Any]] = []
        self._types: dict[ValueType, int] = {}
        self._entries: list[NDArray[Any]] = []
        self._columns: dict[bytes, tuple[Any, int]] = {}
        self._where: list[list[int]] = []
        self._chunks: dict[int, dict[str, Any]] = {}
        self._scales: dict[tuple[str, int], Any] = {}
        self._attached: dict[Any, tuple[Any, list[Any]]] = {}
        self.copies: _Copies = []

    def place(self, place: StoredPlace) -> None:
        import h5py

        how = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
        how.set_attr_phase_change(32, 32)  # attributes lie in the header: a heap of their own takes two kilobytes
        group = h5py.Group(h5py.h5g.create(self._file.id, group_name(place.path).encode(), gcpl=how))
        values, columns = place.values(), self._records(group, place.records())
        layout, entries, types = self._values(group, place, values)
        known = numpy.array([self._types.setdefault(kind, len(self._types)) for kind in types], "<i4")
        entries["place"], entries["records"], entries["type"] = len(self._places), columns, known[entries["type"]]
        self._entries.append(entries)
        self._places.append((place.path, None if place.sampling is None else place.sampling.facts()))
        for name, fact in _attributes(place, values.types, layout).items():
            group.attrs[name] = fact

    def index(self, log: RecordingFile) -> list[Any]:
        """Return the buffers of the frame by which `byname.open` reads the file."""
        facts = {
            "run": log.run,
            "missing": log.missing,
            "closed": log.ended,
            "complete": log.complete,
            "ends": [*log.ends.items()],
            "places": self._places,
            "types": [kind.facts() for kind in self._types],
            "columns": self._where,
            "packed": self._chunks,
        }
        return framed(facts, numpy.concatenate([numpy.empty(0, ENTRY), *self._entries]))

    def _records(self, group: Any, records: NDArray[Any]) -> int:
        key = records.tobytes()
        if key in self._columns:
            first, number = self._columns[key]
            for name in COLUMNS:
                group[name] = first[name]
            return number
        at = [self._column(group, "iterations", records["iteration"])]
        group["iterations"].make_scale("iterations")
        at += [self._column(group, name, records[COLUMNS[name]]) for name in ("ranks", "calls")]
        at.append(self._column(group, "modes", records["eval"], _modes()))
        self._where.append(at)
        self._columns[key] = group, len(self._where) - 1
        return len(self._where) - 1

    def _values(
        self, group: Any, place: StoredPlace, values: StoredValues
    ) -> tuple[str, NDArray[Any], Sequence[ValueType]]:
        """Write the values in the layout that fits them; return it, and the entries and types that speak of them."""
        import h5py

        types, entries, pieces = values.types, _together(place.entries, values), self._pieces(place.entries)
        layout = _layout(values)
        row = () if layout == "bytes" else _row(types)
        if layout == "bytes":
            texts = [_text(values, number) for number in range(len(values))]
            group.create_dataset("values", data=texts, dtype=h5py.string_dtype())
            self._attach(group, "values", ("iterations",))
        elif len({kind.shape for kind in types}) > 1 or any(kind.unpadded is not None for kind in types):
            shapes = numpy.array([kind.own_shape for kind in types], "<i8").reshape(len(types), len(row))
            self._column(group, "shapes", shapes[values.which], dims=("axes",))
        if layout == "padded":
            types, pieces = [replace(kind, row=row) for kind in types], _padded(values, row)
            entries["size"] = entries["count"].astype("<i8") * (types[0].bytes or 0)
        name, kind = ("bytes", _numbers("<u1")) if layout == "bytes" else ("values", _elements(types[0]))
        ends = numpy.cumsum(entries["size"])
        shape: tuple[int, ...] = (int(ends[-1]) // kind.get_size(),)
        dims = ["elements"]
        if layout == "flat":
            self._column(group, "ends", numpy.cumsum(values.sizes) // kind.get_size())
        elif layout != "bytes":
            shape, dims = (len(values), *row), ["iterations", *(f"dim_{number}" for number in range(len(row)))]
        entries["values"] = self._array_of_values(group, name, kind, shape, pieces) + ends - entries["size"]
        self._attach(group, name, dims)
        if dims[0] == "iterations":
            group["values"].attrs["coordinates"] = "ranks calls modes"
        return layout, entries, types

    def _pieces(self, entries: NDArray[Any]) -> Iterator[Any]:
        """Return the bytes of entries in pieces: long runs as such, if they need not be packed."""
        at, sizes = entries["values"], entries["size"]
        runs = [*_runs(at, sizes, _AT_ONCE)]
        if self._level is None and int(sizes.sum()) >= len(runs) * _LARGE:
            return iter(runs)
        return _gathered(self._log, _runs(at, sizes, BUFFER), self._buffer)  # which has nothing of this writer

    def _array_of_values(self, group: Any, name: str, kind: Any, shape: tuple[int, ...], pieces: Iterator[Any]) -> int:
        """Make an array of values, packed by gzip if it is to be; return where it lies, or 0."""
        row = math.prod(shape[1:]) * kind.get_size()
        if self._level is None or not row * shape[0] or row >= 2**31:
            return self.array(group, name, kind, shape, pieces)
        from h5py import h5d, h5p, h5s

        rows = min(max(1, _CHUNK // row), shape[0])
        how = h5p.create(h5p.DATASET_CREATE)
        how.set_chunk((rows, *shape[1:]))
        how.set_shuffle()
        how.set_deflate(self._level)
        how.set_obj_track_times(False)
        made = h5d.create(group.id, name.encode(), kind, h5s.create_simple(shape), how)
        for number, chunk in enumerate(_chunks(pieces, rows * row)):
            shuffled = numpy.frombuffer(chunk, numpy.uint8).reshape(-1, kind.get_size()).T.tobytes()
            made.write_direct_chunk((number * rows, *(0 for _ in shape[1:])), zlib.compress(shuffled, self._level))
        infos = [made.get_chunk_info(number) for number in range(made.get_num_chunks())]
        infos.sort(key=lambda info: info.chunk_offset)
        chunks = [[info.byte_offset, info.size] for info in infos]
        self._chunks[len(self._places)] = {"chunk": rows * row, "each": kind.get_size(), "chunks": chunks}
        return 0

    def array(self, group: Any, name: str, kind: Any, shape: tuple[int, ...], pieces: Iterable[Any] = ()) -> int:
        """Make an array in one piece, with room for all of it; return where in the file that is."""
        from h5py import h5d, h5p, h5s

        how = h5p.create(h5p.DATASET_CREATE)
        how.set_layout(h5d.CONTIGUOUS)
        how.set_alloc_time(h5d.ALLOC_TIME_EARLY)
        how.set_fill_time(h5d.FILL_TIME_NEVER)
        how.set_obj_track_times(False)
        made = h5d.create(group.id, name.encode(), kind, h5s.create_simple(shape), how)
        at: int = made.get_offset() or 0
        if made.get_storage_size():
            self.copies.append((at, pieces))
        return at

    def _column(self, group: Any, name: str, column: NDArray[Any], kind: Any = None, dims: Sequence[str] = ()) -> int:
        data = numpy.ascontiguousarray(column).reshape(-1).view(numpy.uint8).data
        at = self.array(group, name, kind or _numbers(column.dtype.str), column.shape, [data])
        if name != "iterations":
            self._attach(group, name, ("iterations", *dims))
        return at

    def _attach(self, group: Any, name: str, dims: Sequence[str]) -> None:
        """Name the dimensions of an array as netCDF does, so that xarray knows them.

        h5py's ``attach_scale`` would write the list of all arrays of a dimension anew with each of them.
        """
        import h5py

        array, several = group[name], numpy.empty(len(dims), object)
        for number, (dim, size) in enumerate(zip(dims, array.shape, strict=True)):
            if dim not in group:
                self._name_dimension(group, dim, size)
            scale = group[dim]
            several[number] = numpy.array([scale.ref], h5py.ref_dtype)
            self._attached.setdefault(scale.id.get_offset() or (dim, size), (scale, []))[1].append((array.ref, number))
        array.attrs.create("DIMENSION_LIST", several, dtype=h5py.vlen_dtype(h5py.ref_dtype))

    def _name_dimension(self, group: Any, name: str, size: int) -> None:
        """Give a group a dimension that has a name and a length and no values of its own, as netCDF writes it."""
        if (name, size) in self._scales:
            group[name] = self._scales[name, size]
            return
        self._scales[name, size] = group.create_dataset(name, (size,), ">f4", track_times=False)
        group[name].make_scale(f"This is a netCDF dimension but not a netCDF variable. {size:9d}")

    def attach(self) -> None:
        """Write into each dimension which arrays have it."""
        import h5py

        kind = numpy.dtype([("dataset", h5py.ref_dtype), ("dimension", "<i4")])
        for scale, several in self._attached.values():
            if len(several) <= _TOGETHER:
                scale.attrs.create("REFERENCE_LIST", numpy.array(several, kind))


def _attributes(place: StoredPlace, types: Sequence[ValueType], layout: str) -> dict[str, Any]:
    kinds = {(kind.kind, kind.dtype) for kind in types}
    kind, dtype = kinds.pop() if len(kinds) == 1 else ("mixed", "")
    found: dict[str, Any] = {"path": place.path, "kind": kind, "layout": layout, **({"dtype": dtype} if dtype else {})}
    shards = {kind.shard for kind in types}
    if shards != {None}:
        several = [None if kind.shard is None else asdict(kind.shard) for kind in types]
        found["shard"] = json.dumps(several[0] if len(shards) == 1 else several)
    asked = {} if place.sampling is None else place.sampling.facts()
    if "dtype" in asked:  # the attribute of this name says what the values are
        asked["converted_to"] = asked.pop("dtype")
    return found | asked


def _layout(values: StoredValues) -> str:
    types, first = values.types, values.types[0]
    if len({(kind.kind, kind.dtype, len(kind.shape)) for kind in types}) > 1 or first.bytes is None:
        return "bytes"
    row = _row(types)
    if len(row) > _DIMENSIONS:
        return "flat"
    if all(kind.shape == row for kind in types):
        return "rows"
    padded = len(values) * (replace(first, row=row).bytes or 0)
    return "flat" if padded > 2 * values.sizes.sum() else "padded"


def _row(types: Sequence[ValueType]) -> tuple[int, ...]:
    return tuple(max(sizes) for sizes in zip(*(kind.shape for kind in types), strict=True))


def _together(entries: NDArray[Any], values: StoredValues) -> NDArray[Any]:
    """Return the entries of a place with neighbours of one type as one, unless each has a table of sizes."""
    counts = entries["count"].astype("<i8")
    kinds = values.which[numpy.cumsum(counts) - counts]
    sized = numpy.array([kind.bytes is None for kind in values.types])[kinds]
    starts = numpy.flatnonzero(numpy.concatenate([[True], (kinds[1:] != kinds[:-1]) | sized[1:]]))
    merged = entries[starts]
    lowest = numpy.minimum.reduceat(entries["rank"], starts)
    merged["rank"] = numpy.where(lowest == numpy.maximum.reduceat(entries["rank"], starts), lowest, SEVERAL)
    merged["type"], merged["count"] = kinds[starts], numpy.add.reduceat(counts, starts)
    merged["size"] = numpy.add.reduceat(entries["size"], starts)
    merged["first"] = numpy.minimum.reduceat(entries["first"], starts)
    merged["last"] = numpy.maximum.reduceat(entries["last"], starts)
    return merged


def _runs(at: Numbers, sizes: Numbers, most: int) -> Iterator[ByteRange]:
    """Yield bytes that lie together, at most `most` at once."""
    for start, stop in neighbours(at, sizes, most):
        begin, end = int(at[start]), int(at[stop - 1] + sizes[stop - 1])
        for one in range(begin, end, most):
            yield ByteRange(one, min(most, end - one))


def _gathered(log: OpenFile, runs: Iterator[ByteRange], buffer: memoryview) -> Iterator[memoryview]:
    """Yield the bytes of runs in pieces, each in the buffer, until the next is asked for."""
    done = 0
    for at, size in runs:
        if done + size > len(buffer):
            yield buffer[:done]
            done = 0
        log.read_into(buffer[done : done + size], at)
        done += size
    yield buffer[:done]


def _padded(values: StoredValues, row: tuple[int, ...]) -> Iterator[Any]:
    for value in values:
        whole = torch.zeros(row, dtype=value.dtype, device="cpu")
        whole[tuple(map(slice, value.shape))] = value
        yield bytes_of(whole).data


def _text(values: StoredValues, number: int) -> str:
    """Return what other programs read in the place of a value that is no tensor or number."""
    raw = values.source.read(int(values.at[number]), int(values.sizes[number]))
    kind = values.types[values.which[number]]
    if kind.kind == "nested":
        return json_of(raw).decode()
    if kind.kind == "tensor":
        return json.dumps({"tensor": [kind.dtype, kind.shape, 0]})
    text = str(kind.value(raw)) if kind.kind == "str" else json.dumps(kind.value(raw), default=str)
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


def _chunks(pieces: Iterator[Any], size: int) -> Iterator[bytes]:
    """Yield the bytes of pieces in chunks of one size; the last is filled up with zeros."""
    held = bytearray()
    for piece in pieces:
        held += piece
        while len(held) >= size:
            yield bytes(held[:size])
            del held[:size]
    if held:
        yield bytes(held.ljust(size, b"\0"))
