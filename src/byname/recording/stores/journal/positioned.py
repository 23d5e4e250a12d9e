"""What do h5py's file objects have in common? A position, from which they read."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod

__all__ = ["Positioned"]


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
