"""Coordinates: four arrays say when, where and how often values came; places recorded together share them.

Most places of a recording follow one schedule. Their groups lead to the same arrays (hard links of HDF5), so that a
window costs each place one array and not five. A place whose records come otherwise from some moment on gets arrays
of its own, in which what came before is repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy

from byname.recording.stores.arrays import GrowingArray, Settings, modes

Columns = tuple[Any, ...]
"""Iterations, ranks, calls and modes of records, as arrays."""
TOGETHER = 256
"""Places with one index at most: HDF5 keeps a list of all arrays that a scale is attached to, and rewrites it."""
_NAMES = ("iterations", "ranks", "calls", "modes")


class Indexed(Protocol):
    """A part of a place, whose records an index is of."""

    group: Any
    index: Index | None
    fresh: list[Columns]

    def take(self, index: Index) -> None:
        """Has another index from now on."""


class Index:
    """The arrays of records of one or more parts.

    Args:
        group: where they are made.
        settings: of the file.
        expected: so many records come first.
    """

    def __init__(self, group: Any, settings: Settings, expected: int) -> None:
        kinds = (numpy.dtype("<i8"), numpy.dtype("<i4"), numpy.dtype("<i4"), modes())
        usual = (None, settings.rank, 0, 0)
        self.settings = settings
        self.arrays = {
            name: GrowingArray(group, name, kind, (), settings, expected=expected, usual=one)
            for name, kind, one in zip(_NAMES, kinds, usual, strict=True)
        }
        self.scale.make_scale("iterations")
        for name in _NAMES[1:]:
            self.arrays[name].dataset.dims[0].attach_scale(self.scale)
        self.count = 0
        self.members: list[Indexed] = []

    @property
    def scale(self) -> Any:
        """The iterations, which are the dimension of the records."""
        return self.arrays["iterations"].dataset

    def extend(self, columns: Columns) -> None:
        """Adds records."""
        for array, rows in zip(self.arrays.values(), columns, strict=True):
            if array.usual is not None and (rows == array.usual).all():
                array.grow(self.count + len(rows))
            else:
                array.put(self.count, rows)
        self.count += len(columns[0])

    def link(self, group: Any) -> None:
        """Lets a group lead to these arrays."""
        for name, array in self.arrays.items():
            if name not in group:
                group[name] = array.dataset

    def copied(self, group: Any) -> Index:
        """The same records in arrays of their own."""
        columns = tuple(array.dataset[: self.count] for array in self.arrays.values())
        for name in _NAMES:
            del group[name]
        other = Index(group, self.settings, self.count)
        other.extend(columns)
        return other


def columns_of(iterations: Sequence[int], ranks: Sequence[int], calls: Sequence[int], named: Sequence[str]) -> Columns:
    """The facts of records as arrays, as they are stored."""
    flags = numpy.fromiter((mode == "eval" for mode in named), "<i1", len(named))
    return numpy.asarray(iterations, "<i8"), numpy.asarray(ranks, "<i4"), numpy.asarray(calls, "<i4"), flags


def write_all(parts: Iterable[Indexed], settings: Settings) -> None:
    """Adds the fresh records of parts to their indexes.

    Args:
        parts: those that have fresh ones.
        settings: of the file.
    """
    new: dict[Any, list[Indexed]] = {}
    known: dict[int, Index] = {}
    for part in parts:
        if part.index is None:
            new.setdefault(_key(part), []).append(part)
        else:
            known[id(part.index)] = part.index
    for together in new.values():
        for first in range(0, len(together), TOGETHER):
            _extend(_started(together[first : first + TOGETHER], settings))
    for index in known.values():
        for group in _divided(index):
            _extend(group)


def _extend(parts: list[Indexed]) -> None:
    """Adds records to the index that these parts, and no others, have."""
    index = parts[0].index
    assert index is not None, "every part has been given one"
    fresh = parts[0].fresh
    if fresh:
        index.extend(fresh[0] if len(fresh) == 1 else tuple(map(numpy.concatenate, zip(*fresh, strict=True))))
    for part in parts:
        part.fresh = []


def _started(parts: list[Indexed], settings: Settings) -> list[Indexed]:
    index = Index(parts[0].group, settings, sum(len(columns[0]) for columns in parts[0].fresh))
    for part in parts:
        part.take(index)
    return parts


def _divided(index: Index) -> list[list[Indexed]]:
    """The parts by what came; the most keep the index, and the others get copies of it."""
    by_key: dict[Any, list[Indexed]] = {}
    for part in index.members:
        by_key.setdefault(_key(part), []).append(part)
    groups = sorted(by_key.values(), key=len, reverse=True)
    for leaving in groups[1:]:
        copy = index.copied(leaving[0].group)
        for part in leaving:
            part.take(copy)
    return groups


def _key(part: Indexed) -> tuple[bytes, ...]:
    return tuple(rows.tobytes() for columns in part.fresh for rows in columns)
