"""Frames: what a journal's bytes mean, and ranges of bytes that wait to be written.

A frame counts when its checksum is right and its identity is the one in the file, so neither a frame that was written
in part nor the journal of another file of the same name is ever taken for true. Nothing is allocated by what a frame
claims: all sizes are compared with the size of the files first.
"""

from __future__ import annotations

import os
import struct
import zlib
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import pairwise

from byname.errors import RecordingError
from byname.recording.stores.journal.descriptors import read_at


class Extents:
    """Bytes at offsets. What is written later stands over what was written before."""

    __slots__ = ("_pieces", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._pieces: list[bytearray] = []

    @classmethod
    def of(cls, writes: Sequence[tuple[int, bytes | bytearray | memoryview]]) -> Extents:
        """What is left of bytes that were written at offsets, one after another.

        It takes hardly longer than to sort them; `write` would move all pieces behind each, and they may be many where
        they come from a file.
        """
        spans = [(start, start + len(data)) for start, data in writes]
        order = sorted((number for number, data in enumerate(writes) if len(data[1])), key=lambda one: spans[one][0])
        made, at, begun = cls(), 0, 0
        here: list[int] = []  # what is written over this byte, the last first; numbers are negative, as heaps begin low
        while begun < len(order) or here:
            if not here:
                at = spans[order[begun]][0]
            while begun < len(order) and spans[order[begun]][0] <= at:
                heappush(here, -order[begun])
                begun += 1
            last = -here[0]
            start, stop = spans[last]
            if stop <= at:
                heappop(here)
                continue
            while begun < len(order) and spans[order[begun]][0] < stop:
                if order[begun] > last:
                    stop = spans[order[begun]][0]
                    break
                heappush(here, -order[begun])
                begun += 1
            made._starts.append(at)
            made._pieces.append(bytearray(memoryview(writes[last][1])[at - start : stop - start]))
            at = stop
        return made

    def __bool__(self) -> bool:
        return bool(self._starts)

    def __iter__(self) -> Iterator[tuple[int, bytearray]]:
        """The pieces by offset; they may touch."""
        return iter(zip(self._starts, self._pieces, strict=True))

    def size(self) -> int:
        """How many bytes are known."""
        return sum(map(len, self._pieces))

    def write(self, offset: int, data: bytes | bytearray | memoryview) -> None:
        """Takes a copy of ``data``."""
        stop = offset + len(data)
        first = bisect_right(self._starts, offset) - 1
        if first >= 0 and self._stop(first) > offset:
            within = offset - self._starts[first]
            if stop <= self._stop(first):
                self._pieces[first][within : within + len(data)] = data
                return
            del self._pieces[first][within:]
            first -= not within  # nothing of that piece is left: it is replaced with those below
        first += 1
        after = bisect_left(self._starts, stop)
        starts, pieces = [offset], [bytearray(data)]
        if after > first and self._stop(after - 1) > stop:
            starts.append(stop)
            pieces.append(self._pieces[after - 1][stop - self._starts[after - 1] :])
        self._starts[first:after] = starts
        self._pieces[first:after] = pieces

    def _stop(self, index: int) -> int:
        return self._starts[index] + len(self._pieces[index])

    def update(self, other: Extents) -> None:
        """Takes over all that is in ``other``, over what is here."""
        for offset, piece in other:
            self.write(offset, piece)

    def cut(self, end: int) -> None:
        """Forgets what lies at ``end`` and behind it."""
        kept = bisect_left(self._starts, end)
        del self._starts[kept:], self._pieces[kept:]
        if kept and self._stop(kept - 1) > end:
            del self._pieces[-1][end - self._starts[-1] :]

    def cover(self, offset: int, view: memoryview) -> None:
        """Writes what is known of the bytes from ``offset`` on over those in ``view``."""
        stop = offset + len(view)
        index = max(0, bisect_right(self._starts, offset) - 1)
        for at in range(index, bisect_left(self._starts, stop)):
            start, end = max(self._starts[at], offset), min(self._stop(at), stop)
            if start < end:
                piece = memoryview(self._pieces[at])
                view[start - offset : end - offset] = piece[start - self._starts[at] : end - self._starts[at]]
                piece.release()

    def runs(self) -> Iterator[tuple[int, bytes | bytearray]]:
        """The same, where pieces that touch are one."""
        ends = [at + 1 for at, (_, start) in enumerate(pairwise(self._starts)) if self._stop(at) != start]
        for first, after in pairwise([0, *ends, len(self._starts)]):
            if after > first:
                some = self._pieces[first:after]
                yield self._starts[first], some[0] if len(some) == 1 else b"".join(some)


IDENTITY = 16
"""Bytes of the random mark that the file and its journal share."""
MAGIC = b"byname\x01J"
HEADER = struct.Struct("<8s16sQQQQQI")
RECORD = struct.Struct("<QQ")
_LARGE = 2**26
_HOLES = 64
"""A larger journal than that which says that it has so many times the bytes that lie on the disk is one of holes."""


@dataclass(frozen=True, slots=True)
class Frame:
    """One commit.

    Attributes:
        identity: the mark of the file that it belongs to.
        marked_at: the offset of that mark in the file.
        number: of the commit, from 1.
        end: the size of the file after it.
        changes: the bytes that it puts over those in the file.
    """

    identity: bytes
    marked_at: int
    number: int
    end: int
    changes: Extents


def packed(frame: Frame) -> bytes:
    """The bytes of a frame."""
    pieces = list(frame.changes.runs())
    table = b"".join(RECORD.pack(offset, len(piece)) for offset, piece in pieces)
    body = b"".join([table, *(piece for _, piece in pieces)])
    fields = (MAGIC, frame.identity, frame.marked_at, frame.number, frame.end, len(pieces), len(body))
    checksum = zlib.crc32(body, zlib.crc32(HEADER.pack(*fields, 0)))
    return HEADER.pack(*fields, checksum) + body


def frames(descriptor: int) -> Iterator[Frame]:
    """The whole frames of a journal, in order; a last one that was written in part is left out.

    Raises:
        RecordingError: a frame that is not the last one is damaged, so what the commits after it did cannot be known.
    """
    size, at, before = os.fstat(descriptor).st_size, 0, None
    while at + HEADER.size <= size:
        *fields, checksum = HEADER.unpack(_bytes(descriptor, at, HEADER.size))
        magic, identity, marked_at, number, end, count, length = fields
        after = at + HEADER.size + length
        if magic != MAGIC or after > size or count * RECORD.size > length:
            return
        _check_held(descriptor)
        fits = length - count * RECORD.size <= end  # pieces of one frame do not overlap
        body = _bytes(descriptor, at + HEADER.size, length) if fits else b""
        if not fits or zlib.crc32(body, zlib.crc32(HEADER.pack(*fields, 0))) != checksum:
            if after < size:
                raise RecordingError(f"its journal is damaged at byte {at}, before its last frame")
            return
        changes = _changes(body, count, end)
        if changes is None or before not in (None, number - 1):
            raise RecordingError(f"its journal is damaged at byte {at}: the frame there contradicts itself")
        yield Frame(identity, marked_at, number, end, changes)
        at, before = after, number


def _check_held(descriptor: int) -> None:
    """Refuses a journal that takes no room on the disk for the bytes that it says it has."""
    facts = os.fstat(descriptor)
    held = getattr(facts, "st_blocks", facts.st_size) * 512
    if facts.st_size > _LARGE and held * _HOLES < facts.st_size:
        raise RecordingError(f"its journal is damaged: of {facts.st_size} bytes the disk holds {held}")


def _bytes(descriptor: int, offset: int, size: int) -> bytearray:
    data = bytearray(size)
    got = read_at(descriptor, memoryview(data), offset)
    del data[got:]
    return data


def _changes(body: bytes | bytearray, count: int, end: int) -> Extents | None:
    pieces, at, view = [], count * RECORD.size, memoryview(body)
    for offset, length in RECORD.iter_unpack(view[:at]):
        if at + length > len(body) or offset + length > end:
            return None
        pieces.append((offset, view[at : at + length]))
        at += length
    return Extents.of(pieces) if at == len(body) else None
