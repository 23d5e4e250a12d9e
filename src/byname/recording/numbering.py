"""Which of several values of one place in one iteration is a value? No two have the same number."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any, Protocol

from byname.recording.schedule import Time
from byname.watch.attachment import Event

__all__ = ["InOrder", "Numbers", "OfBackwards", "OfSteps"]


class Numbers(Protocol):
    """Numbers the values of one place."""

    def next(self, time: Time, event: Event) -> Any:
        """The number of a value, or what will tell it."""

    def settled(self, records: Sequence[tuple[Time, Any]]) -> list[int]:
        """The numbers of the values of a window, from their iterations and what `next` said of them."""


class InOrder:
    """Values that come in order, in an iteration that holds several forwards, or none."""

    __slots__ = ("_latest",)

    def __init__(self) -> None:
        self._latest: dict[str, tuple[int, int]] = {}

    def next(self, time: Time, event: Event | None = None) -> int:
        """How many have come before; modes may take turns within one iteration."""
        iteration, number = self._latest.get(time.mode, (-1, 0))
        number = number + 1 if iteration == time.iteration else 0
        self._latest[time.mode] = time.iteration, number
        return number

    def settled(self, records: Sequence[tuple[Time, Any]]) -> list[int]:
        """As they are."""
        return [number for _, number in records]


class OfBackwards:
    """Gradients of values, which have the numbers of the values; those of further backwards are numbered on.

    In the second run of a reentrant checkpoint the values are not known to be those of the first. Their gradients come
    in the opposite order, by which they are numbered once all have come.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Time, _Brought] = {}

    def next(self, time: Time, event: Event) -> int:
        """The number, or a negative one for the second run of a checkpoint."""
        brought = self._known.get(time)
        if brought is None:
            if len(self._known) == _REMEMBERED:
                del self._known[next(iter(self._known))]
            brought = self._known[time] = _Brought()
        if event.recomputed:
            brought.again -= 1
            return brought.again
        if event.call in brought.calls:
            brought.first = brought.free
            brought.calls.clear()
        brought.calls.add(event.call)
        number = brought.first + event.call
        brought.free = max(brought.free, number + 1)
        return number

    def settled(self, records: Sequence[tuple[Time, Any]]) -> list[int]:
        """The numbers of a window's gradients."""
        ends: dict[Time, int] = {}
        for time, number in records:
            if number < 0:
                brought = self._known[time]
                ends[time] = brought.free - brought.again
        for time, end in ends.items():
            self._known[time].free, self._known[time].again = end, 0
        return [number if number >= 0 else ends[time] + number for time, number in records]


class _Brought:
    """What backwards have brought of one iteration.

    Attributes:
        calls: the values whose gradients the latest of them has brought so far.
        first: the number of the first value in it.
        free: the next number that is free.
        again: how many came from second runs since the last window, negative.
    """

    __slots__ = ("again", "calls", "first", "free")

    def __init__(self) -> None:
        self.calls: set[int] = set()
        self.first = self.free = self.again = 0


_REMEMBERED = 64
"""So many iterations may have more than one backward, in turns; first backwards may come as late as they want."""


class OfSteps:
    """Gradients of values where steps are counted: those of the last forward come first.

    They are numbered in the order of the values they belong to, as far as they have come when a window ends.
    """

    __slots__ = ("_keys", "_settled")

    def __init__(self) -> None:
        self._keys: dict[Time, list[tuple[int, int]]] = {}
        self._settled: dict[Time, int] = {}

    def next(self, time: Time, event: Event) -> tuple[int, int]:
        """The forward and the call of the value; of second runs of checkpoints the last come first."""
        keys = self._keys.setdefault(time, [])
        key = event.iteration, -len(keys) if event.recomputed else event.call
        keys.append(key)
        return key

    def settled(self, records: Sequence[tuple[Time, Any]]) -> list[int]:
        """The numbers of a window's gradients."""
        places: defaultdict[tuple[Time, Any], list[int]] = defaultdict(list)
        for time, keys in self._keys.items():
            before = self._settled.get(time, 0)
            for place, key in reversed([*enumerate(sorted(keys), before)]):
                places[time, key].append(place)
            self._settled[time] = before + len(keys)
        latest = max(time.iteration for time in self._settled)
        self._settled = {time: count for time, count in self._settled.items() if time.iteration == latest}
        self._keys.clear()
        return [places[record].pop() for record in records]
