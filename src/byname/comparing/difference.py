"""Difference: where and how much the values of one place differ, and which place of several differs first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from byname.table import Column, Tabled

EQUAL, WITHIN, DIFFERENT, UNCOMPARED = "equal", "within tolerance", "different", "not compared"
ONLY = "only in a", "only in b"


def _figure(key: str, spare: int = 0) -> Column:
    return Column(key, spare, show=lambda one: None if getattr(one, key) is None else float(f"{getattr(one, key):.3g}"))


def _of(part: str, whole: str, title: str, spare: int) -> Column:
    def shown(one: Any) -> str:
        return f"{getattr(one, part):,} of {getattr(one, whole):,}" if getattr(one, part) else ""

    return Column(part, spare, show=shown, title=title)


@dataclass(frozen=True, slots=True)
class PlaceDiff(Tabled):
    """How one place of two recordings or models differs: how often, and how much where it first does.

    Attributes:
        path: the place, as a calls it.
        path_b: as b calls it, if otherwise.
        kind: ``"parameter"``, ``"buffer"`` or ``"value"``.
        state: ``"equal"``, ``"within tolerance"``, ``"different"``, ``"only in a"``, ``"only in b"`` or
            ``"not compared"``; by the tolerances of the dtypes where none was given.
        counts: whether it counts as a difference.
        iteration, mode, rank: the moment of its first difference that counts, or else of the first; None for models.
        call: which of several values in that iteration, from 0.
        error: the largest absolute error; NaN if the elements that differ are NaN in one of the two; None where there
            are no numbers to compare, as between two shapes.
        relative: the largest ``|a - b| / |b|``, which is infinite where b is 0.
        elements: the number of elements that differ.
        size: the number of elements.
        nan: how many elements are NaN in one of the two only.
        what: what else differs, in words: shapes, dtypes, texts, or that there is a value in one of the two only.
        beyond: whether the error is larger than the tolerance.
        records: how many values were compared.
        differ: how many of them differ.
        largest: the largest absolute error of all.
        calls: how often the place ran in that iteration.
        time: a number that orders differences: by iterations, for models by the values in the order of the run.
    """

    path: str = ""
    kind: str = "value"
    state: str = UNCOMPARED
    path_b: str = ""
    counts: bool = False
    iteration: int | None = None
    mode: str | None = None
    rank: int | None = None
    call: int | None = None
    error: float | None = None
    relative: float | None = None
    elements: int | None = None
    size: int | None = None
    nan: int = 0
    what: str = ""
    beyond: bool = False
    records: int = 0
    differ: int = 0
    largest: float | None = None
    calls: int = 1
    time: float = -1.0

    columns = (
        Column("path"),
        Column("path_b", title="in b"),
        Column("kind", printed=False),
        Column("state"),
        Column("counts", printed=False),
        Column("iteration"),
        Column("mode", spare=1),
        Column("rank", spare=2),
        Column("call", spare=4),
        _figure("error"),
        _figure("relative", spare=6),
        _of("elements", "size", "elements", 5),
        Column("size", printed=False),
        Column("nan", show=lambda one: one.nan or None, title="NaN"),
        _of("differ", "records", "values", 7),
        Column("records", printed=False),
        _figure("largest", spare=3),
        Column("what"),
    )

    def much(self) -> str:
        """Return how much it differs, in words."""
        words = [] if self.error is None else [f"error {self.error:.3g} (relative {self.relative:.3g})"]
        words += [f"in {self.elements:,} of {self.size:,} elements"] if self.elements else []
        words += [f"{self.nan:,} NaN in one alone"] if self.nan else []
        return ", ".join([*words, *([self.what] if self.what else [])])

    def where(self) -> str:
        """Return the place and the moment, in words."""
        words = [f"`{self.path}`"]
        if self.iteration is not None:
            words.append(f"{'eval ' if self.mode == 'eval' else ''}iteration {self.iteration:,}")
        words += [f"call {self.call}"] if self.calls > 1 else []
        return ", ".join([*words, *([f"rank {self.rank}"] if self.rank else [])])


def earliest(places: Iterable[PlaceDiff]) -> PlaceDiff | None:
    """Return the place whose difference came first, of those that count, in the order in which they ran."""
    first: PlaceDiff | None = None
    for one in places:
        if one.counts and (first is None or _is_before(one, first)):
            first = one
    return first


def _is_before(one: PlaceDiff, first: PlaceDiff) -> bool:
    """Return whether a difference came before that of a place that runs earlier in each iteration.

    Places that ran equally often are taken for the parts of one loop.
    """
    if one.time != first.time:
        return one.time < first.time
    return one.calls == first.calls and (one.call or 0) < (first.call or 0)
