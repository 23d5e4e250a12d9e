"""Findings file: what a run found, as a line of JSON each, for other programs to read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

from byname.cli.command import CommandError, say
from byname.cli.json_facts import finding_facts
from byname.cli.unnoticed import unnoticed
from byname.diagnose.finding import Finding, explained
from byname.text import printable


class JsonLines:
    """A file to which the process that opened it writes lines of JSON; a fork of that process writes none.

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
        self._process = os.getpid()

    def write(self, kind: str, facts: dict[str, Any]) -> None:
        """Write a line, which is in the file when this returns."""
        if os.getpid() == self._process:
            self._file.write(json.dumps({"kind": kind, **facts}) + "\n")
            self._file.flush()

    def end(self, error: BaseException | None) -> None:
        """Write the last line: the error that ended the program, if one did."""
        failed = error is not None and not isinstance(error, SystemExit)
        self.write("end", {"error": type(error).__name__ if failed else None})
        self._file.close()


class FindingsFile:
    """Writes findings when they come, the explanation of the error that ends the block, and how it ended.

    Args:
        to: the file; what it held before is gone.

    Raises:
        CommandError: the file cannot be written; the program has not been started then.
    """

    def __init__(self, to: str) -> None:
        self._lines = JsonLines(to)
        self._process = os.getpid()

    def found(self, finding: Finding) -> None:
        """Write a finding."""
        self._lines.write("finding", finding_facts(finding))

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
            self._lines.write("explanation", finding_facts(explanation))
        self._lines.end(error)
