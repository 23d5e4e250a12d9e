"""Outcomes: how a program ended that ``byname run`` ran, and its section in a report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from byname.reporting.draft import PageDraft
from byname.reporting.panels import Section, duration


@dataclass(frozen=True, slots=True)
class Outcome:
    """One run of a program.

    Attributes:
        arguments: as the program saw them, the script first.
        started: the time in UTC, in ISO format.
        seconds: how long it ran.
        ended: how it ended, in words.
        failed: whether that was an error.
        versions: of the packages concerned.
    """

    arguments: tuple[str, ...]
    started: str
    seconds: float
    ended: str
    failed: bool
    versions: Mapping[str, str] = field(default_factory=dict)


def outcome_section(outcome: Outcome, draft: PageDraft) -> Section:
    """Return the section of a run."""
    program = " ".join(outcome.arguments) or "program"
    lasted = duration(outcome.seconds)
    facts = [("program", program), ("started", f"{outcome.started.replace('T', ' ')[:19]} UTC"), ("ran for", lasted)]
    words = f"after {lasted} ended {outcome.ended.partition(chr(10))[0]}"
    return Section(
        title=f"Run of {outcome.arguments[0] if outcome.arguments else 'a program'}",
        headline="" if outcome.failed else words,
        facts=[*facts, *outcome.versions.items()],
        alarms=[words] if outcome.failed else (),
    )
