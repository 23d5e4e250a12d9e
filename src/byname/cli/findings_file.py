"""Findings file: what a run found, as a line of JSON each, for other programs to read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from byname.cli.command import CommandError
from byname.cli.json_facts import finding_facts
from byname.cli.unnoticed import Watcher, failure
from byname.diagnose.finding import Finding, explained
from byname.text import printable


class JsonLines(Watcher):
    """A file of lines of JSON, the last for the end of the program; a fork of the process writes none.

    Args:
        to: the file; what it held before is gone.

    Raises:
        CommandError: the file cannot be written; the program has not been started then.
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
        """Write the last line."""
        self.write("end", {"error": type(error).__name__ if failure(error) else None})
        self._file.close()


class FindingsFile(JsonLines):
    """Lines for findings, when they come, and for the explanation of the error that ends the program."""

    def found(self, finding: Finding) -> None:
        """Write a finding."""
        self.write("finding", finding_facts(finding))

    def at_end(self, error: BaseException | None) -> None:
        """Write the explanation, and the last line."""
        explanation = None if error is None else explained(error)
        if explanation is not None:
            self.write("explanation", finding_facts(explanation))
        super().at_end(error)
