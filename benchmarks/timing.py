"""How much longer does one thing take than another, on a machine that is never quiet?

Every variant runs once a round, in random order, and each is compared with the floor of its own round: what slows the
machine down for a while slows both. The floor runs twice a round (A/A), which shows how far the figures can be trusted.
Seconds are of the process on the processor: time in which others have the processor does not count.
"""

from __future__ import annotations

import gc
import random
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from time import process_time
from typing import TypeAlias, TypeVar

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

__all__ = ["Row", "Rounds", "Variant", "interleaved", "print_table", "small_heap", "timed"]

Given = TypeVar("Given")

Variant: TypeAlias = Callable[[], float]
"""Prepares one run, does it, and returns the seconds that the run alone took."""


@dataclass(frozen=True)
class Row:
    """One line of a table: a figure for each round, and the most that their median may be."""

    what: str
    values: Sequence[float]
    unit: str
    limit: float | None = None

    def cells(self) -> tuple[str, str, str, str, str]:
        """The line as text: what, figure, spread, target, met?"""
        low, median, high = statistics.quantiles(self.values, n=4)
        spread = f"{_digits(low)} … {_digits(high)}"
        if self.limit is None:
            return self.what, f"{_digits(median)} {self.unit}", spread, "", ""
        met = "yes" if median <= self.limit else "no"
        return self.what, f"{_digits(median)} {self.unit}", spread, f"≤ {self.limit:g} {self.unit}", met


@dataclass(frozen=True)
class Rounds:
    """The seconds that each variant took, round by round."""

    seconds: Mapping[str, Sequence[float]]

    def ratio(self, what: str, floor: str) -> list[float]:
        """How many times the floor's time a variant took, in each round."""
        return [mine / theirs for mine, theirs in zip(self.seconds[what], self.seconds[floor], strict=True)]

    def each(self, what: str, count: int, unit: float, less: str | None = None) -> list[float]:
        """The time a piece, in units of so many seconds; without what another variant took in the same round."""
        base = [0.0] * len(self.seconds[what]) if less is None else self.seconds[less]
        return [(mine - other) / count / unit for mine, other in zip(self.seconds[what], base, strict=True)]


def timed(
    prepare: Callable[[], tuple[Given, object]], call: Callable[[Given], object], *, collector: bool = True
) -> Variant:
    """A variant that calls something on a freshly prepared argument, when the garbage collector has just run.

    It does so twice and counts the second time: by then the process has the memory that the call needs, whatever ran
    before. (On a large graph the page faults alone are half of a bare walk.)

    Args:
        prepare: makes the argument, and whatever else a program would hold meanwhile; not timed.
        call: what is timed.
        collector: whether the garbage collector may run meanwhile, as it does in a program.
    """

    def run() -> float:
        _once(prepare, call, collector)
        return _once(prepare, call, collector)

    return run


def _once(prepare: Callable[[], tuple[Given, object]], call: Callable[[Given], object], collector: bool) -> float:
    given, held = prepare()
    gc.collect()
    if not collector:
        gc.disable()
    start = process_time()
    result = call(given)
    seconds = process_time() - start
    gc.enable()
    del result, held
    return seconds


@contextmanager
def small_heap() -> Iterator[None]:
    """Spares the garbage collector what is there already: for what never looks at the whole heap."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def interleaved(variants: Mapping[str, Variant], rounds: int) -> Rounds:
    """Runs every variant once a round, in random order, after one round that does not count."""
    order = random.Random(0)
    seconds: dict[str, list[float]] = {what: [] for what in variants}
    for number in range(rounds + 1):
        for what in order.sample(list(variants), len(variants)):
            took = variants[what]()
            if number:
                seconds[what].append(took)
    return Rounds(seconds)


def print_table(title: str, rows: Sequence[Row]) -> None:
    """Prints one topic."""
    table = Table(title=title, title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    table.add_column("what", overflow="fold")  # so that the figures are whole
    for column in ("figure (median)", "quartiles", "target"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("met?", no_wrap=True)
    for row in rows:
        table.add_row(*row.cells())
    Console(width=_WIDTH, highlight=False).print(table)


_WIDTH = 120


def _digits(value: float) -> str:
    """Three digits, or as many as a large number has before its point."""
    if abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3f}" if abs(value) < 2 else f"{value:.2f}" if abs(value) < 10 else f"{value:.1f}"
