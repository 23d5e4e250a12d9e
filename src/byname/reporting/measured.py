"""Measured: results of analysers and the snapshots of evaluations as sections of a report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from torch import Tensor

from byname.analyse.analyser import Analyser
from byname.analyse.evaluation.evaluation import Evaluation
from byname.analyse.evaluation.snapshots import Records
from byname.analyse.results.results import Results
from byname.analyse.results.tables import ResultLeaf, keys_of, leaves_of, plain, single
from byname.recording.export import numpy_of
from byname.recording.series import Series
from byname.reporting.draft import PageDraft
from byname.reporting.heat_maps import heat_map
from byname.reporting.panels import BarPanel, Panel, PlotPanel, Section, StripPanel, TablePanel, figure
from byname.reporting.thinning import Curve, of_numbers, rounded
from byname.table import counted

BARS = 60
"""Number of bars of one figure."""
VECTORS = 120
"""Number of vectors that are drawn of one result."""


def analyser_section(analyser: Analyser, draft: PageDraft) -> Section:
    """Return the section of what an analyser has found so far."""
    return results_section(analyser.result(), draft)


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
        bars = [(label, _words(value), _share(value, most)) for label, value in known[:BARS]]
        more = len(known) - BARS
        yield BarPanel(title=name, bars=bars, note=f"{counted(more, 'further place')} in the table" if more > 0 else "")


_AMOUNTS = ("samples", "nans", "dimension", "total", "channel_dim")
"""Figures that say how much data there was; they are in the table alone."""


def _words(value: Any) -> str:
    return figure(value) if type(value) is float else str(value)


def _share(value: float, most: float) -> float:
    return abs(value) / most if math.isfinite(value) else 0.0


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
    numbers = numpy_of(leaf.value).reshape(-1)
    shape = tuple(leaf.value.shape)
    if sum(size > 1 for size in shape) > 1:
        return _picture(leaf, shape, draft)
    curve = of_numbers(numbers, draft.points)
    return PlotPanel(
        title=f"{_label(leaf)} · {leaf.figure}",
        anchor=draft.anchor(),
        facts="×".join(map(str, leaf.value.shape)),
        curves=[curve.drawn()],
        axis="index",
        note=""
        if curve.first == curve.last
        else f"a point stands for up to {-(-len(numbers) // draft.points)} numbers",
    )


def _picture(leaf: ResultLeaf, shape: tuple[int, ...], draft: PageDraft) -> PlotPanel:
    """Return a tensor of two and more dimensions as a heat map."""
    title = f"{_label(leaf)} · {leaf.figure}"
    alone = Series(title, [leaf.value], [0], [0], [0], [""], [shape])
    picture = heat_map(alone, draft.cells)
    return PlotPanel(
        title=title,
        anchor=draft.anchor(),
        facts="×".join(map(str, shape)),
        picture=None if picture is None else {**picture, "labels": [""]},
        note="too large for a picture" if picture is None else "",
    )


def evaluation_section(evaluation: Evaluation, draft: PageDraft) -> Section:
    """Return the section of the snapshots of an evaluation."""
    return records_section(evaluation.records, draft)


_WHEN = ("event", "epoch", "batch", "step")


def records_section(records: Records, draft: PageDraft) -> Section:
    """Return the section of snapshots: each figure over the steps, and the table."""
    rows = records.rows()
    axis = next((key for key in ("step", "batch", "epoch") if all(type(row[key]) is int for row in rows)), "snapshot")
    numbered = [(index if axis == "snapshot" else row[axis], row) for index, row in enumerate(rows)]
    places = [_over_steps(name, points, axis, draft) for name, points in _tracks(numbered).items()][:VECTORS]
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


def _over_steps(name: str, points: Sequence[tuple[int, float]], axis: str, draft: PageDraft) -> PlotPanel:
    curve = Curve("")
    for at, value in points:
        curve.add(at, at, np.array([value]))
    return PlotPanel(title=name, anchor=draft.anchor(), curves=[curve.drawn()], axis=axis)
