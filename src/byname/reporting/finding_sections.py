"""Sections of a report with findings and their source lines, drawings, holders of tensors, and how a program ended."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from byname.diagnose.finding import Finding
from byname.drawing.draw import Drawing
from byname.memory.holders import Holder
from byname.reporting.panels import FindingPanel, PageDraft, PicturePanel, Section, TablePanel, duration
from byname.source.location import Site
from byname.table import counted
from byname.text import printable_lines


def findings_section(found: Sequence[Finding], draft: PageDraft) -> Section:
    """Return the section of some findings, each with the lines of its story."""
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


def holders_section(found: Sequence[Holder], draft: PageDraft) -> Section:
    """Return the section of what keeps a tensor alive."""
    rows = [{"kind": one.kind, "path": one.path, "holder": one.text} for one in found]
    return Section(title="Holders", headline=counted(len(found), "holder"), panels=[TablePanel.of(rows)])


def drawing_section(drawing: Drawing, draft: PageDraft) -> Section:
    """Return the section of the picture of a model."""
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


def outcome_section(outcome: Outcome, draft: PageDraft) -> Section:
    """Return the section of a run."""
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
