"""Reported: a program that runs in a block, and the HTML page that is written of it at the end."""

from __future__ import annotations

import contextlib
import datetime
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from byname.cli.command import CommandError, say
from byname.cli.unnoticed import Watcher, failure
from byname.diagnose.finding import Finding, explained
from byname.errors import BynameError
from byname.recording.distributed.ranks import rank, rank_files
from byname.recording.facts import version
from byname.reporting.outcomes import Outcome
from byname.reporting.page import ready_to_write, report
from byname.text import printable


class Reported(Watcher):
    """Writes a page when the program ends: how the program ended, what was found, what was recorded.

    Args:
        to: the page.
        recorded: the recording that is written meanwhile, if any.

    Raises:
        CommandError: the page cannot be written; the program has not been started then.
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
        self._before = _stamp(recorded)

    def found(self, finding: Finding) -> None:
        """Takes a finding."""
        self._found.append(finding)

    def at_end(self, error: BaseException | None) -> None:
        """Write the page, in the first of several processes; torchrun numbers them."""
        if os.environ.get("RANK", "0") not in ("0", "") or rank():
            return None
        things = [self._outcome(error), [*self._findings(error)], *self._recording()]
        try:
            report(*things, to=self._file)
        except BynameError as wrong:
            return say(f"no report: {wrong}")
        return say(f"report: {printable(self._to)}")

    def _outcome(self, error: BaseException | None) -> Outcome:
        return Outcome(
            arguments=tuple(map(str, _arguments())),
            started=self._started.isoformat(timespec="seconds"),
            seconds=time.monotonic() - self._begun,
            ended=_ended(error),
            failed=failure(error) is not None,
            versions={"torch": str(sys.modules["torch"].__dict__["__version__"]), "byname": version()},
        )

    def _findings(self, error: BaseException | None) -> Iterator[Finding]:
        """Each finding once; what ended the program and was found before is told as its end, which knows more lines."""
        explanation = None if error is None else explained(error)
        ended = [] if explanation is None else [explanation]
        told = {(one.cause, one.message) for one in ended}
        yield from ended
        yield from (one for one in self._found if (one.cause, one.message) not in told)

    def _recording(self) -> Sequence[Any]:
        """The recording, if this run has written it."""
        return [self._recorded] if self._recorded is not None and _stamp(self._recorded) != self._before else []


def _stamp(file: Path | None) -> list[tuple[int, int]]:
    """What changes when a recording is written, in one file or in those of several ranks."""
    found = []
    for one in [file, *rank_files(file).values()] if file is not None else ():
        with contextlib.suppress(OSError):
            facts = one.stat()
            found.append((facts.st_ino, facts.st_mtime_ns))
    return found


def _arguments() -> Sequence[object]:
    """What the program has in ``sys.argv``, which it may have replaced by anything."""
    found = getattr(sys, "argv", None)
    return found if type(found) is list else []


def _ended(error: BaseException | None) -> str:
    """In words; only texts and numbers of an error are printed, for others would be asked for their text."""
    if error is None:
        return "by itself"
    if isinstance(error, SystemExit):
        return f"with exit code {error.code}" if type(error.code) in (int, type(None)) else "by SystemExit"
    words = [one for one in error.args[:1] if type(one) is str]
    return f"by {type(error).__name__}{f': {words[0]}' if words else ''}"
