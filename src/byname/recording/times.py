"""Which iteration was a forward? A gradient may come long after, and belongs to the iteration of its value."""

from __future__ import annotations

from bisect import bisect_right

from byname.recording.schedule import Time

__all__ = ["Times"]


class Times:
    """The iterations of all forwards that a listener was told of; never forgotten, and kept as stretches.

        >>> times = Times()
        >>> for number in range(100_000):
        ...     times.note(number, Time("train", number))
        >>> times.note(100_000, Time("eval", 0))
        >>> times.of(7), times.of(100_000), len(times)
        (Time(mode='train', iteration=7), Time(mode='eval', iteration=0), 2)

    A stretch ends where the mode changes, or how far iterations are apart: who records one of ten is told of
    no others.
    """

    __slots__ = ("_apart", "_first", "_latest", "_starts", "_time")

    def __init__(self) -> None:
        self._first: list[int] = []
        self._starts: list[Time] = []
        self._apart: list[int] = []
        self._latest = -1
        self._time: Time | None = None

    def note(self, forward: int, time: Time) -> None:
        """A forward begins, numbered as the listener's attachment numbers it."""
        if not self._follows(forward, time):
            self._first.append(forward)
            self._starts.append(time)
            self._apart.append(0)
        self._latest, self._time = forward, time

    def _follows(self, forward: int, time: Time) -> bool:
        """Whether a forward goes on with the latest stretch."""
        before = self._time
        if before is None or forward != self._latest + 1 or time.mode != before.mode:
            return False
        apart = time.iteration - before.iteration
        if self._latest == self._first[-1]:  # the second of a stretch says how far they are apart
            self._apart[-1] = apart
        return apart == self._apart[-1]

    def of(self, forward: int) -> Time | None:
        """The iteration of a forward; None for one that began before the listener was there."""
        if forward == self._latest:
            return self._time
        place = bisect_right(self._first, forward) - 1
        if place < 0:
            return None
        start = self._starts[place]
        return Time(start.mode, start.iteration + (forward - self._first[place]) * self._apart[place])

    def __len__(self) -> int:
        return len(self._first)
