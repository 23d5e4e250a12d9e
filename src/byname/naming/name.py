"""What does the program call a tensor? One name: a path, where it holds, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass

from byname.source.location import Site
from byname.text import printable

__all__ = ["Name", "unnamed"]


@dataclass(frozen=True, slots=True)
class Name:
    """What the program calls a tensor.

    Attributes:
        path: an expression of the program, such as ``trainer.history[17]['loss']``; empty when there is no name.
        how: by what the tensor is reached: ``tag``, ``parameter``, ``buffer``, ``optimizer``, ``local``, ``global``,
            ``attribute``, ``item``, ``closure``, ``graph`` (a neighbour in the autograd graph has a name), ``unnamed``.
        scope: where the path holds: a module's name, or a function with its file and line.
        exact: True when the path, evaluated in its scope, is this very tensor. Two exceptions say so themselves: a tag
            (``how``), and the name that an overwritten tensor had (``rebound_at``).
        distance: steps in the autograd graph between this tensor and the one whose name this is; 0 for its own name.
        rebound_at: the statement that gave the name to another tensor.
        site: where the tensor was made, when that is known.
        relation: how the tensor stands to the one that the path names (``view of``); empty when it is that tensor.

    >>> str(Name("model.fc.weight", "parameter", "__main__"))
    'model.fc.weight'
    """

    path: str
    how: str
    scope: str = ""
    exact: bool = True
    distance: int = 0
    rebound_at: Site | None = None
    site: Site | None = None
    relation: str = ""
    text: str = ""

    def __str__(self) -> str:
        return printable(self._words())

    def _words(self) -> str:
        if self.how == "unnamed":
            return f"unnamed, made at {self.site}" if self.site else "unnamed"
        words = f"{self.relation} {self.text or self.path}" if self.relation else self.text or self.path
        if self.rebound_at is not None and not self.distance:
            return f"{words} (before {self.rebound_at})"
        if self.distance:
            steps = "1 step" if self.distance == 1 else f"{self.distance} steps"
            rebound = f"before {self.rebound_at}, " if self.rebound_at is not None else ""
            return f"perhaps {words} ({rebound}{steps} away)"
        return words


def unnamed(site: Site | None = None) -> Name:
    """The name of a tensor that the program gives none."""
    return Name("", "unnamed", exact=False, site=site)
