"""What has byname to say about a failure? A finding: its cause, the variables, the lines of the story, the remedy."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from byname.naming.name import Name
from byname.reading.objects import attributes_of
from byname.source.location import Site, Spot
from byname.text import printable, printable_lines

__all__ = [
    "CAUSES",
    "Explanation",
    "Finding",
    "Note",
    "can_take_a_note",
    "culprits_of",
    "explained",
    "quote_operation",
    "known_sites",
    "site_of",
]

CAUSES = (
    "backward-twice",
    "modified-in-place",
    "optimizer-step-between",
    "leaf-in-place",
    "no-grad-path",
    "detached-parameter",
    "non-leaf-grad",
    "not-in-optimizer",
    "orphaned-parameter",
    "free-leaf",
    "unused-input",
    "graph-grows",
    "graph-in-grad",
    "non-finite-gradient",
    "checkpoint-mismatch",
    "ddp-unused",
    "out-of-memory",
    "unknown",
)
"""Every identifier that `Finding.cause` can have."""


@dataclass(frozen=True, slots=True, repr=False)
class Finding:
    """One thing that goes wrong, or silently does nothing.

    Attributes:
        cause: what it is, one of a fixed set of identifiers, such as ``modified-in-place``.
        message: the same in a sentence, in the program's words.
        culprits: the names of the variables concerned, first the one to look at first.
        sites: the lines of the story in its order: where made or saved, where spoilt, where noticed.
        remedy: what to write instead.
        details: more lines, such as a list of what fills the memory.

    >>> print(Finding("free-leaf", "Nobody reads the gradient of `delta`.", remedy="delta.detach()"))
    free-leaf: Nobody reads the gradient of `delta`.
      remedy: delta.detach()
    """

    cause: str
    message: str
    culprits: tuple[Name, ...] = ()
    sites: tuple[Site, ...] = ()
    remedy: str = ""
    details: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Names of modules, classes and files may hold what steers a terminal."""
        for name in ("message", "remedy"):
            object.__setattr__(self, name, printable_lines(getattr(self, name)))
        object.__setattr__(self, "details", tuple(map(printable, self.details)))

    def row(self) -> dict[str, Any]:
        """The finding as plain values."""
        return {
            "cause": self.cause,
            "message": self.message,
            "culprits": [str(name) for name in self.culprits],
            "sites": [str(site) for site in self.sites],
            "remedy": self.remedy,
            "details": list(self.details),
        }

    def rows(self) -> list[dict[str, Any]]:
        """The same in a list, as every result of byname has it."""
        return [self.row()]

    def __str__(self) -> str:
        lines = [f"{self.cause}: {self.message}", *_shown(self.sites), *(f"  {line}" for line in self.details)]
        if self.remedy:
            lines.append(f"  remedy: {self.remedy}")
        return "\n".join(map(printable, lines))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return f"<pre>{html.escape(str(self))}</pre>"


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Finding):
    """Why an exception was raised. ``cause`` is ``unknown``, with no culprits, where byname does not know."""


class Note(str):
    """What is written below an exception, with the explanation that it says."""

    explanation: Explanation

    @classmethod
    def of(cls, explanation: Explanation) -> Note:
        """The note that gives an explanation."""
        note = cls(f"byname: {explanation}")
        note.explanation = explanation
        return note

    def __reduce__(self) -> tuple[Any, ...]:
        """In another process it is text alone, and needs no byname."""
        return str, (str(self),)


def explained(error: BaseException) -> Explanation | None:
    """The explanation that an exception carries as a note already; None when it has none."""
    notes = attributes_of(error).get("__notes__")
    found = [note for note in notes if type(note) is Note] if type(notes) is list else []
    return found[0].explanation if found else None


def can_take_a_note(error: BaseException) -> bool:
    """Whether ``add_note`` will work: a program may have put something else in its place."""
    return type(attributes_of(error).get("__notes__", [])) is list


def culprits_of(*names: Name) -> tuple[Name, ...]:
    """Return the variables to blame, each once, without those that have no name."""
    return tuple(dict.fromkeys(name for name in names if name.path))


def known_sites(*sites: Site | None) -> tuple[Site, ...]:
    """Return the lines of a story that are known, in its order."""
    return tuple(site for site in sites if site is not None)


def quote_operation(operation: str, spot: Spot | None, culprit: Name | None) -> str:
    """Write an operation with its line and the variable that it made."""
    words = f"`{operation}`"
    if spot is not None:
        words += f" at {spot.site}" + (f" (`{spot.site.statement}`)" if spot.site.statement else "")
    if culprit is not None and culprit.path:
        words += f", which made `{culprit.path}`,"
    return words


def site_of(spot: Spot | None) -> Site | None:
    """Return the line of an expression, where the expression is known."""
    return None if spot is None else spot.site


def _shown(sites: Iterable[Site]) -> list[str]:
    """The lines of a story, each place once."""
    each = list({(site.file, site.line, site.statement): site for site in sites}.values())
    places = [_place(site, each) for site in each]
    width = max(map(len, places), default=0)
    lines = zip(places, each, strict=True)
    return [f"    {place:<{width}}  {site.statement or f'in {site.function}'}{_called(site)}" for place, site in lines]


def _called(site: Site) -> str:
    """The caller of a helper, behind the statement."""
    return "" if site.caller is None else f"  (in {site.helper}, called at {site.caller})"


def _place(site: Site, others: Iterable[Site]) -> str:
    """A place as it is written, with its folder where two files have the same name."""
    folder, name = os.path.split(site.file)  # not a path for notebooks and exec
    same = {other.file for other in others if os.path.basename(other.file) == name}  # noqa: PTH119
    return f"{os.path.basename(folder)}/{site}" if len(same) > 1 else str(site)  # noqa: PTH119
