"""Would HDF5 come to the end of every heap of texts that it reads?

HDF5 keeps texts of any length in heaps, which its file format calls global heap collections. When it reads one, its
own code goes from object to object, and goes round for ever at an object that takes no bytes. So the objects of a heap
are walked here as soon as HDF5 reads the heap's first bytes, which is before it goes through them.

Source: HDF5 File Format Specification, version 3.0, "Disk Format: Level 1E - Global Heap".
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cached_property

from byname.errors import RecordingError

__all__ = ["SIGNATURE", "Heaps"]

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
