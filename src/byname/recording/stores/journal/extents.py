"""Which bytes stand over those of a file? Pieces, kept in order, that do not overlap."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from heapq import heappop, heappush
from itertools import pairwise

__all__ = ["Extents"]


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
