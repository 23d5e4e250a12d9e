"""JSON lines: findings, censuses, growth and lines of a program as values that JSON has, and the file of a run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from byname.cli.command import CommandError
from byname.cli.watcher import Watcher, failure
from byname.diagnose.finding import Finding, explained
from byname.memory.census import Census, StorageRow
from byname.source.location import Site
from byname.text import printable


def finding_facts(finding: Finding) -> dict[str, Any]:
    return finding.row() | {"sites": [site_facts(site) for site in finding.sites]}


def census_facts(found: Census) -> dict[str, Any]:
    """Return a census as values that JSON has, with all rows. No row holds the values of a tensor."""
    return {
        "bytes": found.bytes,
        "unattributed": found.unattributed,
        "notes": list(found.notes),
        "rows": [_storage_facts(one) for one in found],
    }


def _storage_facts(one: StorageRow) -> dict[str, Any]:
    row = one.row()
    sites = {"site": one.site, "caller": one.site and one.site.caller}
    return {"holders": row.pop("held_by"), **row, **{key: site and site_facts(site) for key, site in sites.items()}}


def site_facts(site: Site) -> dict[str, Any]:
    return {"file": site.file, "line": site.line, "function": site.function, "statement": site.statement}


class JsonLines(Watcher):
    """A file of lines of JSON, the last for the end of the program; a fork of the process writes none.

    What the file held before is gone. A file that cannot be written raises a `CommandError` before the program starts.
    """

    def __init__(self, to: str) -> None:
        if to == "-":
            raise CommandError("--json -: the program writes to the standard output; name a file", exit_code=2)
        try:
            self._file = Path(to).absolute().open("w", encoding="utf-8")
        except OSError as error:
            raise CommandError(f"--json: {printable(to)} cannot be written: {error.strerror}", exit_code=2) from None
        super().__init__()

    def write(self, kind: str, facts: dict[str, Any]) -> None:
        """Write a line, which is in the file when this returns."""
        if self.in_its_process():
            self._file.write(json.dumps({"kind": kind, **facts}) + "\n")
            self._file.flush()

    def at_end(self, error: BaseException | None) -> None:
        self.write("end", {"error": type(error).__name__ if failure(error) else None})
        self._file.close()


class FindingsFile(JsonLines):
    """Lines for findings, when they come, and for the explanation of the error that ends the program."""

    def found(self, finding: Finding) -> None:
        self.write("finding", finding_facts(finding))

    def at_end(self, error: BaseException | None) -> None:
        explanation = None if error is None else explained(error)
        if explanation is not None:
            self.write("explanation", finding_facts(explanation))
        super().at_end(error)
