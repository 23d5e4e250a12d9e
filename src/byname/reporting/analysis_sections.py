"""Sections of a report with results of analysers, snapshots of evaluations, and differences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from torch import Tensor

from byname.analyse.results import Results
from byname.analyse.snapshots import Records
from byname.analyse.tables import ResultLeaf, keys_of, leaves_of, plain, single
from byname.comparing.diff import Diff
from byname.comparing.difference import ONLY
from byname.recording.export import numpy_of
from byname.recording.series import Series
from byname.reporting.heat_maps import heat_map
from byname.reporting.panels import BarPanel, PageDraft, Panel, PlotPanel, Section, StripPanel, TablePanel, figure
from byname.reporting.thinning import POINTS, of_numbers, rounded
from byname.table import counted

BARS = 60
"""Number of bars of one figure."""
VECTORS = 120
"""Number of vectors that are drawn of one result."""
BEFORE = 5
"""Number of places before the first difference whose errors are drawn."""


def results_section(results: Results, draft: PageDraft) -> Section:
    """Return the section of the figures of places: bars, heat maps, curves, and the table."""
    leaves = [*leaves_of(results)]
    vectors = [one for one in leaves if isinstance(one.value, Tensor) and one.value.ndim and one.value.numel()]
    panels: list[Panel] = [*_bars(leaves), *_matrices(leaves, results, draft)]
    panels += [_vector(one, draft) for one in vectors[:VECTORS]]
    panels += [TablePanel.of(results.rows(), title="Figures")] if results else []
    more = len(vectors) - VECTORS
    notes = [*results.notes, *([f"{counted(more, 'further vector')} in the table alone"] if more > 0 else [])]
    headline = f"{counted(len(results), 'place')}: {', '.join(results.figures)}" if results else "no place"
    return Section(title=results.name, headline=headline, notes=notes, panels=panels)


def _label(leaf: ResultLeaf) -> str:
    return " · ".join([leaf.path, *map(str, leaf.labels)])


def _bars(leaves: Sequence[ResultLeaf]) -> Iterator[BarPanel]:
    """Yield the bars of each figure that is one number a place."""
    for name in dict.fromkeys(one.figure for one in leaves if single(one.value)):
        if name.rpartition(".")[2] in _AMOUNTS:
            continue
        known = [(_label(one), plain(one.value)) for one in leaves if one.figure == name and single(one.value)]
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


def _matrices(leaves: Sequence[ResultLeaf], results: Results, draft: PageDraft) -> Iterator[StripPanel]:
    """Yield a heat map of each figure that has a number for each of several things."""
    for name in dict.fromkeys(one.figure for one in leaves if isinstance(one.value, Mapping)):
        mine = [one for one in leaves if one.figure == name and isinstance(one.value, Mapping)]
        keys = keys_of(mine, results)
        cells = [[_finite(one.value.get(key)) for key in keys] for one in mine]
        labels = [(_label(one), draft.anchors.get(one.path, "")) for one in mine]
        yield StripPanel(title=name, labels=labels, columns=list(map(str, keys)), cells=cells)


def _finite(value: Any) -> float | None:
    value = plain(value)
    return rounded(value) if isinstance(value, int | float) and math.isfinite(value) else None


def _vector(leaf: ResultLeaf, draft: PageDraft) -> PlotPanel:
    """Return a tensor as a curve, or as a heat map if it has two sides."""
    shape = tuple(leaf.value.shape)
    title = f"{_label(leaf)} · {leaf.figure}"
    panel = PlotPanel(title=title, anchor=draft.anchor(), facts="×".join(map(str, shape)), axis="index")
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


def records_section(records: Records, draft: PageDraft) -> Section:
    """Return the section of snapshots: each figure over the steps, and the table."""
    rows = records.rows()
    axis = next((key for key in ("step", "batch", "epoch") if all(type(row[key]) is int for row in rows)), "snapshot")
    numbered = [(index if axis == "snapshot" else row[axis], row) for index, row in enumerate(rows)]
    places = []
    for name, points in [*_tracks(numbered).items()][:VECTORS]:
        curve = of_numbers(np.array([value for _, value in points]), POINTS, [at for at, _ in points])
        places.append(PlotPanel(title=name, anchor=draft.anchor(), curves=[curve.drawn()], axis=axis))
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


def diff_section(found: Diff, draft: PageDraft) -> Section:
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
        bars.append((one.path, figure(error) if error else one.what or one.state, share))
    left = len(ran) - len(bars)
    note = f"{counted(left, 'further place')} not drawn; " if left > 0 else ""
    return [BarPanel(title="Largest error by place", bars=bars, note=f"{note}in the order of the run, logarithmic.")]
