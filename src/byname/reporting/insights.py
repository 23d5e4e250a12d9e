"""Insights: findings with their source lines, drawings and the holders of tensors as sections of a report."""

from __future__ import annotations

import linecache
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from byname.diagnose.finding import Finding
from byname.drawing.draw import Drawing
from byname.memory.holders import Holder
from byname.reporting.blocks import Findings, Picture, Section, Table
from byname.reporting.draft import Draft
from byname.source.location import Site
from byname.table import counted
from byname.text import printable_lines

__all__ = ["drawing_section", "findings_section", "holders_section"]


def findings_section(found: Sequence[Finding], draft: Draft) -> Section:
    """Return the section of some findings, each with the lines of its story."""
    causes = Counter(one.cause for one in found)
    words = ", ".join(f"{cause} ({count})" if count > 1 else cause for cause, count in causes.most_common())
    stories = [{**one.row(), "story": [*_story(one.sites)]} for one in found]
    headline = f"{counted(len(found), 'finding')}: {words}"
    return Section(title="Findings", headline=headline, blocks=[Findings(found=stories)])


AROUND = 2
"""Lines of the file that are shown before and after a line of the story."""


def _story(sites: Sequence[Site]) -> Iterator[dict[str, Any]]:
    """Yield each line of a story once, with the lines around it where the file still has it."""
    for site in {(site.file, site.line, site.statement): site for site in sites}.values():
        yield {
            "where": site.with_caller,
            "file": site.file,
            "function": site.function,
            "statement": site.statement,
            "lines": [*_lines_around(site)],
        }


def _lines_around(site: Site) -> Iterator[tuple[int, str, bool]]:
    """Yield number and text of the lines around a site, and whether it is the one; none if the file has changed."""
    lines = linecache.getlines(site.file)
    if not 0 < site.line <= len(lines) or not site.statement:
        return
    here = lines[site.line - 1].strip()
    if not here or not _same(here, site.statement):
        return
    first, last = max(1, site.line - AROUND), min(len(lines), site.line + AROUND)
    for number in range(first, last + 1):
        yield number, lines[number - 1].rstrip("\n"), number == site.line


def _same(line: str, statement: str) -> bool:
    """Return whether a line of a file is one of a statement, which is written on one line."""
    line, statement = "".join(line.partition("  #")[0].split()), "".join(statement.split())
    return line in statement or statement in line


def holders_section(found: Sequence[Holder], draft: Draft) -> Section:
    """Return the section of what keeps a tensor alive."""
    rows = [{"kind": one.kind, "path": one.path, "holder": one.text} for one in found]
    return Section(title="Holders", headline=counted(len(found), "holder"), blocks=[Table.of(rows)])


def drawing_section(drawing: Drawing, draft: Draft) -> Section:
    """Return the section of the picture of a model."""
    scene = drawing.scene
    boxes = [(box.path, box.x, box.y, box.width, 24.0 if box.open else box.height) for box in scene.boxes if box.path]
    headline = str(drawing).splitlines()[0].partition(": ")[2]
    picture = Picture(svg=printable_lines(drawing.svg), boxes=boxes, width=scene.width)
    return Section(title=f"Drawing of {scene.title}", headline=headline, notes=scene.notes, blocks=[picture])
