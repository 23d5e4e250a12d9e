"""Sections of a report with recordings, live recorders and single series."""

from __future__ import annotations

import datetime
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from byname.recording import export
from byname.recording.recorder import Recorder
from byname.recording.recording import Recording
from byname.recording.series import Series
from byname.recording.series_by_path import place_row
from byname.reporting.heat_maps import heat_map
from byname.reporting.panels import PageBuilder, Panel, PlotPanel, Section, StripPanel, TablePanel, duration, figure
from byname.reporting.thinning import POINTS, Curve, curves_of, rounded
from byname.table import counted, listed
from byname.text import shape_text, with_progress

PLACES = 200
"""Number of places that are drawn of one thing."""


def recording_section(recording: Recording, builder: PageBuilder) -> Section:
    run = recording.run
    rows = recording.rows()
    records = sum(row["records"] for row in rows)
    files = recording._title().rpartition(": ")[0]
    state = "complete" if recording.complete else "not complete" if recording.ended else "not ended"
    return _section(
        f"Recording of {run.get('model', 'a model')}",
        f"{files}: {counted(records, 'record')} of {counted(len(rows), 'place')}, {state}",
        recording,
        builder,
        facts=_facts_of_run(run),
        alarms=recording.missing,
        rows=rows,
    )


def recorder_section(recorder: Recorder, builder: PageBuilder) -> Section:
    found = recorder.results
    silent = [path for path in recorder.paths if path not in found]
    notes = [*recorder.notes, *([f"no values yet from {listed(silent, 12)}"] if silent else [])]
    headline = f"{counted(sum(map(len, found.values())), 'record')} of {counted(len(found), 'place')}"
    facts = [("iteration", f"{recorder.iteration:,}")]
    return _section("Recorder", f"{headline}, up to iteration {recorder.iteration:,}", found, builder, facts, notes)


def series_by_path_section(found: Mapping[str, Series], builder: PageBuilder) -> Section:
    records = sum(map(len, found.values()))
    headline = f"{counted(records, 'record')} of {counted(len(found), 'place')}"
    return _section("Recorded values", headline, found, builder)


def series_section(series: Series, builder: PageBuilder) -> Section:
    return _section(series.path, export.title(series), {series.path: series}, builder)


def _section(
    title: str,
    headline: str,
    found: Mapping[str, Series],
    builder: PageBuilder,
    facts: Sequence[tuple[str, str]] = (),
    alarms: Sequence[str] = (),
    rows: Sequence[dict[str, Any]] = (),
) -> Section:
    paths = [*found]
    kept = paths[:PLACES]
    drawn = {path: _drawn(found[path], builder) for path in with_progress(kept, f"report of {title}")}
    curves = {path: of_place for path, (_, of_place) in drawn.items()}
    links = {path: place.anchor for path, (place, _) in drawn.items()}
    rows = rows or [place_row(path, series) for path, series in found.items()]
    table = TablePanel.of([_with_range(row, curves) for row in rows], title="Places", links=links, skip=("how",))
    panels: list[Panel] = [table, *_gradients(curves, links), *(place for place, _ in drawn.values())]
    more = len(paths) - len(kept)
    notes = [*([f"{counted(more, 'further place')} only in the table"] if more else []), *_thinned(curves)]
    if not any(len(series) for series in (found[path] for path in kept)):
        notes.insert(0, "nothing was recorded")
    return Section(
        title=title, headline=headline, facts=facts, notes=notes, alarms=alarms, panels=panels if paths else ()
    )


def _drawn(series: Series, builder: PageBuilder) -> tuple[PlotPanel, list[Curve]]:
    curves = curves_of(series) if len(series) else []
    without = sum(curve.without for curve in curves)  # such as None and empty tensors
    words = None if curves or not len(series) else TablePanel.of(export.shown(series, 40)[0], skip=("shape", "rank"))
    place = PlotPanel(
        title=series.path,
        anchor=builder.anchor(series.path),
        facts=_facts(series),
        curves=[curve.drawn() for curve in curves],
        picture=heat_map(series) if curves else None,
        table=words,
        alarm=" ".join(_bad(curves)),
        note=f"{counted(without, 'record')} without a number not drawn." if without else "",
        about=_about(series.path, curves),
    )
    return place, curves


def _facts(series: Series) -> str:
    shapes = list(dict.fromkeys(map(tuple, series.shapes)))
    form = shape_text(shapes[0]) if len(shapes) == 1 else f"{len(shapes)} shapes"
    parts = [form if shapes else "", counted(len(series), "record")]
    parts += [f"{len(set(series.ranks))} ranks"] if len(set(series.ranks)) > 1 else []
    parts += [f"up to {max(series.calls) + 1} calls an iteration"] if max(series.calls, default=0) else []
    parts += [str(series.sampling)] if series.sampling is not None else []
    return " · ".join(filter(None, parts))


