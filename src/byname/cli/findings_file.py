"""Findings file: what a run found, as a line of JSON each, for other programs to read."""

from __future__ import annotations

import os
from types import TracebackType

from byname.cli.command import say
from byname.cli.json_facts import finding_facts
from byname.cli.json_lines import JsonLines
from byname.cli.unnoticed import unnoticed
from byname.diagnose.finding import Finding, explained


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
