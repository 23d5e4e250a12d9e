"""Panels: the parts of a report as plain data, each with the template that shows it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from byname.table import Row, bytes_text, cell, counted


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One part of a section. `data` goes into the page as JSON, for the scripts that draw it."""

    template: ClassVar[str]
    title: str = ""
    note: str = ""

    @property
    def data(self) -> Any:
        """What is drawn, as plain values; None where nothing is."""
        return None


@dataclass(frozen=True, kw_only=True)
class Section:
    """What a report says of one thing: its headline stands for it in the overview, where its facts are, too."""

    title: str
    headline: str
    facts: Sequence[tuple[str, str]] = ()
    notes: Sequence[str] = ()  # sentences about what was left out or is not known
    alarms: Sequence[str] = ()  # and about what was lost
    panels: Sequence[Panel] = ()


class PageBuilder:
    """A report while it is made, with the anchors by which each path of a model is found on the page."""

    def __init__(self) -> None:
        self.anchors: dict[str, str] = {}
        self._numbered = 0

    def anchor(self, path: str = "") -> str:
        """Return a new anchor, which is where the place with this path is drawn unless it is drawn already."""
        self._numbered += 1
        name = f"place-{self._numbered}"
        if path:
            self.anchors.setdefault(path, name)
        return name


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table: its text, the number that it is sorted by, and the place on the page that it leads to."""

    text: str
    number: float | None = None
    link: str = ""


ROWS = 1000
"""Number of rows that a page holds of one table."""


@dataclass(frozen=True, kw_only=True)
class TablePanel(Panel):
    """Rows of cells, to be searched and sorted, and the number of all rows; a heading says whether it is of numbers."""

    template: ClassVar[str] = "table.html"
    columns: Sequence[tuple[str, bool]]
    rows: Sequence[Sequence[Cell]]
    total: int

    @classmethod
    def of(
        cls,
        rows: Sequence[Row],
        *,
        title: str = "",
        links: Mapping[str, str] | None = None,
        skip: Iterable[str] = (),
    ) -> TablePanel:
        """Return the table of some dicts of plain values, with links to anchors for texts of the first column."""
        kept = rows[:ROWS]
        every = dict.fromkeys(key for row in kept for key in row)
        columns = [key for key in every if key not in skip and any(not _is_empty(row.get(key)) for row in kept)]
        cells = [
            [
                Cell(_shown(key, row.get(key)), _number(row.get(key)), _link(links, row.get(key)) if not at else "")
                for at, key in enumerate(columns)
            ]
            for row in kept
        ]
        headings = [(key, all(type(row.get(key)) in _NUMERIC for row in kept)) for key in columns]
        more = len(rows) - len(kept)
        note = f"{counted(more, 'further row')} not on this page; .rows() has all {len(rows):,}" if more else ""
        return cls(title=title, columns=headings, rows=cells, total=len(rows), note=note)


_NUMERIC = (int, float, type(None))


def _is_empty(value: object) -> bool:
    """Return whether there is nothing to show; compares no foreign object."""
    return value is None or (type(value) in (str, tuple, list) and not value)


def _number(value: object) -> float | None:
    return float(value) if type(value) in (int, float, bool) and abs(value) < 2**1000 else None  # type: ignore[arg-type]


def _link(links: Mapping[str, str] | None, value: object) -> str:
    return links.get(value, "") if links and type(value) is str else ""


def _shown(column: str, value: object) -> str:
    """Return the text of one value in a column of this name.

    >>> _shown("output_bytes", 2048), _shown("seconds", 0.0123), _shown("mean", 0.123456), _shown("count", 12345)
    ('2.0 KiB', '12.3 ms', '0.1235', '12,345')
    """
    if type(value) is int and column.endswith(_SIZES) and value < 2**60:
        return bytes_text(value)
    if type(value) is float:
        return duration(value) if column == "seconds" else figure(value)
    if type(value) is int and abs(value) < 10**15:
        return f"{value:,}" if column in _COUNTS or column.endswith(("parameters", "flops")) else str(value)
    if type(value) is list:
        return "; ".join(_shown(column, one) for one in value)
    if type(value) is tuple and value and all(type(one) is tuple for one in value):
        return ", ".join(cell("shape", one) for one in value)
    return cell("shape" if column == "output" else column, value)


_SIZES = ("bytes", "used", "each")
_COUNTS = ("records", "count", "calls", "samples", "paths")


def figure(value: float) -> str:
    """Return a number with four digits.

    >>> figure(0.25), figure(1234567.0), figure(float("nan")), figure(float("inf"))
    ('0.25', '1.235e+06', 'NaN', 'inf')
    """
    return "NaN" if value != value else f"{value:.4g}"


def duration(seconds: float) -> str:
    """Return a time in a unit that people can read.

    >>> duration(0.00042), duration(75), duration(7300)
    ('420 µs', '1 min 15 s', '2 h 1 min')
    """
    if seconds < 1:
        return f"{seconds * 1e6:.3g} µs" if seconds < 0.001 else f"{seconds * 1e3:.3g} ms"
    if seconds < 60:
        return f"{seconds:.3g} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


@dataclass(frozen=True, kw_only=True)
class PlotPanel(Panel):
    """The values of one place: curves along an axis, pictures of single values, or a table of what is no number."""

    template: ClassVar[str] = "place.html"
    anchor: str
    facts: str = ""
    curves: Sequence[Mapping[str, Any]] = ()
    picture: Mapping[str, Any] | None = None
    table: TablePanel | None = None
    axis: str = "iteration"
    about: str = ""  # the text in place of the curves
    alarm: str = ""  # a warning of values that are not finite

    @property
    def data(self) -> Any:
        return {"axis": self.axis, "curves": list(self.curves), "picture": self.picture}


@dataclass(frozen=True, kw_only=True)
class StripPanel(Panel):
    """A heat map of rows with labels that may have anchors; colours may tell orders of magnitude."""

    template: ClassVar[str] = "strips.html"
    labels: Sequence[tuple[str, str]]
    columns: Sequence[str]
    cells: Sequence[Sequence[float | None]]
    logarithmic: bool = False

    @property
    def data(self) -> Any:
        return {"columns": self.columns, "cells": self.cells, "log": self.logarithmic}


@dataclass(frozen=True, kw_only=True)
class AreaPanel(Panel):
    """A treemap of sizes in a unit, which can be grouped in several ways: each has ``(group, label, size)``."""

    template: ClassVar[str] = "areas.html"
    ways: Mapping[str, Sequence[tuple[str, str, int]]]
    unit: str = "bytes"

    @property
    def data(self) -> Any:
        """The largest areas of each way, those of one name as one; the smaller ones of a group are one area."""
        return {"unit": self.unit, "ways": {way: _largest(areas) for way, areas in self.ways.items()}}


AREAS = 300
"""Number of areas in a treemap; further ones become one for each group."""


def _largest(areas: Sequence[tuple[str, str, int]]) -> list[tuple[str, str, int]]:
    same: dict[tuple[str, str], list[int]] = {}
    for group, label, size in areas:
        same.setdefault((group, label), []).append(size)
    merged = [(group, _times(label, len(sizes)), sum(sizes)) for (group, label), sizes in same.items()]
    ordered = sorted((one for one in merged if one[2] > 0), key=lambda one: -one[2])
    rest: dict[str, list[int]] = {}
    for group, _, size in ordered[AREAS:]:
        rest.setdefault(group, []).append(size)
    others = [(group, f"{len(sizes):,} smaller", sum(sizes)) for group, sizes in rest.items()]
    return [*ordered[:AREAS], *others]


def _times(label: str, count: int) -> str:
    return f"{label} (×{count:,})" if count > 1 else label


@dataclass(frozen=True, kw_only=True)
class BarPanel(Panel):
    """Bars: a label, a text and a share from 0 to 1 for each."""

    template: ClassVar[str] = "bars.html"
    bars: Sequence[tuple[str, str, float]]


@dataclass(frozen=True, kw_only=True)
class FindingPanel(Panel):
    """Findings, each as a dict with cause, message, remedy, details and story."""

    template: ClassVar[str] = "findings.html"
    found: Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class PicturePanel(Panel):
    """A picture in SVG, with boxes that lead to places of the page by their paths."""

    template: ClassVar[str] = "picture.html"
    svg: str  # goes into the page as it is, so it comes from byname's own drawing alone
    boxes: Sequence[tuple[str, float, float, float, float]] = field(default=())
    width: float = 0.0
