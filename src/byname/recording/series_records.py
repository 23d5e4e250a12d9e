"""SeriesRecords: the values of one place, when and where each of them came, and sequences that are read later."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byname.errors import BadArgumentError
from byname.recording.distributed.dtensor import Shard
from byname.recording.sampling import Sampling
from byname.table import counted, listed
from byname.text import printable

Values: TypeAlias = Sequence[Any] | Tensor
Positions: TypeAlias = NDArray[np.int64]


class LazySelection(Sequence[Any]):
    """Values out of one or several sequences, in an order of its own. Nothing is read before it is asked for.

    Args:
        parts: the sequences.
        part, position: for each value the sequence it is in, and its place there.
    """

    __slots__ = ("part", "parts", "position")

    def __init__(self, parts: Sequence[Values], part: Positions, position: Positions) -> None:
        self.parts = parts
        self.part = part
        self.position = position

    def __len__(self) -> int:
        return len(self.position)

    def __getitem__(self, which: int | slice) -> Any:
        if isinstance(which, slice):
            return LazySelection(self.parts, self.part[which], self.position[which])
        return self.parts[int(self.part[which])][int(self.position[which])]

    def __iter__(self) -> Iterator[Any]:
        """Return the values in order, each sequence in runs: a file is then not opened anew for each of its values."""
        streams = {number: self._runs(number) for number in np.unique(self.part).tolist()}
        return (next(streams[number]) for number in self.part.tolist())

    def _runs(self, number: int) -> Iterator[Any]:
        positions = self.position[self.part == number]
        for run in np.split(positions, np.flatnonzero(np.diff(positions) != 1) + 1):
            yield from self.parts[number][int(run[0]) : int(run[-1]) + 1]

    @classmethod
    def of(cls, parts: Sequence[Values]) -> LazySelection:
        """Return all values of the sequences; those that are picked already are not picked twice."""
        flat: list[Values] = []
        part, position = [], []
        for values in parts:
            inner = values if isinstance(values, LazySelection) else None
            part.append(np.full(len(values), len(flat)) if inner is None else inner.part + len(flat))
            position.append(np.arange(len(values)) if inner is None else inner.position)
            flat.extend([values] if inner is None else inner.parts)
        return cls(flat, _together(part), _together(position))


def _together(pieces: list[NDArray[Any]]) -> Positions:
    return np.concatenate([np.zeros(0, np.int64), *pieces]).astype(np.int64)


def tail_of(values: Any) -> tuple[tuple[int, ...], np.dtype[Any]] | None:
    """Return the shape and the type that all values have, where `read` can give them without looking at each."""
    parts = (
        [values.parts[number] for number in np.unique(values.part)] if isinstance(values, LazySelection) else [values]
    )
    tails = {getattr(part, "tail", None) for part in parts}
    return tails.pop() if len(tails) == 1 else None


def read(values: Any, positions: Positions) -> NDArray[Any]:
    """Return the values, which have a `tail_of`, at these positions as one array; neighbours are read at once."""
    if not isinstance(values, LazySelection):
        found: NDArray[Any] = values.numbers(positions)
        return found
    shape, dtype = tail_of(values) or ((), None)
    out = np.empty((len(positions), *shape), dtype)
    part, position = values.part[positions], values.position[positions]
    for number in np.unique(part):
        here = np.flatnonzero(part == number)
        out[here] = read(values.parts[number], position[here])
    return out


def cropped(value: Any, shape: tuple[int, ...]) -> Any:
    """Return the value without the padding behind it."""
    if issubclass(type(value), Tensor) and tuple(value.shape) != tuple(shape) and value.ndim == len(shape):
        return value[tuple(slice(0, size) for size in shape)]
    return value


def picked_values(values: Values, which: slice | Positions) -> Values:
    """Return some of the values, without reading them from a file."""
    if isinstance(values, Tensor):
        if isinstance(which, slice) and (which.step or 1) < 0:  # PyTorch has no negative steps (2.13)
            which = np.array(range(len(values))[which], np.int64)
        return values[which if isinstance(which, slice) else torch.from_numpy(which)]
    if isinstance(values, list | tuple | array):
        return values[which] if isinstance(which, slice) else [values[number] for number in which.tolist()]
    picked = LazySelection.of([values])
    return LazySelection(picked.parts, picked.part[which], picked.position[which])


def one_each(values: Any, size: int, path: str) -> Any:
    """Return the values, as a tensor or a sequence of this size; anything else is refused."""
    kind = type(values)
    if issubclass(kind, np.ndarray):
        values, kind = torch.from_numpy(values), Tensor
    several = values.ndim > 0 if issubclass(kind, Tensor) else issubclass(kind, Sequence)
    if not several or issubclass(kind, str | bytes):
        raise BadArgumentError(f"give {path} a sequence or a tensor with one value a record, not {kind.__name__}")
    if len(values) != size:
        raise BadArgumentError(
            f"{path} has {counted(size, 'record')} and was given {counted(len(values), 'value')}: "
            "with_values takes one for each record; a callback may also return one value for all"
        )
    return list(values) if issubclass(kind, list | tuple) else values


SERIES_RECORD = np.dtype([("iteration", "<i8"), ("rank", "<i4"), ("call", "<i4"), ("eval", "?"), ("kind", "<i4")])
"""When and where a value came, and the number of its kind among those of the series."""
MOMENT = ["iteration", "rank", "call", "eval"]
"""The fields of a record that a file has in the same order."""
MODES = ("train", "eval")
_HELD = ("path", "values", "records", "kinds", "sampling", "ends")


class ValueKind(NamedTuple):
    """The shape of values, from before they were padded, and the part of a distributed tensor that they are."""

    shape: tuple[int, ...]
    shard: Shard | None


def _column(of: Callable[[SeriesRecords], Sequence[Any]]) -> Any:
    return cached_property(of)


@dataclass(frozen=True, eq=False, repr=False, init=False)
class SeriesRecords:
    """The values of one place with their records; `Series` is what users see of it.

    Attributes:
        records: one a value, of type `SERIES_RECORD`.
        kinds: those of the values.
    """

    path: str
    values: Values
    records: NDArray[Any] = field(init=False)
    kinds: tuple[ValueKind, ...] = field(init=False)
    iterations: Sequence[int] = _column(lambda one: one.records["iteration"].tolist())
    ranks: Sequence[int] = _column(lambda one: one.records["rank"].tolist())
    calls: Sequence[int] = _column(lambda one: one.records["call"].tolist())
    modes: Sequence[str] = _column(lambda one: one.mode_names.tolist())
    shapes: Sequence[tuple[int, ...]] = _column(lambda one: [kind.shape for kind in one._kinds()])
    shards: Sequence[Shard | None] = _column(
        lambda one: [kind.shard for kind in one._kinds()] if any(kind.shard for kind in one.kinds) else ()
    )
    sampling: Sampling | None = None
    ends: Sequence[tuple[str, int]] = ()

    def __init__(
        self,
        path: str,
        values: Values,
        iterations: Sequence[int],
        ranks: Sequence[int],
        calls: Sequence[int],
        modes: Sequence[str],
        shapes: Sequence[tuple[int, ...]],
        shards: Sequence[Shard | None] = (),
        sampling: Sampling | None = None,
        ends: Sequence[tuple[str, int]] = (),
    ) -> None:
        columns: dict[str, Sequence[Any]] = {
            "iterations": iterations, "ranks": ranks, "calls": calls, "modes": modes, "shapes": shapes,
            "shards": shards if len(shards) else [None] * len(values),
        }  # fmt: skip
        _check(path, len(values), columns)
        each = [ValueKind(tuple(shape), shard) for shape, shard in zip(shapes, columns["shards"], strict=True)]
        numbers = {kind: number for number, kind in enumerate(dict.fromkeys(each))}
        records = np.empty(len(values), SERIES_RECORD)
        records["iteration"], records["rank"], records["call"] = iterations, ranks, calls
        records["eval"] = [mode == "eval" for mode in modes]
        records["kind"] = [numbers[kind] for kind in each]
        self._hold(path, values, records, tuple(numbers), sampling, ends)

    def _hold(self, *held: Any) -> None:
        vars(self).update(zip(_HELD, held, strict=True))
        self.records.flags.writeable = False  # a series and its parts share them

    @classmethod
    def of(
        cls, path: str, values: Values, records: NDArray[Any], kinds: Sequence[ValueKind], sampling: Sampling | None
    ) -> Self:
        """Return values whose records are there already."""
        found = object.__new__(cls)
        found._hold(path, values, records, tuple(kinds), sampling, ())
        return found

    def replace(self, **changes: Any) -> Self:
        """Return the same with other values, records, kinds, sampling or ends."""
        found = object.__new__(type(self))
        found._hold(*({name: getattr(self, name) for name in _HELD} | changes).values())
        return found

    def picked(self, which: slice | Positions) -> Self:
        """Return some of the records; no value is read from a file."""
        return self.replace(values=picked_values(self.values, which), records=self.records[which])

    def __len__(self) -> int:
        return len(self.records)

    @property
    def mode_names(self) -> NDArray[np.str_]:
        """The mode of each record."""
        return np.array(MODES)[self.records["eval"].view(np.int8)]

    def _kinds(self) -> list[ValueKind]:
        return [self.kinds[number] for number in self.records["kind"].tolist()]


def _check(path: str, size: int, columns: dict[str, Sequence[Any]]) -> None:
    wrong = [
        f"{counted(len(column), 'entry', 'entries')} in {name}"
        for name, column in columns.items()
        if len(column) != size
    ]
    if wrong:
        raise BadArgumentError(
            f"a series of {printable(path)} has {counted(size, 'value')} but {', '.join(wrong)}: "
            "series.with_values(...) keeps the columns, series[a:b] cuts them all"
        )
    if other := sorted({*map(str, columns["modes"])} - {*MODES}):
        raise BadArgumentError(f"modes of {printable(path)} are 'train' or 'eval', not {listed(other, 4)}")
