"""Draft: a report while its sections are made, with the anchors of its places and the room that each may take."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from byname.analyse.evaluation.evaluation import followed

T = TypeVar("T")

POINTS = 400
"""Points of one curve, where there are few curves."""
ALL_POINTS = 80_000
"""Points of all curves together, about 50 bytes each."""
CELLS = 1_000_000
"""Cells of all heat maps together, less than three bytes each."""
READ = 2**32
"""Bytes that are read of all recordings together."""
PLACES = 1000
"""Number of places that are drawn."""


class PageDraft:
    """A report while it is made.

    Args:
        places: the number of places that will be drawn, which share the room.

    Attributes:
        anchors: where on the page a place of a model is drawn, by its path.
        points, cells, read: points of a curve, cells of the heat maps of a place, and bytes read of it, at most.
    """

    def __init__(self, places: int) -> None:
        share = max(1, min(places, PLACES))
        self.anchors: dict[str, str] = {}
        self.points = max(50, min(POINTS, ALL_POINTS // share))
        self.cells = max(1_000, min(100_000, CELLS // share))
        self.read = max(2**22, min(2**29, READ // share))
        self._numbered = 0

    def anchor(self, path: str = "") -> str:
        """Return a new anchor, which is where the place with this path is drawn unless it is drawn already."""
        self._numbered += 1
        name = f"place-{self._numbered}"
        if path:
            self.anchors.setdefault(path, name)
        return name

    def followed(self, things: Iterable[T], words: str) -> Iterator[T]:
        """Yield the things, with a bar in a terminal if that takes longer than a second."""
        yield from followed(things, words)
