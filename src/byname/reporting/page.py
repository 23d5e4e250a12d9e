"""Page: `report` and the one HTML file that it writes, with all its data, styles and scripts inside.

Which section stands for which kind of thing says a table, `KINDS`: a new kind is one more row.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import json
import math
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from importlib.resources import files
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from byname.analyse.analyser import Analyser
from byname.analyse.evaluation import Evaluation
from byname.analyse.results import Results
from byname.analyse.snapshots import Records
from byname.autograd.saved import Saved
from byname.codec import write_atomically
from byname.comparing.diff import Diff
from byname.diagnose.finding import Finding
from byname.drawing.draw import Drawing
from byname.edits.capture import Capture
from byname.edits.summary import Summary
from byname.errors import BadArgumentError, NoFolderError, recording_error
from byname.extras import needs
from byname.memory.census import Census
from byname.memory.growth import Growth
from byname.memory.holders import Holder
from byname.recording.facts import version
from byname.recording.recorder import Recorder
from byname.recording.recording import Recording
from byname.recording.recording import open as open_recording
from byname.recording.series import Series
from byname.recording.series_by_path import RecordedSeries, SeriesByPath
from byname.reporting import recording_sections, result_sections
from byname.reporting.panels import PageBuilder, PicturePanel, Section
from byname.table import Rows, counted
from byname.text import printable, printable_lines

if TYPE_CHECKING:
    from jinja2 import Environment
    from markupsafe import Markup

SCRIPTS = ("colours.js", "plots.js", "heat.js", "areas.js", "tables.js", "start.js")


def report(*things: Any, to: str | os.PathLike[str] = "report.html", refresh: float | None = None) -> Path:
    """Write one HTML page that shows recordings, censuses, findings and other results.

    The page is one file: it needs no network, no server and no other file. It begins with an overview, and has a
    section for each thing in the order in which they are given. Long recordings are thinned for the page, which says so
    in numbers. An existing file is replaced when the new one is complete.

    Args:
        things: recordings (or their paths), recorders, series, censuses, growth, leaves, saved tensors, findings,
            drawings, summaries, analysers and their results, evaluations, every other result with ``rows()``; and
            lists of these.
        to: the file, which ends in ``.html`` or ``.htm``.
        refresh: an open page reloads itself after this many seconds, as long as it is written anew.

    Returns:
        The path of the file.

    Raises:
        BadArgumentError: `to` has another ending, nothing is given, or something that a report cannot show.
        NotInstalledError: jinja2 is not installed (``pip install "byname[report]"``).
        NoRecordingError: there is no recording at a path that is given.
        RecordingError: the file cannot be written.

    >>> import byname, tempfile, torch
    >>> model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU())
    >>> with byname.record(model, "1") as recorder:
    ...     for _ in range(20):
    ...         _ = model(torch.randn(3, 4))
    >>> file = byname.report(recorder, byname.census(), to=tempfile.mkdtemp() + "/report.html")
    >>> file.name, "<h2" in file.read_text()
    ('report.html', True)
    """
    file = ready_to_write(to)
    every = [*_checked(things)]
    if not every:
        raise BadArgumentError("report() needs something to show, and nothing was given")
    with contextlib.ExitStack() as opened:
        every = [opened.enter_context(open_recording(one)) if is_path(one) else one for one in every]
        builder = PageBuilder()
        sections = [*sections_of(every, builder)]
    page = _rendered(_environment(), sections, builder, refresh)
    try:
        write_atomically(file, page.encode())
    except OSError as error:
        raise recording_error(f"the report {file} cannot be written: {error.strerror}", error) from None
    return file


def ready_to_write(to: str | os.PathLike[str]) -> Path:
    """Return the file of a report that can be written; no other ending is, so that none replaces its recording."""
    if not isinstance(to, str | os.PathLike) or not isinstance(os.fspath(to), str):
        raise BadArgumentError(f"to= is the path of an HTML file, not {type(to).__name__}")
    file = Path(to)
    if file.suffix.lower() not in _ENDINGS:
        raise BadArgumentError(f"a report is an HTML file: to={printable(str(file))!r} should end in .html")
    if not file.absolute().parent.is_dir():
        raise NoFolderError(f"the report {file} cannot be written: there is no folder {file.parent}")
    _environment()
    return file


def _environment() -> Environment:
    with needs("report()", "jinja2"):
        from jinja2 import Environment, PackageLoader, StrictUndefined
    loader = PackageLoader("byname.reporting", "templates")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    # Text comes without characters that no page should have, such as those that turn the direction of writing.
    environment.finalize = lambda value: printable_lines(value) if type(value) is str else value
    environment.filters["json"] = _json
    environment.filters["linked"] = _linked
    environment.filters["code"] = _code
    return environment


def _code(sentence: str) -> Markup:
    """Return a sentence with what stands between backticks as code."""
    from markupsafe import Markup, escape

    return Markup(re.sub("`([^`]+)`", r"<code>\1</code>", str(escape(printable_lines(sentence)))))


def _asset(name: str) -> str:
    return files("byname.reporting").joinpath("assets", name).read_text(encoding="utf-8")


def _rendered(
    environment: Environment, sections: Sequence[Section], builder: PageBuilder, refresh: float | None
) -> str:
    from markupsafe import Markup

    script = "\n".join(map(_asset, SCRIPTS))
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'"
    return environment.get_template("page.html").render(
        title=_title(sections),
        sections=sections,
        overview=_overview(sections),
        anchors=builder.anchors,
        style=Markup(_asset("page.css")),
        script=Markup(script),
        policy=policy,
        now=datetime.datetime.now().astimezone(),
        refresh=refresh,
        version=version(),
    )


def _title(sections: Sequence[Section]) -> str:
    """Return what the report is of: the model, where a recording tells it."""
    models = dict.fromkeys(value for section in sections for label, value in section.facts if label == "model")
    if models:
        return f"Report of {' and '.join(models)}"
    more = f" and {counted(len(sections) - 1, 'more part')}" if len(sections) > 1 else ""
    return sections[0].title + more


def _overview(sections: Sequence[Section]) -> list[tuple[str, str]]:
    """Return the facts of all sections, each once; those in which sections differ stay in the sections."""
    every = dict.fromkeys(fact for section in sections for fact in section.facts)
    labels = Counter(label for label, _ in every)
    return [(label, value) for label, value in every if labels[label] == 1]


def _json(data: Any) -> Markup:
    """Return data as JSON that may stand in a script element, whatever its texts are."""
    from markupsafe import Markup

    text = json.dumps(_plain(data), allow_nan=False, separators=(",", ":"))
    for letter in "<>&":
        text = text.replace(letter, f"\\u{ord(letter):04x}")
    return Markup(text)


def _plain(data: Any) -> Any:
    """Return data with texts for the numbers that JSON does not have."""
    if type(data) is float and not math.isfinite(data):
        return "NaN" if data != data else "Infinity" if data > 0 else "-Infinity"
    if isinstance(data, dict):
        return {str(key): _plain(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_plain(one) for one in data]
    return printable(data) if type(data) is str else data


def _linked(picture: PicturePanel, anchors: dict[str, str]) -> Markup:
    """Return the SVG of a picture, with links over the boxes whose values are on the page."""
    from markupsafe import Markup, escape

    links = [
        Markup(
            '<a href="#{}" data-path="{}"><rect x="{}" y="{}" width="{}" height="{}" class="place-link"/>'
            '<circle cx="{}" cy="{}" r="4.5" class="place-dot"/><title>{}</title></a>'
        ).format(anchors[found[0]], printable(path), x, y, width, height, x + 1, y + 1, printable(found[0] + more))
        for path, x, y, width, height in picture.boxes
        if (found := [one for one in anchors if one == path or one.startswith((f"{path}.", f"{path}["))])
        for more in [f" and {counted(len(found) - 1, 'more place')}" if len(found) > 1 else ""]
    ]
    before, end, _ = picture.svg.rpartition("</svg>")
    return Markup(before) + Markup("").join(map(escape, links)) + Markup(end)


Maker = Callable[[Any, PageBuilder], Section]

KINDS: tuple[tuple[type, Maker], ...] = (
    (Recording, recording_sections.recording_section),
    (result_sections.Outcome, result_sections.outcome_section),
    (Recorder, recording_sections.recorder_section),
    (RecordedSeries, recording_sections.series_by_path_section),
    (SeriesByPath, recording_sections.series_by_path_section),
    (Series, recording_sections.series_section),
    (Census, result_sections.census_section),
    (Growth, result_sections.growth_section),
    (Saved, result_sections.saved_section),
    (Summary, result_sections.summary_section),
    (Drawing, result_sections.drawing_section),
    (Results, result_sections.results_section),
    (Analyser, lambda analyser, builder: result_sections.results_section(analyser.result(), builder)),
    (Evaluation, lambda evaluation, builder: result_sections.records_section(evaluation.records, builder)),
    (Records, result_sections.records_section),
    (Diff, result_sections.diff_section),
    (Capture, lambda capture, builder: result_sections.rows_section(capture._table(), builder, "Capture")),
    (Rows, result_sections.rows_section),
)
"""The kinds of things that a report takes, the first that fits."""

TOGETHER: tuple[tuple[type, Maker], ...] = (
    (Finding, result_sections.findings_section),
    (Holder, result_sections.holders_section),
)
"""The kinds of things that share a section if they follow each other."""


def _row_of(thing: object, table: Sequence[tuple[type, Maker]]) -> Maker | None:
    return next((maker for kind, maker in table if issubclass(type(thing), kind)), None)


_ENDINGS = (".html", ".htm")


def _checked(things: Iterable[Any]) -> Iterator[Any]:
    """Yield the things one after the other, also those in lists and tuples; refuse what no report can show."""
    for thing in things:
        if type(thing) in (list, tuple):
            yield from _checked(thing)
        elif is_path(thing) and str(thing).lower().endswith(_ENDINGS):
            raise BadArgumentError(f"{printable(str(thing))!r} is a page, not a recording; to= names the page")
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


def sections_of(things: Iterable[Any], builder: PageBuilder) -> Iterator[Section]:
    for maker, group in groupby(things, lambda thing: _row_of(thing, TOGETHER)):
        if maker is not None:
            yield maker([*group], builder)
            continue
        for thing in group:
            make = _row_of(thing, KINDS)
            assert make is not None, "refused before"
            yield make(thing, builder)
