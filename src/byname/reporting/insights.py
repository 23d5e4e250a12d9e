"""Insights: findings with their source lines, drawings and the holders of tensors as sections of a report."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Sequence
from typing import Any

from byname.diagnose.finding import Finding
from byname.drawing.draw import Drawing
from byname.memory.holders import Holder
from byname.reporting.draft import PageDraft
from byname.reporting.panels import FindingPanel, PicturePanel, Section, TablePanel
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
    if not 0 < site.line <= len(lines) or not site.statement or not _same(lines[site.line - 1], site.statement):
        return {}
    first, last = max(1, site.line - AROUND), min(len(lines), site.line + AROUND)
    return {number: lines[number - 1].rstrip("\r\n") for number in range(first, last + 1)}


def _same(line: str, statement: str) -> bool:
    """Return whether a line of a file is one of a statement, which is written on one line."""
    line, statement = "".join(line.partition("  #")[0].split()), "".join(statement.split())
    return bool(line) and (line in statement or statement in line)


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
