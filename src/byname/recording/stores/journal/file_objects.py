"""File objects: what h5py reads and writes through, in the place of a file."""

from __future__ import annotations

import atexit
import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from byname.recording.stores.journal.descriptors import read_at, write_together
from byname.recording.stores.journal.frames import Extents

_open: dict[int, Any] = {}
"""The files that HDF5 reads through such an object now, by ``id``."""


@contextmanager
def read_by_hdf5(source: Positioned) -> Iterator[Any]:
    """The `h5py.File` of such an object, which is closed before Python ends.

    HDF5 closes what is open when the process ends, and would ask the object then, which is gone with Python.
    """
    import h5py

    with h5py.File(source, "r") as file:
        try:
            _open[id(file)] = file
            yield file
        finally:
            _open.pop(id(file), None)


@atexit.register
def _close() -> None:
    with ExitStack() as closing:  # all of them, also where one cannot be closed
        for file in _open.values():
            closing.callback(file.close)


class Positioned(ABC):
    """The part of a file object that only counts bytes."""

    _end: int
    _position: int

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Goes to a byte, counted from the start or from the end."""
        self._position = offset + (self._end if whence == os.SEEK_END else 0)
        return self._position

    def tell(self) -> int:
        """The byte that is read or written next."""
        return self._position

    @abstractmethod
    def readinto(self, buffer: memoryview) -> int:
        """Fills the buffer with the next bytes; what no file holds is 0."""

    def read(self, size: int = -1) -> bytes:
        """The next bytes, all by default."""
        left = max(0, self._end - self._position)
        data = bytearray(left if size < 0 else min(size, left))
        self.readinto(memoryview(data))
        return bytes(data)


SUPERBLOCK = 2048
"""Before the first commit these first bytes stay in memory: without a superblock the file is none of HDF5's."""


class FileCutError(OSError):
    """Another program has written to the file, so that what was in it is lost."""


class GuardedFile(Positioned):
    """The file object that h5py calls: what lies before the fence is kept in memory, the rest goes to the file.

    HDF5 never hears of an error: its state would be broken, and closing it would crash. From the first error on, and in
    a forked process, everything is kept in memory, and what HDF5 reads back is what it wrote.

    Args:
        descriptor: of the file, empty and open for reading and writing.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._process = os.getpid()
        self._fresh = Extents()  # since the last commit
        self._unapplied = Extents()  # committed, and not yet in place
        self._fence = SUPERBLOCK  # what lies before it was committed, and changes only through the journal
        self._end = self._position = 0
        self._reach = 0  # how long the file is at least, unless somebody else has cut it off
        self._error: OSError | None = None
        self._closed = False

    def write(self, data: Any) -> int:
        """Takes bytes at the position; those behind all commits go to the file without a copy."""
        view = memoryview(data)
        start, size = self._position, len(view)
        held = min(max(self._fence - start, 0), size) if self._writable() else size
        if held:
            self._fresh.write(start, view[:held])
        if held < size:
            try:
                self._put(view[held:], start + held)
            except OSError as error:
                self._fail(error)
                self._fresh.write(start + held, view[held:])
        self._position = start + size
        self._end = max(self._end, self._position)
        return size

    def readinto(self, buffer: Any) -> int:
        """Fills the buffer with what was written, committed or not; what never was is 0."""
        view = memoryview(buffer).cast("B")
        got = 0
        if not self._closed:
            with suppress(OSError):  # HDF5 refuses zeros; an error would come up inside of its own code
                got = read_at(self._descriptor, view, self._position)
        view[got:] = bytes(len(view) - got)
        self._unapplied.cover(self._position, view)
        self._fresh.cover(self._position, view)
        self._position += len(view)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        """Sets the end; the file itself follows with the commit."""
        self._end = self._position if size is None else size
        self._fresh.cut(self._end)
        return self._end

    def flush(self) -> None:
        """Nothing: what was written is seen with `commit`."""

    def _put(self, data: Any, offset: int) -> None:
        self._put_together([data], offset)

    def _put_together(self, several: Sequence[Any], offset: int) -> None:
        """Writes to the file itself. One that was cut off gets no more: it would be as long again, and of zeros."""
        self._check_whole()
        end = write_together(self._descriptor, several, offset)
        self._reach = max(self._reach, end)

    def _check_whole(self) -> None:
        """Raises an error where another program has changed the file; a look of a microsecond before each write."""
        if os.fstat(self._descriptor).st_size < self._reach:
            raise FileCutError(errno.EIO, "another program has emptied the file, or has cut it off")

    def _set_size(self, size: int) -> None:
        os.ftruncate(self._descriptor, size)
        self._reach = size

    def _writable(self) -> bool:
        return self._error is None and not self._closed and os.getpid() == self._process

    def _fail(self, error: OSError) -> None:
        if self._error is None:
            self._error = error
