"""Sections of a report with findings, memory, results of analysers, differences, and all other tables."""

from __future__ import annotations

import linecache
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import Tensor

from byname.analyse.results import Results
from byname.analyse.snapshots import Records
from byname.analyse.tables import ResultLeaf, keys_of, plain_number, result_leaves, single
from byname.autograd.saved import Saved
from byname.comparing.diff import Diff
from byname.comparing.difference import ONLY
from byname.diagnose.finding import Finding
from byname.drawing.draw import Drawing
from byname.edits.summary import Summary
from byname.memory.census import Census
from byname.memory.growth import Grown, Growth
from byname.memory.holders import Holder
from byname.recording.export import numpy_of
from byname.recording.series import Series
from byname.reporting.heat_maps import heat_map
from byname.reporting.panels import (
    AreaPanel,
    BarPanel,
    FindingPanel,
    PageBuilder,
    Panel,
    PicturePanel,
    PlotPanel,
    Section,
    StripPanel,
    TablePanel,
    duration,
    figure,
)
from byname.reporting.thinning import POINTS, of_numbers, rounded
from byname.source.location import Site
from byname.table import Row, Rows, Tabled, bytes_text, counted
from byname.text import printable_lines


def findings_section(found: Sequence[Finding], builder: PageBuilder) -> Section:
    causes = Counter(one.cause for one in found)
    words = ", ".join(f"{cause} ({count})" if count > 1 else cause for cause, count in causes.most_common())
    stories = [{**one.row(), "story": _story(one.sites)} for one in found]
    headline = f"{counted(len(found), 'finding')}: {words}"
    return Section(title="Findings", headline=headline, panels=[FindingPanel(found=stories)])


AROUND = 2
"""Lines of the file that are shown before and after a line of the story."""


def _story(sites: Sequence[Site]) -> list[dict[str, Any]]:
    """Return the lines of a story, each once and numbered, as excerpts of their files; neighbours share an excerpt."""
    each = {(site.file, site.line, site.statement): site for site in sites}.values()
    found: list[dict[str, Any]] = []
    for step, site in enumerate(each, 1):
        lines = _lines_around(site)
        before = found[-1] if found else None
        if before and lines and before["file"] == site.file and before["lines"].keys() & lines.keys():
            before["lines"] = dict(sorted({**lines, **before["lines"]}.items()))
        else:
            found.append({"file": site.file, "lines": lines, "steps": {}, "statement": site.statement, "where": []})
        found[-1]["steps"][site.line] = step
        found[-1]["where"].append((step, site.with_caller, site.function))
    return found


def _lines_around(site: Site) -> dict[int, str]:
    """Return the lines around a site by their numbers; none if the file has changed since."""
    lines = linecache.getlines(site.file)
    line = "".join(lines[site.line - 1].partition("  #")[0].split()) if 0 < site.line <= len(lines) else ""
    statement = "".join(site.statement.split())  # on one line
    if not line or not statement or not (line in statement or statement in line):
        return {}
    first, last = max(1, site.line - AROUND), min(len(lines), site.line + AROUND)
    return {number: lines[number - 1].rstrip("\r\n") for number in range(first, last + 1)}


def holders_section(found: Sequence[Holder], builder: PageBuilder) -> Section:
    rows = [{"kind": one.kind, "path": one.path, "holder": one.text} for one in found]
    return Section(title="Holders", headline=counted(len(found), "holder"), panels=[TablePanel.of(rows)])


