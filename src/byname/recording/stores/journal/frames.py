"""What does a journal hold? Frames, one a commit: the new end of the file, and bytes that go over those in the file.

A frame counts when its checksum is right and its identity is the one in the file, so neither a frame that was written
in part nor the journal of another file of the same name is ever taken for true. Nothing is allocated by what a frame
claims: all sizes are compared with the size of the files first.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

from byname.errors import RecordingError
from byname.recording.stores.journal.descriptors import read_at
from byname.recording.stores.journal.extents import Extents

__all__ = ["IDENTITY", "Frame", "frames", "packed"]

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
