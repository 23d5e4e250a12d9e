"""What do h5py's file objects have in common? A position, from which they read."""

from __future__ import annotations

import atexit
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

__all__ = ["Positioned", "read_by_hdf5"]

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
