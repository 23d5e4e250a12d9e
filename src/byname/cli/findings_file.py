"""Findings file: what a run found, as a line of JSON each, for other programs to read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from byname.cli.command import CommandError, say
from byname.cli.unnoticed import unnoticed
from byname.diagnose.finding import Finding, explained
from byname.source.location import Site
from byname.text import printable

__all__ = ["FindingsFile"]


class FindingsFile:
    """Writes findings when they come, the explanation of the error that ends the block, and how it ended.

    Args:
        to: the file; what it held before is gone.

    Raises:
        CommandError: the file cannot be written; the program has not been started then.
    """

    def __init__(self, to: str) -> None:
        try:
            self._file = Path(to).absolute().open("w", encoding="utf-8")
        except OSError as error:
            raise CommandError(f"--json: {printable(to)} cannot be written: {error.strerror}", exit_code=2) from None
        self._process = os.getpid()

    def found(self, finding: Finding) -> None:
        """Write a finding."""
        if os.getpid() == self._process:
            self._line({"kind": "finding", **_facts(finding)})

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if os.getpid() == self._process:
            unnoticed(lambda: self._end(error), say, also=KeyboardInterrupt)

    def _end(self, error: BaseException | None) -> None:
        explanation = None if error is None else explained(error)
        if explanation is not None:
            self._line({"kind": "explanation", **_facts(explanation)})
        failed = error is not None and not isinstance(error, SystemExit)
        self._line({"kind": "end", "error": type(error).__name__ if failed else None})
        self._file.close()

    def _line(self, facts: dict[str, Any]) -> None:
        self._file.write(json.dumps(facts) + "\n")
        self._file.flush()


def _facts(finding: Finding) -> dict[str, Any]:
    return finding.row() | {"sites": [_site(site) for site in finding.sites]}


def _site(site: Site) -> dict[str, Any]:
    return {"file": site.file, "line": site.line, "function": site.function, "statement": site.statement}
