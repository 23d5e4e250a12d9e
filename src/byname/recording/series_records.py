"""SeriesRecords: the values of one place, and when and where each of them came, in one structured array."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from byname.errors import BadArgumentError
from byname.recording.distributed.dtensor import Shard
from byname.recording.lazy import Positions, Values, taken
from byname.recording.sampling import Sampling
from byname.table import counted, listed
from byname.text import printable

SERIES_RECORD = np.dtype([("iteration", "<i8"), ("rank", "<i4"), ("call", "<i4"), ("eval", "?"), ("kind", "<i4")])
"""When and where a value came, and the number of its kind among those of the series."""
MOMENT = ["iteration", "rank", "call", "eval"]
"""The fields of a record that a file has in the same order."""
MODES = ("train", "eval")
_HELD = ("path", "values", "records", "kinds", "sampling", "ends")


class Kind(NamedTuple):
    """What values have in common.

    Attributes:
        shape: of a tensor, from before it was padded; ``()`` for plain values.
        shard: the part of a distributed tensor that they are.
    """

    shape: tuple[int, ...]
    shard: Shard | None


def _column(of: Callable[[SeriesRecords], Sequence[Any]]) -> Any:
    """Return a column, which becomes a list once it is asked for."""
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
    kinds: tuple[Kind, ...] = field(init=False)
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
        each = [Kind(tuple(shape), shard) for shape, shard in zip(shapes, columns["shards"], strict=True)]
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
        cls, path: str, values: Values, records: NDArray[Any], kinds: Sequence[Kind], sampling: Sampling | None
    ) -> Self:
        """Return values whose records are there already."""
        found = object.__new__(cls)
        found._hold(path, values, records, tuple(kinds), sampling, ())
        return found

    def but(self, **changes: Any) -> Self:
        """Return the same with other values, records, kinds, sampling or ends."""
        found = object.__new__(type(self))
        found._hold(*({name: getattr(self, name) for name in _HELD} | changes).values())
        return found

    def picked(self, which: slice | Positions) -> Self:
        """Return some of the records; no value is read from a file."""
        return self.but(values=taken(self.values, which), records=self.records[which])

    def __len__(self) -> int:
        return len(self.records)

    @property
    def mode_names(self) -> NDArray[np.str_]:
        """The mode of each record."""
        return np.array(MODES)[self.records["eval"].view(np.int8)]

    def _kinds(self) -> list[Kind]:
        return [self.kinds[number] for number in self.records["kind"].tolist()]


def _check(path: str, size: int, columns: dict[str, Sequence[Any]]) -> None:
    """Refuse columns of different lengths, and modes that there are not."""
    wrong = [
        f"{counted(len(column), 'entry', 'entries')} in {name}"
        for name, column in columns.items()
        if len(column) != size
    ]
    if wrong:
        raise BadArgumentError(
            f"a series of {printable(path)} has {counted(size, 'value')} and {', '.join(wrong)}: "
            "series.with_values(...) keeps the columns, series[a:b] takes some records"
        )
    if other := sorted({*map(str, columns["modes"])} - {*MODES}):
        raise BadArgumentError(f"modes of {printable(path)} are 'train' or 'eval', not {listed(other, 4)}")
