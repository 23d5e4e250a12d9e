"""Frame: a window of series as bytes, one form for logs, the messages between processes and the index of a file.

A frame is a header, a JSON text, a table with an entry for each run of values of one type, and a body: the tables of
records, and the values. It counts when it is there to its last byte; a process that is killed in the middle of a write
leaves a shorter one. The JSON says what no frame before it has said: new places, new types of values, and facts.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import groupby
from typing import Any, NamedTuple

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from byname.codec import bytes_of, dtype_name
from byname.recording.sampling import Sampling
from byname.recording.series import Series
from byname.recording.series_records import MOMENT, SERIES_RECORD, ValueKind
from byname.recording.stored import Numbers, PackedArray, Source, StoredValues
from byname.recording.value_type import ValueType, buffers_of, type_of

HEADER = struct.Struct("<4sIIIQ")
"""The mark, the checksum of JSON and entries, and the bytes of JSON, entries and body."""
MARK = b"bnF1"
ENTRY = numpy.dtype(
    [("place", "<i4"), ("type", "<i4"), ("count", "<i4"), ("rank", "<i4"), ("records", "<i8"), ("values", "<i8"),
     ("size", "<i8"), ("first", "<i8"), ("last", "<i8")]
)  # fmt: skip
"""A run of values of one place and type: the positions of its records and values in the body, and facts of them."""
RECORD = numpy.dtype([("iteration", "<i8"), ("rank", "<i4"), ("call", "<i4"), ("eval", "<i1")])
COLUMNS = {"iterations": "iteration", "ranks": "rank", "calls": "call", "modes": "eval"}
"""The parts of a record, by the names of the arrays that a file has of each."""
_JOINED = 32 * 1024
"""Bytes of a tensor from which on it is written from where it lies; smaller ones are first put together."""
SEVERAL = -2
"""In the place of the rank of an entry whose records are of several."""
_UNREADABLE = (ValueError, TypeError, KeyError, IndexError, AttributeError, OverflowError, RecursionError)


class FrameWriter:
    """Makes frames; a place or a type of values is described in the first frame that has it.

    `last` is the last iteration of all records; -1 if there are none.
    """

    def __init__(self) -> None:
        self.last = -1
        self._places: dict[str, int] = {}
        self._types: dict[ValueType, int] = {}

    def packed(self, window: Iterable[Series], facts: Mapping[str, Any] | None = None) -> list[Any]:
        """Return the buffers of a frame of some series, several of a place in order, and plain values beside them."""
        places, types = len(self._places), len(self._types)
        body, entries, samplings = _Body(), list[tuple[int, ...]](), list[Any]()
        try:
            for series in window:
                place = self._places.setdefault(series.path, len(self._places))
                if place == places + len(samplings):
                    samplings.append(None if series.sampling is None else series.sampling.facts())
                entries += self._entries(place, series, body)
        except BaseException:  # what this frame would have said is still to be said
            for known, count in ((self._places, places), (self._types, types)):
                for one in [*known][count:]:
                    del known[one]
            raise
        said = dict(facts or {})
        if samplings:
            said["places"] = [*zip([*self._places][places:], samplings, strict=True)]
        if len(self._types) > types:
            said["types"] = [kind.facts() for kind in [*self._types][types:]]
        self.last = max([self.last, *(entry[-1] for entry in entries)])
        return framed(said, numpy.array(entries, ENTRY), body.pieces, body.size)

    def _entries(self, place: int, series: Series, body: _Body) -> Iterator[tuple[int, ...]]:
        for kind, start, stop in _runs(series):
            number = self._types.setdefault(kind, len(self._types))
            whole = stop - start == len(series)
            table = body.table(series.records if whole else series.records[start:stop])
            begin = body.size
            body.take(kind, series.values if whole else series.values[start:stop])
            yield (
                place, number, stop - start, table.rank, table.at, begin, body.size - begin, table.first, table.last,
            )  # fmt: skip


def framed(facts: Mapping[str, Any], entries: NDArray[Any], body: Sequence[Any] = (), size: int = 0) -> list[Any]:
    """Return the buffers of a frame, in order; `size` is that of the body in bytes."""
    words = json.dumps(facts, separators=(",", ":"), default=str).encode() if facts else b""
    table = entries.tobytes()
    checksum = zlib.crc32(table, zlib.crc32(words))
    return [HEADER.pack(MARK, checksum, len(words), len(table), size), words, table, *body]


class _PackedRecords(NamedTuple):
    """Records in the body of a frame: where they begin, their rank, and their iterations."""

    at: int
    rank: int
    first: int
    last: int


class _Body:
    """The body of a frame, while it grows; small tensors of one type are put together, also those of several places."""

    def __init__(self) -> None:
        self.size = 0
        self._pieces: list[Any] = []
        self._small: list[Tensor] = []
        self._kind: ValueType | None = None
        self._tables: dict[bytes, _PackedRecords] = {}

    @property
    def pieces(self) -> list[Any]:
        self._join()
        return self._pieces

    def _join(self) -> None:
        if self._small:
            self._pieces.append(bytes_of(torch.stack(self._small)))
            self._small = []

    def take(self, kind: ValueType, values: Sequence[Any] | Tensor) -> None:
        if kind.kind == "tensor" and type(values) is not Tensor and (kind.bytes or 0) < _JOINED:
            if kind is not self._kind:
                self._join()
                self._kind = kind
            self._small += values
            self.size += (kind.bytes or 0) * len(values)
        else:
            self._add(buffers_of(kind, values))

    def _add(self, several: Sequence[Any]) -> None:
        self.pieces.extend(several)
        self.size += sum(map(len, several))

    def table(self, records: NDArray[Any]) -> _PackedRecords:
        """Return the table of these records: places that are recorded together have the same."""
        key = numpy.ascontiguousarray(records).view("u1").reshape(len(records), -1)[:, : RECORD.itemsize].tobytes()
        found = self._tables.get(key)
        if found is None:
            iterations, (rank, *others) = records["iteration"].tolist(), {*records["rank"].tolist()}
            found = _PackedRecords(self.size, SEVERAL if others else rank, min(iterations), max(iterations))
            self._tables[key] = found
            self._add([key])
        return found


def _runs(series: Series) -> Iterator[tuple[ValueType, int, int]]:
    types = [*_types(series)]
    if types and types.count(types[0]) == len(types):
        yield types[0], 0, len(types)
        return
    for kind, group in groupby(range(len(series)), types.__getitem__):
        numbers = [*group]
        yield kind, numbers[0], numbers[-1] + 1


def _types(series: Series) -> Iterator[ValueType]:
    shards = series.shards or [None] * len(series)
    if not isinstance(series.values, Tensor):
        return map(type_of, series.values, shards)
    own, name = tuple(series.values.shape[1:]), dtype_name(series.values.dtype)
    padded = (None if tuple(shape) == own else tuple(shape) for shape in series.shapes)
    return (ValueType("tensor", name, own, one, shard) for one, shard in zip(padded, shards, strict=True))


class Frame(NamedTuple):
    """A frame that was read: its JSON, its table with positions in the source, and its end."""

    facts: dict[str, Any]
    entries: NDArray[Any]
    end: int


def frame_at(source: Source, at: int, base: int | None = None) -> Frame | None:
    """Return the frame that begins at a byte; None where there is no whole one.

    Its entries count from `base`; if that is None, from the beginning of its body.
    """
    if source.size - at < HEADER.size:
        return None
    mark, checksum, words, table, size = HEADER.unpack(source.read(at, HEADER.size).data)
    if mark != MARK:
        raise source.damaged(f"no frame begins at byte {at}")
    at += HEADER.size
    if words + table + size > source.size - at:
        return None
    index = source.read(at, words + table)
    if zlib.crc32(index.data) != checksum or table % ENTRY.itemsize:
        raise source.damaged(f"the bytes at {at} do not match their checksum")
    try:
        facts = json.loads(index[:words].tobytes()) if words else {}
    except _UNREADABLE as reason:
        raise source.damaged(f"the JSON at byte {at} cannot be read") from reason
    if type(facts) is not dict:
        raise source.damaged(f"the JSON at byte {at} is not an object")
    entries, body = index[words:].view(ENTRY), at + words + table
    if base is None:
        entries["records"] += body
        entries["values"] += body
    return Frame(facts, entries, body + size)


class FrameIndex:
    """The places, the types of values, and the positions of the values of each place, as the frames of a source say.

    Attributes:
        named: the places, with how their values were taken.
        types: those of all values.
        columns: where the columns of records are, in a file with an array for each; entries have the number of a row.
        packed: arrays that are packed, by the numbers of their places; entries count from their beginnings.
        latest: the records that were read last, with where they are: places that are recorded together have the same.
    """

    def __init__(self, source: Source) -> None:
        self.source = source
        self.named: list[tuple[str, Sampling | None]] = []
        self.types: list[ValueType] = []
        self.columns: Numbers | None = None
        self.packed: dict[int, Source] = {}
        self.latest: tuple[list[tuple[int, int]], NDArray[Any]] = [], numpy.empty(0, RECORD)
        self._entries: list[NDArray[Any]] = []

    def add(self, frame: Frame) -> None:
        """Take what a frame says; refuse what no recorder has written."""
        try:
            for path, sampling in frame.facts.get("places", ()):
                if type(path) is not str:
                    raise TypeError("a path is not a string")
                self.named.append((path, None if sampling is None else Sampling.of(sampling)))
            self.types += map(ValueType.of, frame.facts.get("types", ()))
            if "columns" in frame.facts:
                self.columns = numpy.array(frame.facts["columns"], "<i8").reshape(-1, len(COLUMNS))
            for number, about in frame.facts.get("packed", {}).items():
                self.packed[int(number)] = PackedArray(self.source, about)
        except _UNREADABLE as reason:
            raise self.source.damaged("a place or a type of values cannot be read") from reason
        if len(frame.entries):
            self._entries.append(frame.entries)

    def clear(self) -> None:
        """Forget the values, and keep the places and types, to which the next frames refer."""
        self._entries = []

    def last(self) -> int:
        """Return the last iteration of all records; -1 if there are none."""
        return max((int(entries["last"].max()) for entries in self._entries), default=-1)

    def places(self) -> dict[str, StoredPlace]:
        """Return the places that have records, by their paths, in the order in which they first came."""
        if not self._entries:
            return {}
        rows = numpy.concatenate([one.view("<i8") for one in self._entries]).reshape(-1, ENTRY.itemsize // 8)
        entries = rows.reshape(-1).view(ENTRY)
        self._entries = [entries]
        self._check(entries)
        numbers = entries["place"].copy()
        narrow = numbers.astype("<u2") if len(self.named) < 2**16 else numbers  # which NumPy sorts by counting
        order = numpy.argsort(narrow, kind="stable")
        bounds = numpy.searchsorted(numbers[order], numpy.arange(len(self.named) + 1)).tolist()
        found: dict[str, StoredPlace] = {}
        for number, (path, _) in enumerate(self.named):
            if path in found:
                raise self.source.damaged(f"it has two places named {path!r:.60}")
            if bounds[number + 1] > bounds[number]:
                found[path] = StoredPlace(self, number, rows, order[bounds[number] : bounds[number + 1]])
        return found

    def _check(self, entries: NDArray[Any]) -> None:
        """Refuse entries that lead out of the source."""
        for name, known in (("place", self.named), ("type", self.types)):
            if entries[name].min() < 0 or entries[name].max() >= len(known):
                raise self.source.damaged(f"an entry refers to a missing {name}")
        room: Any = self.source.size
        if self.packed:
            rooms = [self.packed.get(number, self.source).size for number in range(len(self.named))]
            room = numpy.array(rooms, "<i8")[entries["place"]]
        count, at, own = entries["count"].astype("<i8"), entries["values"], entries["size"]
        last = self.source.size - count * RECORD.itemsize if self.columns is None else len(self.columns) - 1
        fits = (count > 0) & (own >= 0) & (at >= 0) & (at <= room - own)
        fits &= (entries["records"] >= 0) & (entries["records"] <= last)
        if not fits.all():
            raise self.source.damaged("an entry points past its end")


class StoredPlace:
    """The records of one place in a file or a message.

    `rows` are the entries of all places, as whole numbers, and `which` the positions of those of the place.

    Attributes:
        path: the place.
        sampling: how its values were taken, if that is known.
        entries: its runs of values.
    """

    def __init__(self, index: FrameIndex, number: int, rows: Numbers, which: Numbers) -> None:
        self.path, self.sampling = index.named[number]
        self._index, self._rows, self._which = index, rows, which
        self._source = index.packed.get(number, index.source)

    @cached_property
    def entries(self) -> NDArray[Any]:
        """The entries, taken as numbers, which is faster; refused if they take more than the file has."""
        found = self._rows[self._which].reshape(-1).view(ENTRY)
        records = int(found["count"].sum(dtype="<i8")) * RECORD.itemsize
        if records > self._index.source.size or found["size"].sum(dtype="f8") > self._source.size:
            raise self._source.damaged(f"{self.path!r:.60} has more records than fit in the file")
        return found

    @property
    def types(self) -> Sequence[ValueType]:
        """The types of its values, each once, in the order in which they came."""
        return [self._index.types[number] for number in dict.fromkeys(self.entries["type"].tolist())]

    @property
    def count(self) -> int:
        return int(self.entries["count"].sum(dtype="<i8"))

    @property
    def first(self) -> int:
        return int(self.entries["first"].min())

    @property
    def last(self) -> int:
        return int(self.entries["last"].max())

    @property
    def size(self) -> int:
        """The bytes of its values, without those that pad them in a file."""
        padding = numpy.array([kind.padding for kind in self._index.types], "<i8")
        return int((self.entries["size"] - padding[self.entries["type"]] * self.entries["count"]).sum())

    @property
    def ranks(self) -> frozenset[int]:
        found = frozenset(numpy.unique(self.entries["rank"]).tolist())
        return frozenset(numpy.unique(self.records()["rank"]).tolist()) if SEVERAL in found else found

    def series(self) -> Series:
        """Return its records; values are read when they are asked for."""
        records, values = self.records(), self.values()
        full = numpy.empty(len(records), SERIES_RECORD)
        full[MOMENT] = records
        full["kind"] = values.which
        kinds = [ValueKind(kind.own_shape, kind.shard) for kind in values.types]
        return Series.of(self.path, values, full, kinds, self.sampling)

    def records(self) -> NDArray[Any]:
        """Return when and where its values came."""
        source, columns = self._index.source, self._index.columns
        ats, counts = self.entries["records"].tolist(), self.entries["count"].tolist()
        if columns is None:
            key = [*zip(ats, counts, strict=True)]
            known, found = self._index.latest
            if known != key:
                found = numpy.concatenate([source.read(at, count * RECORD.itemsize) for at, count in key]).view(RECORD)
                self._index.latest = key, found
            return found
        records = numpy.empty(self.count, RECORD)
        for name, at in zip(COLUMNS.values(), columns[ats[0]].tolist(), strict=True):
            records[name] = source.table(at, len(records), RECORD[name])
        return records

    def values(self) -> StoredValues:
        counts = self.entries["count"].astype("<i8")
        each = numpy.array([-1 if kind.bytes is None else kind.bytes for kind in self._index.types], "<i8")
        sizes = each[self.entries["type"]]
        others = (self.entries["size"] // counts != sizes) | (self.entries["size"] % counts != 0)
        if (others & (sizes >= 0)).any():
            raise self._source.damaged(f"the sizes of the values of {self.path!r:.60} are wrong")
        before = numpy.cumsum(counts) - counts
        own = numpy.repeat(sizes, counts)
        at = (
            numpy.repeat(self.entries["values"], counts) + (numpy.arange(len(own)) - numpy.repeat(before, counts)) * own
        )
        for number in numpy.flatnonzero(sizes < 0).tolist():
            begin, count = int(before[number]), int(counts[number])
            self._place_each(self.entries[number], at[begin : begin + count], own[begin : begin + count])
        types = self.types
        numbers = numpy.zeros(len(self._index.types), "<i8")
        numbers[[*dict.fromkeys(self.entries["type"].tolist())]] = range(len(types))
        return StoredValues(self._source, types, numpy.repeat(numbers[self.entries["type"]], counts), at, own)

    def _place_each(self, entry: Any, at: Numbers, sizes: Numbers) -> None:
        """Read the table of the sizes of values before them."""
        count, begin = len(at), int(entry["values"])
        if entry["size"] < 8 * count:
            raise self._source.damaged(f"the values of {self.path!r:.60} have no sizes")
        sizes[:] = self._source.table(begin, count, "<i8")
        if sizes.min() < 0 or sizes.max() > entry["size"] or int(sizes.sum(dtype="f8")) > entry["size"] - 8 * count:
            raise self._source.damaged(f"the sizes of the values of {self.path!r:.60} exceed their bytes")
        at[:] = begin + 8 * count + numpy.cumsum(sizes) - sizes
