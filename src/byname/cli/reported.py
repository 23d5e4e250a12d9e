"""Reported: the HTML page about a run of a program, written when the program ends."""

from __future__ import annotations

import datetime
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from byname.cli.command import CommandError, say
from byname.cli.tail import written
from byname.cli.watcher import Watcher, failure
from byname.diagnose.finding import Finding, explained
from byname.errors import BynameError
from byname.recording.distributed.ranks import rank
from byname.recording.facts import version
from byname.reporting.page import ready_to_write, report
from byname.reporting.result_sections import Outcome
from byname.text import printable


class Reported(Watcher):
    """Page about a run, written when the program ends: how it ended, the findings, and the recording.

    A page that cannot be written raises a `CommandError` before the program has been started.
    """

    def __init__(self, to: str, recorded: Path | None) -> None:
        try:
            self._file = ready_to_write(to).absolute()
        except BynameError as error:
            raise CommandError(f"--report: {error}", exit_code=2) from None
        super().__init__()
        self._to = to
        self._recorded = recorded
        self._found: list[Finding] = []
        self._started, self._begun = datetime.datetime.now(datetime.UTC), time.monotonic()
        self._before = recorded and written(recorded)

    def found(self, finding: Finding) -> None:
        self._found.append(finding)

    def at_end(self, error: BaseException | None) -> None:
        """Write the page, in the first of several processes; torchrun numbers them."""
        if os.environ.get("RANK", "0") not in ("0", "") or rank():
            return None
        recorded = [self._recorded] if self._recorded and written(self._recorded) != self._before else []
        try:
            report(self._outcome(error), [*self._findings(error)], *recorded, to=self._file)
        except BynameError as wrong:
            return say(f"no report: {wrong}")
        return say(f"report: {printable(self._to)}")

    def _outcome(self, error: BaseException | None) -> Outcome:
        arguments = getattr(sys, "argv", None)  # which the program may have replaced by anything
        return Outcome(
            arguments=tuple(map(str, arguments if type(arguments) is list else [])),
            started=self._started.isoformat(timespec="seconds"),
            seconds=time.monotonic() - self._begun,
            ended=_ended(error),
            failed=failure(error) is not None,
            versions={"torch": str(sys.modules["torch"].__dict__["__version__"]), "byname": version()},
        )

    def _findings(self, error: BaseException | None) -> Iterator[Finding]:
        """Yield each finding once: the error that ended the program as its end, which knows more lines."""
        end = None if error is None else explained(error)
        if end is not None:
            yield end
        yield from (one for one in self._found if end is None or (one.cause, one.message) != (end.cause, end.message))


def _ended(error: BaseException | None) -> str:
    """Return how the program ended, in words. Only text of an error is shown: other arguments may run code."""
    if error is None:
        return "by itself"
    if isinstance(error, SystemExit):
        return f"with exit code {error.code}" if type(error.code) in (int, type(None)) else "by SystemExit"
    words = [one for one in error.args[:1] if type(one) is str]
    return f"by {type(error).__name__}{f': {words[0]}' if words else ''}"
