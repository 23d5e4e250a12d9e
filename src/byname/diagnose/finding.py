"""Finding: the cause of a problem, the variables concerned, the lines of the story and the remedy."""

from __future__ import annotations

import html
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from byname.naming.name import Name
from byname.reading.objects import attributes_of
from byname.source.location import Site
from byname.table import Rows
from byname.text import printable, printable_lines


@dataclass(frozen=True, slots=True, repr=False)
class Finding:
    """One problem: something that goes wrong, or that silently does nothing.

    Attributes:
        cause: the identifier of a row of the tables of causes, such as ``modified-in-place``; or ``unknown``.
        message: a sentence that describes it in the program's words.
        culprits: the names of the variables concerned, first the one to look at first.
        sites: the lines of the story in order, such as where a tensor was made, where it was changed, and where the
            problem was noticed.
        remedy: the code to write instead.
        details: further lines, such as a list of what fills the memory.
        facts: the facts that the message and the remedy mention, as plain values: names and lines as text.

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
    facts: Mapping[str, Any] = field(default_factory=dict, compare=False)

    @property
    def certain(self) -> bool:
        """Whether it is a fact that something is wrong; otherwise the message begins with ``suspicious:``."""
        return not self.message.startswith("suspicious:")

    @property
    def kind(self) -> tuple[str, ...]:
        """The cause, and the facts that are mentioned: the findings of a kind differ in names, lines and numbers."""
        return (self.cause, *sorted(self.facts))

    def __post_init__(self) -> None:
        """Escape control characters, which the names of modules, classes and files may hold."""
        for name in ("message", "remedy"):
            object.__setattr__(self, name, printable_lines(getattr(self, name)))
        object.__setattr__(self, "details", tuple(list(map(printable, self.details))))

    def row(self) -> dict[str, Any]:
        """Return the finding as plain values."""
        return {
            "cause": self.cause,
            "certain": self.certain,
            "message": self.message,
            "culprits": [str(name) for name in self.culprits],
            "sites": [str(site) for site in self.sites],
            "remedy": self.remedy,
            "details": list(self.details),
            "facts": dict(self.facts),
        }

    def rows(self) -> list[dict[str, Any]]:
        """Return the row of the finding in a list, since every result of byname has ``rows()``."""
        return [self.row()]

    to_pandas = Rows.to_pandas

    def __str__(self) -> str:
        lines = [f"{self.cause}: {self.message}", *_shown(self.sites), *(f"  {line}" for line in self.details)]
        if self.remedy:
            lines.append(f"  remedy: {self.remedy}")
        return "\n".join(map(printable, lines))

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        # JupyterLab would break the lines within words.
        return f'<pre style="white-space:pre-wrap;word-break:normal">{html.escape(str(self))}</pre>'


@dataclass(frozen=True, slots=True, repr=False)
class Explanation(Finding):
    """The reason for an exception. If byname does not know it, ``cause`` is ``unknown`` and there are no culprits."""


class Note(str):
    """A note below an exception, with the explanation that it states."""

    explanation: Explanation

    @classmethod
    def of(cls, explanation: Explanation) -> Note:
        note = cls(f"byname: {explanation}")
        note.explanation = explanation
        return note

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the text alone, so that another process needs no byname to load it."""
        return str, (str(self),)


def explained(error: BaseException) -> Explanation | None:
    """Return the explanation that an exception already carries as a note, or None."""
    notes = attributes_of(error).get("__notes__")
    found = [note for note in notes if type(note) is Note] if type(notes) is list else []
    return found[0].explanation if found else None


def _shown(sites: Iterable[Site]) -> list[str]:
    """Return the printed lines of a story, each site once."""
    each = list({(site.file, site.line, site.statement): site for site in sites}.values())
    places = [_place(site, each) for site in each]
    width = max(map(len, places), default=0)
    called = {id(site): f"  (in {site.helper}, called at {site.caller})" for site in each if site.caller is not None}
    statements = [f"{site.statement or f'in {site.function}'}{called.get(id(site), '')}" for site in each]
    return [f"    {place:<{width}}  {statement}" for place, statement in zip(places, statements, strict=True)]


def _place(site: Site, others: Iterable[Site]) -> str:
    """Return a site as it is printed, with its folder if two files have the same name."""
    folder, name = os.path.split(site.file)  # not a path for notebooks and exec
    same = {other.file for other in others if os.path.basename(other.file) == name}  # noqa: PTH119
    return f"{os.path.basename(folder)}/{site}" if len(same) > 1 else str(site)  # noqa: PTH119
