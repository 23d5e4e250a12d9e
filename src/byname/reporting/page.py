"""Page: `report` and the one HTML file that it writes, with all its data, styles and scripts inside."""

from __future__ import annotations

import base64
import contextlib
import datetime
import hashlib
import json
import math
import os
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from byname.errors import BadArgumentError, NoFolderError, recording_error
from byname.extras import needs
from byname.recording.facts import version
from byname.recording.recording import open as open_recording
from byname.reporting.catalogue import checked, is_path, places_in, sections_of
from byname.reporting.draft import PageDraft
from byname.reporting.panels import PicturePanel, Section
from byname.table import counted
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
        refresh: an open page loads itself again after so many seconds, as long as it is written anew.

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
    every = [*checked(things)]
    if not every:
        raise BadArgumentError("report() shows what it is given, and nothing was given")
    with contextlib.ExitStack() as opened:
        every = [_opened(thing, opened) for thing in every]
        draft = PageDraft(places_in(every))
        sections = [*sections_of(every, draft)]
    _write(file, _rendered(_environment(), sections, draft, refresh))
    return file


def _opened(thing: Any, opened: contextlib.ExitStack) -> Any:
    return opened.enter_context(open_recording(thing)) if is_path(thing) else thing


def ready_to_write(to: str | os.PathLike[str]) -> Path:
    """Return the file of a report that can be written; `report` asks this before anything else.

    Endings of other files are refused, so that no recording is replaced by its report.

    Raises:
        BadArgumentError: `to` is no path of an HTML file.
        NoFolderError: its folder does not exist.
        NotInstalledError: jinja2 is not installed.
    """
    if not isinstance(to, str | os.PathLike) or not isinstance(os.fspath(to), str):
        raise BadArgumentError(f"to= is the path of an HTML file, not {type(to).__name__}")
    file = Path(to)
    if file.suffix.lower() not in (".html", ".htm"):
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
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_safe
    )
    environment.filters["json"] = _json
    environment.filters["linked"] = _linked
    return environment


def _safe(value: Any) -> Any:
    """Return text without characters that no page should have, such as those that turn the direction of writing."""
    return printable_lines(value) if type(value) is str else value


def _asset(name: str) -> str:
    return files("byname.reporting").joinpath("assets", name).read_text(encoding="utf-8")


def _rendered(environment: Environment, sections: Sequence[Section], draft: PageDraft, refresh: float | None) -> str:
    from markupsafe import Markup

    script = "\n".join(map(_asset, SCRIPTS))
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'"
    return environment.get_template("page.html").render(
        title=_title(sections),
        sections=sections,
        overview=_overview(sections),
        anchors=draft.anchors,
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
        ).format(anchors[found[0]], printable(path), x, y, width, height, x + 1, y + 1, printable(_counted(found)))
        for path, x, y, width, height in picture.boxes
        if (found := [*_within(path, anchors)])
    ]
    before, end, _ = picture.svg.rpartition("</svg>")
    return Markup(before) + Markup("").join(map(escape, links)) + Markup(end)


def _within(path: str, anchors: dict[str, str]) -> Iterator[str]:
    """Yield the places with values at or below a path."""
    return (one for one in anchors if one == path or one.startswith((f"{path}.", f"{path}[")))


def _counted(found: Sequence[str]) -> str:
    return found[0] if len(found) == 1 else f"{found[0]} and {counted(len(found) - 1, 'more place')}"


def _write(file: Path, text: str) -> None:
    """Write a file whole or not at all."""
    try:
        handle, name = tempfile.mkstemp(prefix=f".{file.name[:100]}.", suffix=".part", dir=file.parent)
    except OSError as error:
        raise recording_error(f"the report {file} cannot be written: {error.strerror}", error) from None
    try:
        with open(handle, "w", encoding="utf-8", newline="\n") as stream:  # noqa: PTH123 - a descriptor
            stream.write(text)
        os.chmod(name, _mode_of(file))  # noqa: PTH101 - beside replace
        os.replace(name, file)  # noqa: PTH105 - what the rename is called where it replaces
    except BaseException as error:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(name)  # noqa: PTH108 - a name of tempfile
        if isinstance(error, OSError):
            raise recording_error(f"the report {file} cannot be written: {error.strerror}", error) from None
        raise


def _mode_of(file: Path) -> int:
    """Return the permissions of the file that is replaced, or those that a new file gets."""
    with contextlib.suppress(OSError):
        return file.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
