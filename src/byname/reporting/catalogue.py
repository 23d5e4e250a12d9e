"""Catalogue: which section stands for which kind of thing. A new kind is one more row of `KINDS`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any

from byname.analyse.analyser import Analyser
from byname.analyse.evaluation.evaluation import Evaluation
from byname.analyse.evaluation.snapshots import Records
from byname.analyse.results.results import Results as Measured
from byname.autograd.leaves import Leaves
from byname.autograd.saved import Saved
from byname.diagnose.finding import Finding
from byname.drawing.draw import Drawing
from byname.edits.capture import Capture
from byname.edits.summary import Summary
from byname.errors import BadArgumentError
from byname.memory.census import Census
from byname.memory.growth import Growth
from byname.memory.holders import Holder
from byname.recording.recorder import Recorder
from byname.recording.recording import Recording
from byname.recording.series import Series
from byname.recording.series_by_path import RecordedSeries, SeriesByPath
from byname.reporting import allotments, insights, measured, runs
from byname.reporting.draft import PageDraft
from byname.reporting.outcomes import Outcome, outcome_section
from byname.reporting.panels import Section
from byname.table import Rows

Maker = Callable[[Any, PageDraft], Section]

KINDS: tuple[tuple[type, Maker], ...] = (
    (Recording, runs.recording_section),
    (Outcome, outcome_section),
    (Recorder, runs.recorder_section),
    (RecordedSeries, runs.series_by_path_section),
    (SeriesByPath, runs.series_by_path_section),
    (Series, runs.series_section),
    (Census, allotments.census_section),
    (Growth, allotments.growth_section),
    (Saved, allotments.saved_section),
    (Leaves, allotments.leaves_section),
    (Summary, allotments.summary_section),
    (Drawing, insights.drawing_section),
    (Measured, measured.results_section),
    (Analyser, measured.analyser_section),
    (Evaluation, measured.evaluation_section),
    (Records, measured.records_section),
    (Capture, allotments.rows_section),
    (Rows, allotments.rows_section),
)
"""The kinds of things that a report takes, the first that fits."""

TOGETHER: tuple[tuple[type, Maker], ...] = (
    (Finding, insights.findings_section),
    (Holder, insights.holders_section),
)
"""Kinds of which those that follow each other share a section."""


def _row_of(thing: object, table: Sequence[tuple[type, Maker]]) -> Maker | None:
    return next((maker for kind, maker in table if issubclass(type(thing), kind)), None)


def checked(things: Iterable[Any]) -> Iterator[Any]:
    """Yield the things one after the other, also those in lists and tuples.

    Raises:
        BadArgumentError: a thing is of no kind that a report can show.
    """
    for thing in things:
        if type(thing) in (list, tuple):
            yield from checked(thing)
        elif is_path(thing) or _row_of(thing, (*TOGETHER, *KINDS)):
            yield thing
        else:
            names = ", ".join(dict.fromkeys(kind.__name__ for kind, _ in (*KINDS, *TOGETHER)))
            raise BadArgumentError(
                f"report() has no section for a {type(thing).__name__}; it takes the path of a recording, and {names}, "
                "and lists of these"
            )


def is_path(thing: object) -> bool:
    """Return whether a thing is the path of a file; asks its class alone, for a thing may be anything."""
    return issubclass(type(thing), str | os.PathLike)


def places_in(things: Iterable[Any]) -> int:
    """Return the number of places whose values will be drawn."""
    return sum(len(thing) for thing in things if isinstance(thing, Recording | RecordedSeries | SeriesByPath)) + sum(
        len(thing.results) for thing in things if isinstance(thing, Recorder)
    )


def sections_of(things: Iterable[Any], draft: PageDraft) -> Iterator[Section]:
    """Yield the sections of some things, in their order."""
    for maker, group in groupby(things, lambda thing: _row_of(thing, TOGETHER)):
        if maker is not None:
            yield maker([*group], draft)
            continue
        for thing in group:
            make = _row_of(thing, KINDS)
            assert make is not None, "refused before"
            yield make(thing, draft)