def drawing_section(drawing: Drawing, builder: PageBuilder) -> Section:
    scene = drawing.scene
    boxes = [(box.path, box.x, box.y, box.width, 24.0 if box.open else box.height) for box in scene.boxes if box.path]
    headline = str(drawing).splitlines()[0].partition(": ")[2]
    picture = PicturePanel(svg=printable_lines(drawing.svg), boxes=boxes, width=scene.width)
    return Section(title=f"Drawing of {scene.title}", headline=headline, notes=scene.notes, panels=[picture])


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of a program: when it started (UTC, ISO format), how it ended in words, and whether that was an error."""

    arguments: tuple[str, ...]
    started: str
    seconds: float
    ended: str
    failed: bool
    versions: Mapping[str, str] = field(default_factory=dict)


def outcome_section(outcome: Outcome, builder: PageBuilder) -> Section:
    program = " ".join(outcome.arguments) or "program"
    lasted = duration(outcome.seconds)
    facts = [("program", program), ("started", f"{outcome.started.replace('T', ' ')[:19]} UTC"), ("ran for", lasted)]
    words = f"after {lasted} ended {outcome.ended.partition(chr(10))[0]}"
    return Section(
        title=f"Run of {outcome.arguments[0] if outcome.arguments else 'a program'}",
        headline="" if outcome.failed else words,
        facts=[*facts, *outcome.versions.items()],
        alarms=[words] if outcome.failed else (),
    )


def census_section(census: Census, builder: PageBuilder) -> Section:
    """Return the section of a census: a treemap by kind, module and site, and the table."""
    rows = _printed(census)
    ways = {
        way: [(row[way] or without, _called(row), row["bytes"]) for row in rows]
        for way, without in (("kind", ""), ("module", "no module"), ("dtype", "no tensor"), ("site", "not tracked"))
        if any(row[way] for row in rows)
    }
    devices = ", ".join(sorted({str(key) for key, _, _ in census.by("device")})) or "none"
    facts = [("alive", bytes_text(census.bytes)), ("devices", devices)]
    return _section("Memory", census, rows, ways, facts)


def _called(row: dict[str, Any]) -> str:
    """Return the name of a storage; of one without a name, what holds it."""
    return row["held by"] or row["name"] if row["name"].startswith("unnamed") else row["name"]  # type: ignore[no-any-return]


def saved_section(saved: Saved, builder: PageBuilder) -> Section:
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


def growth_section(growth: Growth, builder: PageBuilder) -> Section:
    found = [*growth]
    ways = {"cause": [(one.cause, one.name, one.bytes) for one in found]} if len(found) > 1 else {}
    section = _section("Growth", growth, _printed(found), ways, [])
    marked = [_marks(one, builder) for one in found if len(one.marks) > 1]
    return replace(section, panels=[*section.panels, *marked[:MARKED]])


MARKED = 12
"""Number of rows whose growth from mark to mark is drawn."""


def _marks(grown: Grown, builder: PageBuilder) -> PlotPanel:
    """Return the number of tensors at each mark as a curve."""
    curve = of_numbers(np.array(grown.marks), len(grown.marks))
    return PlotPanel(
        title=grown.name,
        anchor=builder.anchor(),
        facts="number of tensors at entry and at each mark",
        curves=[curve.drawn()],
        axis="mark",
    )


def summary_section(summary: Summary, builder: PageBuilder) -> Section:
    rows = summary.rows()
    names = [(row["module"], row["path"] or summary.model, row) for row in rows]
    parameters = [(kind, path, row["own_parameters"]) for kind, path, row in names]
    flops = [(kind, path, row["own_flops"]) for kind, path, row in names]
    ways = {"own parameters": parameters, "own FLOPs": flops}
    shown = {way: areas for way, areas in ways.items() if any(size for _, _, size in areas)}
    return _section(f"Modules of {summary.model}", summary, rows, shown, [], unit="")


def rows_section(found: Rows[Any], builder: PageBuilder, title: str = "") -> Section:
    """Return the section of any other result of byname that is a table."""
    rows = _printed(found) if found._columns() else found.rows()
    return _section(title or type(found).__name__, found, rows, {}, [])


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


BARS = 60
"""Number of bars of one figure."""
VECTORS = 120
"""Number of vectors that are drawn of one result."""
BEFORE = 5
"""Number of places before the first difference whose errors are drawn."""


def results_section(results: Results, builder: PageBuilder) -> Section:
    """Return the section of the figures of places: bars, heat maps, curves, and the table."""
    leaves = [*result_leaves(results)]
    vectors = [one for one in leaves if isinstance(one.value, Tensor) and one.value.ndim and one.value.numel()]
    panels: list[Panel] = [*_bars(leaves), *_matrices(leaves, results, builder)]
    panels += [_vector(one, builder) for one in vectors[:VECTORS]]
    panels += [TablePanel.of(results.rows(), title="Figures")] if results else []
    more = len(vectors) - VECTORS
    notes = [*results.notes, *([f"{counted(more, 'further vector')} only in the table"] if more > 0 else [])]
    headline = f"{counted(len(results), 'place')}: {', '.join(results.figures)}" if results else "no place"
    return Section(title=results.name, headline=headline, notes=notes, panels=panels)


def _label(leaf: ResultLeaf) -> str:
    return " · ".join([leaf.path, *map(str, leaf.labels)])


def _bars(leaves: Sequence[ResultLeaf]) -> Iterator[BarPanel]:
    """Yield the bars of each figure that is one number a place."""
    for name in dict.fromkeys(one.figure for one in leaves if single(one.value)):
        if name.rpartition(".")[2] in _AMOUNTS:
            continue
        known = [(_label(one), plain_number(one.value)) for one in leaves if one.figure == name and single(one.value)]
        finite = [abs(value) for _, value in known if math.isfinite(value)]
        most = max(finite, default=0) or 1
        bars = []
        for label, value in known[:BARS]:
            share = abs(value) / most if math.isfinite(value) else 0.0
            bars.append((label, figure(value) if type(value) is float else str(value), share))
        more = len(known) - BARS
        yield BarPanel(title=name, bars=bars, note=f"{counted(more, 'further place')} in the table" if more > 0 else "")


_AMOUNTS = ("samples", "nans", "dimension", "total", "channel_dim")
"""Figures that say how much data there was; they are in the table alone."""


def _matrices(leaves: Sequence[ResultLeaf], results: Results, builder: PageBuilder) -> Iterator[StripPanel]:
    """Yield a heat map of each figure that has a number for each of several things."""
    for name in dict.fromkeys(one.figure for one in leaves if isinstance(one.value, Mapping)):
        mine = [one for one in leaves if one.figure == name and isinstance(one.value, Mapping)]
        keys = keys_of(mine, results)
        cells = [[_finite(one.value.get(key)) for key in keys] for one in mine]
        labels = [(_label(one), builder.anchors.get(one.path, "")) for one in mine]
        yield StripPanel(title=name, labels=labels, columns=list(map(str, keys)), cells=cells)


def _finite(value: Any) -> float | None:
    value = plain_number(value)
    return rounded(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _vector(leaf: ResultLeaf, builder: PageBuilder) -> PlotPanel:
    """Return a tensor as a curve, or as a heat map if it has two sides."""
    shape = tuple(leaf.value.shape)
    title = f"{_label(leaf)} · {leaf.figure}"
    panel = PlotPanel(title=title, anchor=builder.anchor(), facts="×".join(map(str, shape)), axis="index")
    if sum(size > 1 for size in shape) > 1:
        picture = heat_map(Series(title, [leaf.value], [0], [0], [0], ["train"], [shape]))
        if picture is None:
            return replace(panel, note="too large for a picture")
        return replace(panel, picture={**picture, "labels": [""]})
    numbers = numpy_of(leaf.value).reshape(-1)
    curve = of_numbers(numbers, POINTS)
    note = "" if curve.first == curve.last else f"a point stands for up to {-(-len(numbers) // POINTS)} numbers"
    return replace(panel, curves=[curve.drawn()], note=note)


_WHEN = ("event", "epoch", "batch", "step")


def records_section(records: Records, builder: PageBuilder) -> Section:
    """Return the section of snapshots: each figure over the steps, and the table."""
    rows = records.rows()
    axis = next((key for key in ("step", "batch", "epoch") if all(type(row[key]) is int for row in rows)), "snapshot")
    numbered = [(index if axis == "snapshot" else row[axis], row) for index, row in enumerate(rows)]
    places = []
    for name, points in [*_tracks(numbered).items()][:VECTORS]:
        curve = of_numbers(np.array([value for _, value in points]), POINTS, [at for at, _ in points])
        places.append(PlotPanel(title=name, anchor=builder.anchor(), curves=[curve.drawn()], axis=axis))
    table = [TablePanel.of(rows, title="Snapshots")] if rows else []
    return Section(title=records._name, headline=counted(len(records), "snapshot"), panels=[*places, *table])


def _tracks(rows: Sequence[tuple[int, Mapping[str, Any]]]) -> dict[str, list[tuple[int, float]]]:
    """Return the numbers of each figure and place in the order of the snapshots."""
    found: dict[str, list[tuple[int, float]]] = {}
    for at, row in rows:
        where = [row.get("path"), row.get("class"), row.get("group")]
        words = " · ".join(str(one) for one in where if one is not None)
        for key, value in row.items():
            if key not in (*_WHEN, "path", "class", "group") and type(value) in (int, float):
                found.setdefault(f"{words} · {key}", []).append((at, float(value)))
    return {name: points for name, points in found.items() if len(points) > 1}


def diff_section(found: Diff, builder: PageBuilder) -> Section:
    """Return the section of a difference: the first one, the errors in the order of the run, and the table."""
    rows = found._shown()
    panels = [TablePanel.of(rows, title="Places")] if rows else []
    return Section(title="Difference", headline=found._title(), notes=found._notes(), panels=[*_errors(found), *panels])


def _errors(found: Diff) -> list[BarPanel]:
    """Return the largest error of each place that ran in both, in the order of the run; bars tell magnitudes."""
    ran = [one for one in found if one.kind == "value" and one.state not in ONLY]
    begin = next((number for number, one in enumerate(ran) if one.counts), None)
    if begin is None:
        return []
    begin = max(0, begin - BEFORE)
    errors = [one.largest or 0.0 for one in ran]
    sizes = [math.log10(error) for error in errors if 0 < error < math.inf]
    low, high = min(sizes, default=0.0) - 1, max(sizes, default=0.0)
    bars = []
    for one, error in [*zip(ran, errors, strict=True)][begin : begin + BARS]:
        share = 0.0 if error == 0 else 1.0 if error == math.inf else (math.log10(error) - low) / (high - low)
        path = f"{one.path} (the first)" if one is found.first_value else one.path
        bars.append((path, figure(error) if error else one.what or one.state, share))
    left = len(ran) - len(bars)
    note = f"{counted(left, 'further place')} not drawn; " if left > 0 else ""
    return [BarPanel(title="Largest error by place", bars=bars, note=f"{note}in the order of the run, logarithmic.")]
