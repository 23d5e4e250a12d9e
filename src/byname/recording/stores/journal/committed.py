"""What does a file hold after its last commit, also while it is written, or after its writer was killed?

Without a journal that is what lies in the file. With one, the frames of the journal stand over the bytes of the file;
neither is changed here, so that a directory may be read-only. A shared lock keeps the writer from applying its journal
while somebody reads (see `byname.recording.stores.journal.journal`).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from byname.errors import RecordingError
from byname.recording.stores.journal.descriptors import beside, opened, read_at, same_file, shared
from byname.recording.stores.journal.extents import Extents
from byname.recording.stores.journal.frames import IDENTITY, Frame, frames
from byname.recording.stores.journal.heaps import Heaps
from byname.recording.stores.journal.positioned import Positioned

__all__ = ["CommittedFile", "committed", "journaled"]


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
