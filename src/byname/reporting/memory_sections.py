"""Sections of a report with who has the memory, censuses, saved tensors, growth, cost of modules; and other tables."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from byname.autograd.saved import Saved
from byname.edits.summary import Summary
from byname.memory.census import Census
from byname.memory.growth import Grown, Growth
from byname.reporting.panels import AreaPanel, PageDraft, Panel, PlotPanel, Section, TablePanel
from byname.reporting.thinning import of_numbers
from byname.table import Row, Rows, Tabled, bytes_text


def census_section(census: Census, draft: PageDraft) -> Section:
    """Return the section of a census: a treemap by kind, module and site, and the table."""
    rows = _printed(census)
    ways = {
        way: [(row[way] or without, _called(row), row["bytes"]) for row in rows]
        for way, without in (("kind", ""), ("module", "no module"), ("dtype", "no tensor"), ("site", "not tracked"))
        if any(row[way] for row in rows)
    }
    facts = [("alive", bytes_text(census.bytes)), ("devices", _joined(key for key, _, _ in census.by("device")))]
    return _section("Memory", census, rows, ways, facts)


def _called(row: dict[str, Any]) -> str:
    """Return the name of a storage; of one without a name, what holds it."""
    return row["held by"] or row["name"] if row["name"].startswith("unnamed") else row["name"]  # type: ignore[no-any-return]


def saved_section(saved: Saved, draft: PageDraft) -> Section:
    """Return the section of the tensors that autograd saved."""
    rows = _printed(saved)
    storages: dict[Any, tuple[Any, Any]] = {}
    for one, row in zip(saved, rows, strict=True):
        if one.card is not None:
            storages.setdefault(one.card.storage, (one, row))
    ways = {
        way: [(row.get(way) or f"no {way}", _saved_as(row), one.card.storage_bytes) for one, row in storages.values()]
        for way in ("node", "module")
    }
    return _section("Saved for backward", saved, rows, ways, [("saved", bytes_text(saved.bytes))])


def _saved_as(row: dict[str, Any]) -> str:
    """Return the name of a saved tensor, and for which node it was saved."""
    slot = f"{row['node']}.{row['slot']}"
    return slot if row["name"].startswith("unnamed") else f"{row['name']} ({slot})"


def growth_section(growth: Growth, draft: PageDraft) -> Section:
    """Return the section of what grew."""
    found = [*growth]
    ways = {"cause": [(one.cause, one.name, one.bytes) for one in found]} if len(found) > 1 else {}
    section = _section("Growth", growth, _printed(found), ways, [])
    marked = [_marks(one, draft) for one in found if len(one.marks) > 1]
    return replace(section, panels=[*section.panels, *marked[:MARKED]])


MARKED = 12
"""Number of rows whose growth from mark to mark is drawn."""


def _marks(grown: Grown, draft: PageDraft) -> PlotPanel:
    """Return the number of tensors at each mark as a curve."""
    curve = of_numbers(np.array(grown.marks), len(grown.marks))
    return PlotPanel(
        title=grown.name,
        anchor=draft.anchor(),
        facts="number of tensors at entry and at each mark",
        curves=[curve.drawn()],
        axis="mark",
    )


def summary_section(summary: Summary, draft: PageDraft) -> Section:
    """Return the section of what each module costs."""
    rows = summary.rows()
    names = [(row["module"], row["path"] or summary.model, row) for row in rows]
    parameters = [(kind, path, row["own_parameters"]) for kind, path, row in names]
    flops = [(kind, path, row["own_flops"]) for kind, path, row in names]
    ways = {"own parameters": parameters, "own FLOPs": flops}
    shown = {way: areas for way, areas in ways.items() if any(size for _, _, size in areas)}
    return _section(f"Modules of {summary.model}", summary, rows, shown, [], unit="")


def rows_section(found: Rows[Any], draft: PageDraft) -> Section:
    """Return the section of any other result of byname that is a table."""
    return _section(type(found).__name__, found, _printed(found) if found._columns() else found.rows(), {}, [])


def _printed(rows: Iterable[Tabled]) -> list[Row]:
    return [one.shown() for one in rows]


def _section(
    title: str,
    found: Rows[Any],
    rows: list[dict[str, Any]],
    ways: dict[str, list[tuple[str, str, int]]],
    facts: list[tuple[str, str]],
    unit: str = "bytes",
) -> Section:
    panels: list[Panel] = [AreaPanel(ways=ways, unit=unit)] if any(ways.values()) else []
    panels += [TablePanel.of(rows)] if rows else []
    headline = found._title() if rows else f"{title}: nothing"
    return Section(title=title, headline=headline, facts=facts, notes=found._notes(), panels=panels)


def _joined(words: Iterable[object]) -> str:
    return ", ".join(sorted({str(one) for one in words})) or "none"
