"""Handbook: the causes that docs/failures.md describes, their sections there, and those that a program ignores."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable
from dataclasses import replace
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from byname.errors import BadArgumentError

if TYPE_CHECKING:
    from byname.diagnose.finding import Finding
    from byname.source.location import Site


@cache
def sections() -> dict[str, str]:
    """Return for each cause its section of the page, and the rows of tables that describe it, as markdown."""
    beside = Path(__file__).with_name("failures.md")  # in a wheel; in the repository the page is among the others
    page = (beside if beside.exists() else Path(__file__).parents[3] / "docs" / "failures.md").read_text("utf-8")
    headed = {part.partition("\n")[0].replace(" ", "-"): part for part in page.split("\n## ")[1:]}
    found: dict[str, str] = {}
    for names, anchor in re.findall(r"^\| \[([\w, -]+)\]\(#([\w-]+)\) \|", page, re.M):
        found |= dict.fromkeys(names.split(", "), f"## {headed[anchor].strip()}")
    guessed = page.find("marked *suspicious*")
    for row in re.finditer(r"^\| `([\w-]+)`([^|]*)\| (.*) \| (.*) \|$", page, re.M):
        cause, mark, seen, helps = row.groups()
        seen = f"(*suspicious*) {seen}" if mark.strip() or row.start() > guessed else seen
        found[cause] = f"{found.get(cause, f'## {cause}')}\n\n- {seen}\n\n  **What helps:** {helps}"
    return found


def known_causes(names: str | Iterable[str]) -> frozenset[str]:
    """Return some causes, or a single one, as a set; a name that is none is an error, which names the closest."""
    wanted = frozenset([names] if isinstance(names, str) else names)
    for name in sorted(map(str, wanted - sections().keys())):
        raise BadArgumentError(f"there is no cause {name!r}; the closest is {closest_cause(name)!r}")
    return wanted


def closest_cause(name: str) -> str:
    return get_close_matches(name[:99], sections(), n=1, cutoff=0)[0]


def filter_ignored(finding: Finding, ignored: Collection[str] = ()) -> list[Finding]:
    """Return a finding in a list, or none if its cause is ignored: anywhere, or by a comment on one of its lines.

    A comment with a word that is no cause ignores nothing, and the finding says so.
    """
    lines = [one for site in finding.sites for one in (site, site.caller) if one is not None]
    commented = {name: site for site in lines for name in _ignored_at(site)}
    if finding.cause in (*ignored, *commented):
        return []
    wrong = [(name, at) for name, at in commented.items() if name not in sections()]
    words = [f"{name!r}, ignored at {at}, is not a cause; the closest is {closest_cause(name)!r}" for name, at in wrong]
    return [replace(finding, details=(*finding.details, *words)) if words else finding]


_COMMENT = re.compile(r"#\s*byname:\s*ignore\[([^\]]*)\]")


def _ignored_at(site: Site) -> list[str]:
    """Return the causes that comments ignore at the statement of a site; of a block, at its head."""
    from byname.source.code import parsed_file  # here, since the command `explain` needs no PyTorch

    source = parsed_file(site.file)
    numbers = {site.line}
    for one in source.statements_at_line(site.line) if source.tree is not None else ():
        block: Any = getattr(one, "body", None)
        end: int = block[0].lineno if isinstance(block, list) and block else getattr(one, "end_lineno", 0) + 1
        numbers.update(range(one.lineno, end) if isinstance(one, ast.stmt) else ())
    text = "\n".join([source.lines[number - 1] for number in sorted(numbers) if 0 < number <= len(source.lines)])
    return [name.strip() for names in _COMMENT.findall(text) for name in names.split(",")]
