"""Stored: values in an open file, which are read when they are asked for, and only those.

Nothing that a file says of itself is believed: every place and length is compared with the size of the file, before
anything is read or room for it is made.
"""

from __future__ import annotations

import operator
import os
import stat
import weakref
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy
from numpy.typing import NDArray

from byname.errors import NotARecordingError, NotPermittedError, RecordingError
from byname.recording.descriptors import opened, read_at
from byname.recording.value_type import ValueType, numpy_dtype
from byname.text import printable

Bytes: TypeAlias = NDArray[numpy.uint8]
Numbers: TypeAlias = NDArray[numpy.int64]

NEAR = 8192
"""Bytes at the beginning of a file, with the mark that tells it from all others."""
BLOCK = 4 << 20
"""Bytes that are read at once where values are asked for one after another."""
_KINDS = {stat.S_IFIFO: "a pipe (a FIFO)", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a directory"}


class Source(ABC):
    """Bytes that can be read from any place on; `size` says how many there are."""

    size: int

    @abstractmethod
    def read_into(self, view: memoryview, at: int) -> None:
        """Fill the view with the bytes from `at` on."""

    @abstractmethod
    def damaged(self, words: str) -> RecordingError:
        """Return an error about these bytes, which are damaged."""

    def read(self, at: int, size: int) -> Bytes:
        """Return some of the bytes, in memory of their own."""
        if at < 0 or size < 0 or at + size > self.size:
            raise self.damaged(f"it refers to {size} bytes at {at}, but ends at byte {self.size}")
        out = numpy.empty(size, numpy.uint8)
        if size:
            self.read_into(out.data, at)
        return out

    def table(self, at: int, count: int, dtype: Any) -> NDArray[Any]:
        """Return an array of `count` items that lies in the bytes."""
        found: NDArray[Any] = self.read(at, count * numpy.dtype(dtype).itemsize).view(dtype)
        return found


class OpenFile(Source):
    """An open file, which is closed at the latest when nothing refers to it any more; of `descriptor` a copy is used.

    Attributes:
        size: its bytes when it was opened; later ones are not read.
        updated: when it was last written, in seconds since 1970.
    """

    def __init__(self, path: Path, descriptor: int | None = None, *, flags: int = os.O_RDONLY) -> None:
        self.path, self.shown = path, printable(str(path))
        kind = path.stat().st_mode if descriptor is None else os.fstat(descriptor).st_mode
        if not stat.S_ISREG(kind):  # to open a pipe would wait for somebody who writes to it
            raise NotARecordingError(f"{self.shown} is {_KINDS.get(stat.S_IFMT(kind), 'a device')}, not a file")
        try:
            self.descriptor = opened(path, flags) if descriptor is None else os.dup(descriptor)
        except PermissionError as reason:
            raise NotPermittedError(f"{self.shown} may not be read: {printable(str(reason.strerror))}") from reason
        self._closing = weakref.finalize(self, os.close, self.descriptor)
        self._closing.atexit = False
        facts = os.fstat(self.descriptor)
        self.size, self.updated = facts.st_size, facts.st_mtime

    def __deepcopy__(self, memo: object) -> OpenFile:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        size = min(self.size, NEAR)
        return _unchanged, (self.path.absolute(), size, zlib.crc32(self.read(0, size).data))

    def read_into(self, view: memoryview, at: int) -> None:
        if not self._closing.alive:
            raise RecordingError(f"{self.shown} was closed; open it again with byname.open")
        try:
            got = read_at(self.descriptor, view, at)
        except OSError as reason:
            raise RecordingError(f"{self.shown} cannot be read: {printable(str(reason))}") from reason
        if got < len(view):
            raise self.damaged("it was cut off while it was read")

    def damaged(self, words: str) -> RecordingError:
        return RecordingError(f"{self.shown} is damaged or cut off: {words}")

    def close(self) -> None:
        """Close the file; once more does nothing."""
        self._closing()


def _unchanged(path: Path, size: int, checksum: int) -> OpenFile:
    """Return a file that was pickled, if it still begins with these bytes, its identity among them."""
    file = OpenFile(path)
    if file.size < size or zlib.crc32(file.read(0, size).data) != checksum:
        raise RecordingError(f"{file.shown} has changed since values in it were pickled; open it with byname.open")
    return file


class PackedArray(Source):
    """The bytes of an array that gzip has packed, chunk by chunk; the latest is kept.

    `about` says where in the file the chunks are, and how large they were.
    """

    def __init__(self, file: Source, about: Mapping[str, Any]) -> None:
        self._file = file
        self._chunks = [(operator.index(at), operator.index(size)) for at, size in about["chunks"]]
        self._whole, self._each = operator.index(about["chunk"]), operator.index(about["each"])
        if not 0 < self._each <= 64 or not 0 < self._whole <= 1 << 40 or self._whole % self._each:
            raise ValueError("an invalid size of chunks")
        if any(self._whole > 2048 * (size + 64) for _, size in self._chunks):  # gzip packs no better
            raise file.damaged("its chunks claim to unpack to more than gzip can hold")
        if sum(size for _, size in self._chunks) > file.size:
            raise file.damaged("its chunks are larger than the file")
        self.size = len(self._chunks) * self._whole
        self._latest: tuple[int, Bytes] | None = None

    def read_into(self, view: memoryview, at: int) -> None:
        done = 0
        while done < len(view):
            number, begin = divmod(at + done, self._whole)
            piece = self._chunk(number)[begin : begin + len(view) - done]
            view[done : done + len(piece)] = piece.data
            done += len(piece)

    def _chunk(self, number: int) -> Bytes:
        latest = self._latest  # threads of dask share this
        if latest is None or latest[0] != number:
            packed = self._file.read(*self._chunks[number]).tobytes()
            try:
                raw = zlib.decompressobj().decompress(packed, self._whole)
            except zlib.error as reason:
                raise self.damaged(f"a chunk cannot be unpacked ({reason})") from reason
            if len(raw) != self._whole:
                raise self.damaged("a chunk unpacks to the wrong size")
            whole = numpy.frombuffer(raw, numpy.uint8).reshape(self._each, -1).T
            latest = self._latest = number, numpy.ascontiguousarray(whole).reshape(-1)
        return latest[1]

    def damaged(self, words: str) -> RecordingError:
        return self._file.damaged(words)


@dataclass(slots=True, eq=False, repr=False)
class StoredValues(Sequence[Any]):
    """Values that lie somewhere in a file, or some of them.

    Attributes:
        source: the file, or what unpacks it.
        types: the types that values have.
        which: for each value the number of its type.
        at, sizes: for each value where its bytes begin, and how many they are.
    """

    source: Source
    types: Sequence[ValueType]
    which: Numbers
    at: Numbers
    sizes: Numbers

    def __len__(self) -> int:
        return len(self.at)

    def __getitem__(self, which: int | slice) -> Any:
        if isinstance(which, slice):
            return StoredValues(self.source, self.types, self.which[which], self.at[which], self.sizes[which])
        number = operator.index(which)
        raw = self.source.read(int(self.at[number]), int(self.sizes[number]))
        return self._value(number, raw)

    def __iter__(self) -> Iterator[Any]:
        for start, stop in neighbours(self.at, self.sizes, BLOCK):
            first = int(self.at[start])
            block = self.source.read(first, int(self.at[stop - 1] + self.sizes[stop - 1]) - first)
            for number in range(start, stop):
                begin = int(self.at[number]) - first
                yield self._value(number, block[begin : begin + int(self.sizes[number])].copy())

    def __repr__(self) -> str:
        return f"<{len(self)} values in a file>"

    def _value(self, number: int, raw: Bytes) -> Any:
        try:
            return self.types[self.which[number]].value(raw)
        except RecordingError as reason:
            raise self.source.damaged(str(reason)) from reason
        except (ValueError, TypeError, IndexError, RuntimeError, OverflowError) as reason:
            raise self.source.damaged(f"a value cannot be read ({type(reason).__name__})") from reason

    @property
    def tail(self) -> tuple[tuple[int, ...], numpy.dtype[Any]] | None:
        """The shape of each value, and its type as NumPy has it; None where they are no numbers of one shape."""
        several = [self.types[number] for number in numpy.unique(self.which)]
        alike = {(one.kind, one.dtype, one.shape, one.row) for one in several}
        if len(alike) != 1 or several[0].bytes is None or several[0].row is not None:
            return None
        return several[0].shape, numpy_dtype(several[0])

    def numbers(self, which: Numbers) -> NDArray[Any]:
        """Return some of the values, which have a `tail`, as one array; each is read once, and neighbours together."""
        there, back = numpy.unique(which, return_inverse=True)
        at, sizes = self.at[there], self.sizes[there]
        total, done = int(sizes.sum()), 0
        if total > self.source.size:
            raise self.source.damaged(f"{len(there)} values would take {total} bytes, more than it has")
        out = numpy.empty(total, numpy.uint8)
        for start, stop in neighbours(at, sizes, BLOCK):
            size = int(sizes[start:stop].sum())
            if size:
                self.source.read_into(out.data[done : done + size], int(at[start]))
            done += size
        found: NDArray[Any] = self.types[self.which[0]].numbers(out, len(there))
        return found if numpy.array_equal(there, which) else found[back]


def neighbours(at: Numbers, sizes: Numbers, most: int) -> Iterator[tuple[int, int]]:
    """Yield the first and last number of values that lie one after another, at most `most` bytes at once."""
    if not len(at):
        return
    ends = at + sizes
    gaps = (numpy.flatnonzero(at[1:] != ends[:-1]) + 1).tolist()
    for start, stop in zip([0, *gaps], [*gaps, len(at)], strict=True):
        if ends[stop - 1] - at[start] <= most:
            yield start, stop
            continue
        while start < stop:
            fitting = start + int(numpy.searchsorted(ends[start:stop], at[start] + most, "right"))
            yield start, max(fitting, start + 1)
            start = max(fitting, start + 1)
