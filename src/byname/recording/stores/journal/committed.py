"""Committed: what a file holds after its last commit, also while it is written, or after its writer was killed.

Without a journal that is what lies in the file. With one, the frames of the journal stand over the bytes of the file;
neither is changed here, so that a directory may be read-only. A shared lock keeps the writer from applying its journal
while somebody reads (see `byname.recording.stores.journal.journaled_file`).

HDF5 keeps texts of any length in heaps, which its file format calls global heap collections. When it reads one, its
own code goes from object to object, and goes round for ever at an object that takes no bytes. So the objects of a heap
are walked here as soon as HDF5 reads the heap's first bytes, which is before it goes through them.

Source: HDF5 File Format Specification, version 3.0, "Disk Format: Level 1E - Global Heap".
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

from byname.errors import RecordingError
from byname.recording.stores.journal.descriptors import beside, opened, read_at, same_file, shared
from byname.recording.stores.journal.file_objects import Positioned
from byname.recording.stores.journal.frames import IDENTITY, Extents, Frame, frames


class CommittedFile(Positioned):
    """What h5py reads instead of a path: the bytes of a file, and the frames of its journal over them.

    Raises:
        RecordingError: while it is read, at a heap of texts that HDF5 would never return from (see `Heaps`).
    """

    def __init__(self, descriptor: int, changes: Extents, end: int) -> None:
        self._descriptor = descriptor
        self._changes = changes
        self._end = end
        self._position = 0
        self._heaps = Heaps(self._bytes, end)

    def readinto(self, buffer: memoryview) -> int:
        """Fills the buffer; bytes that no file holds are 0."""
        view = memoryview(buffer).cast("B")
        self._heaps.check(self._position, len(view))
        self._fill(view, self._position)
        self._position += len(view)
        return len(view)

    def _fill(self, view: memoryview, offset: int) -> None:
        got = read_at(self._descriptor, view, offset)
        view[got:] = bytes(len(view) - got)
        self._changes.cover(offset, view)

    def _bytes(self, offset: int, size: int) -> bytearray:
        data = bytearray(size)
        self._fill(memoryview(data), offset)
        return data


@contextmanager
def committed(path: str | os.PathLike[str]) -> Iterator[CommittedFile]:
    """What to give to ``h5py.File(..., "r")``: a file object, which is for one thread at a time.

    It must not be used after the context ends; until then a writer leaves what is committed as it is.

    Raises:
        FileNotFoundError: there is no such file.
        RecordingError: nothing was committed yet, the journal is damaged, or a writer is stopped in the middle.
    """
    descriptor = opened(path, os.O_RDONLY)
    try:
        with shared(descriptor, path):
            if same_file(descriptor, path):
                yield _source(descriptor, Path(path))
                return
    finally:
        os.close(descriptor)
    with committed(path) as source:  # another file took the name meanwhile
        yield source


def _source(descriptor: int, path: Path) -> CommittedFile:
    last, changes = journaled(descriptor, path)
    if last is not None:
        changes.cut(last.end)
        return CommittedFile(descriptor, changes, last.end)
    if not any(_start(descriptor, 0, 8)):
        raise RecordingError(f"{path} is empty: its writer has committed nothing yet, or was killed before it could.")
    return CommittedFile(descriptor, changes, os.fstat(descriptor).st_size)


def journaled(descriptor: int, path: Path) -> tuple[Frame | None, Extents]:
    """The last frame of the journal, if it belongs to this file, and the changes of all its frames.

    Raises:
        RecordingError: the journal is damaged, or the file was cut off.
    """
    try:
        journal = opened(beside(path), os.O_RDONLY)
    except FileNotFoundError:
        return None, Extents()
    last, changes = None, list[tuple[int, bytearray]]()
    try:
        for frame in frames(journal):
            if _start(descriptor, frame.marked_at, IDENTITY) != frame.identity:
                return None, Extents()  # of an older file of this name
            changes.extend(frame.changes)
            last = frame
    except RecordingError as error:
        raise RecordingError(f"{path} cannot be read: {error} ({beside(path)}).") from None
    finally:
        os.close(journal)
    if last is not None and last.end > os.fstat(descriptor).st_size:
        raise RecordingError(f"{path} was cut off: it should have {last.end:,} bytes.")
    return last, Extents.of(changes)


def _start(descriptor: int, offset: int, size: int) -> bytes:
    data = bytearray(size)
    if offset >= 2**63 - size:
        return b""
    return bytes(data[: read_at(descriptor, memoryview(data), offset)])


SIGNATURE = b"\x89HDF\r\n\x1a\n"
"""How a file of HDF5 begins."""

_HEAP = re.compile(rb"GCOL\x01")
_BEGIN = 5
"""Bytes of that beginning."""

_LENGTH = 8
"""Bytes of a length, in the files that byname writes."""

_HEADER = 16
"""Bytes before the objects of a heap, and before the content of an object, with lengths of 8 bytes."""

_LOOKED_AT = 1 << 16
"""Reads of more bytes are of values: HDF5 reads the first 4,096 bytes of a heap, and then the rest."""


class Heaps:
    """The heaps of one file.

    Args:
        read: ``read(offset, size)``, the bytes of the file; those that it does not have are 0.
        end: the size of the file.
    """

    def __init__(self, read: Callable[[int, int], bytearray], end: int) -> None:
        self._read = read
        self._end = end
        self._walked = set[int]()
        self._left = end  # the heaps of a whole file have no byte in common

    def check(self, offset: int, size: int) -> None:
        """Walks the heaps that begin in this part of the file, or just before it.

        Raises:
            RecordingError: an object of one takes no bytes, or more than its heap has.
        """
        if size > _LOOKED_AT:
            return
        first = max(0, offset - _BEGIN + 1)
        part = self._read(first, offset + size - first)
        for found in _HEAP.finditer(part):
            if first + found.start() not in self._walked:
                self._walked.add(first + found.start())
                self._walk(first + found.start())

    @cached_property
    def _walkable(self) -> bool:
        """Whether a length has 8 bytes in this file, if it is one of HDF5: its beginning may be at 0, 512, 1024, ..."""
        at = 0
        while at < self._end and self._read(at, len(SIGNATURE)) != SIGNATURE:
            at = 2 * at or 512
        head = self._read(at, _HEADER)
        return at >= self._end or head[10 if head[8] > 1 else 14] == _LENGTH

    def _walk(self, start: int) -> None:
        if not self._walkable:
            raise RecordingError(f"it has a heap of texts whose lengths are not of {_LENGTH} bytes, as byname's are")
        size = int.from_bytes(self._read(start + 8, _LENGTH), "little")
        if start + size > self._end:
            return  # HDF5 refuses it
        self._left -= size
        if self._left < 0:
            raise RecordingError("its heaps of texts lie over each other")
        whole = memoryview(self._read(start, size))
        at = _HEADER
        while at + _HEADER <= size:
            free, content = not any(whole[at : at + 2]), int.from_bytes(whole[at + 8 : at + _HEADER], "little")
            takes = content if free else _HEADER + -(-content // 8) * 8
            if takes < 8 or at + takes > size:
                raise RecordingError(f"its heap of texts at byte {start:,} is damaged")
            at += takes