def _bad(curves: Sequence[Curve]) -> Iterator[str]:
    for curve in curves:
        nan, infinite = sum(one[1] for one in curve.bad), sum(one[2] for one in curve.bad)
        if curve.bad:
            words = [f"{nan:,} NaN"] * bool(nan) + [f"{infinite:,} infinite"] * bool(infinite)
            mode = f" ({curve.name})" if curve.name else ""
            first = curve.first[curve.bad[0][0]]
            yield f"{' and '.join(words)} among the values{mode}, the first at iteration {first:,}."


def _about(path: str, curves: Sequence[Curve]) -> str:
    """Return the text in place of a curve, for readers who do not see it."""
    known = [one for curve in curves for one in curve.figures if one is not None]
    if not known:
        return f"{path}: no finite numbers"
    low, high = min(one[0] for one in known), max(one[4] for one in known)
    medians = f"median {figure(known[0][2])} first, {figure(known[-1][2])} last"
    return f"{path}: values from {figure(low)} to {figure(high)}; {medians}"


def _with_range(row: dict[str, Any], curves: Mapping[str, Sequence[Curve]]) -> dict[str, Any]:
    """Return a row with the range of the values that were read, and the number of those that are not finite."""
    of_place = curves.get(row["path"], ())
    known = [one for curve in of_place for one in curve.figures if one is not None]
    bad = sum(nan + infinite for curve in of_place for _, nan, infinite in curve.bad)
    ranks = row.get("ranks")
    row = {key: value for key, value in row.items() if key != "ranks" or (type(ranks) is tuple and len(ranks) > 1)}
    if known:
        row |= {"min": min(one[0] for one in known), "max": max(one[4] for one in known), "last median": known[-1][2]}
    return row | ({"not finite": bad} if bad else {})


def _thinned(curves: Mapping[str, Sequence[Curve]]) -> Iterator[str]:
    """Yield what the curves do not show."""
    every = [curve for of_place in curves.values() for curve in of_place]
    long = [curve for curve in every if curve.last != curve.first]
    if long:
        most = max(last - first + 1 for one in long for first, last in zip(one.first, one.last, strict=True))
        yield (
            f"{counted(len(long), 'curve')} with more than {POINTS} iterations: a point stands for up to "
            f"{most} of them and shows the range and the quartiles of all their values"
        )
    partly = [curve for curve in every if curve.taken < curve.records]
    if partly:
        read, there = sum(one.taken for one in partly), sum(one.records for one in partly)
        yield f"of {counted(len(partly), 'large place')} {read:,} of {there:,} records were read, evenly spaced"
    if any(one.sampled for one in every):
        yield "where a point stands for more than 50,000 numbers, its quartiles are those of an evenly spaced sample"


COLUMNS = 160
"""Columns of the heat map of gradients."""


def _gradients(curves: Mapping[str, Sequence[Curve]], links: Mapping[str, str]) -> list[StripPanel]:
    """Return the heat map of all gradients over the run, if there are at least two."""
    found = {path: one for path, (*_, one) in ((p, c) for p, c in curves.items() if p.endswith(".grad") and c)}
    starts = sorted({start for curve in found.values() for start in curve.first})
    if len(found) < 2 or len(starts) < 2:
        return []
    edges = [piece[0] for piece in np.array_split(np.array(starts), min(COLUMNS, len(starts)))]
    order = [*found][::-1]  # backward reaches the last layer first
    return [
        StripPanel(
            title="Gradients over the run",
            labels=[(path, links[path]) for path in order],
            columns=[f"from iteration {edge:,}" for edge in edges],
            cells=[_sizes(found[path], np.array(edges)) for path in order],
            logarithmic=True,
            note="The root mean square of each gradient, the last recorded at the top.",
        )
    ]


def _sizes(curve: Curve, edges: Any) -> list[float | None]:
    """Return the root mean square of the points in each column."""
    columns: list[list[float]] = [[] for _ in edges]
    for start, size in zip(curve.first, curve.size, strict=True):
        if size is not None:
            columns[int(np.searchsorted(edges, start, "right")) - 1].append(size)
    return [rounded(math.sqrt(sum(x * x for x in one) / len(one))) if one else None for one in columns]


def _facts_of_run(run: Mapping[str, Any]) -> list[tuple[str, str]]:
    arguments, started, processes = run.get("arguments"), run.get("started"), run.get("world_size", 1)
    facts = {
        "program": " ".join(map(str, arguments)) if isinstance(arguments, list) else "",
        "model": run.get("model"),
        "recording started": started and str(started).replace("T", " ")[:19] + " UTC",
        "recorded for": _lasted(started, run.get("updated")),
        **{label: run.get(label) for label in ("torch", "python", "byname")},
        "commit": str(run.get("commit", ""))[:12],
        "processes": "" if processes == 1 else processes,
    }
    return [(label, str(fact)) for label, fact in facts.items() if fact]


def _lasted(started: object, updated: object) -> str:
    try:
        begin, end = (datetime.datetime.fromisoformat(str(one)) for one in (started, updated))
        return duration((end - begin).total_seconds())
    except (ValueError, TypeError):  # a file of another writer
        return ""
