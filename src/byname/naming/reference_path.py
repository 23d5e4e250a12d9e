"""Reference path: how an object is reached from a variable, and how the program would write it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import NamedTuple

from byname.naming.children.reference import Reference, writable
from byname.naming.roots import Root
from byname.text import printable

__all__ = ["ReferencePath", "Written", "pattern_of", "written"]


@dataclass(frozen=True, slots=True)
class ReferencePath:
    """One whole path: a root, the steps from it, and the objects on the way, from the root's value on."""

    root: Root
    steps: tuple[Reference, ...]
    passed: tuple[object, ...] = ()

    @property
    def source(self) -> str:
        """The path as the program would write it."""
        text = self.root.text
        for step in self.steps:
            text = step.write(text)
        return text

    @property
    def evaluates(self) -> bool:
        """Whether that source, evaluated in the root's scope, is the object at the end."""
        written = self.root.evaluates and all(step.evaluates for step in self.steps)
        return written and not any(
            one.seen_through and other.reads_registry for one, other in zip(self.steps, self.steps[1:], strict=False)
        )


class Written(NamedTuple):
    """A path as source and as words; the two are equal unless the source is hard to read."""

    source: str
    words: str


def written(way: ReferencePath, *, pattern: bool = False) -> Written:
    """Return a path as source and as words.

    A variable that the source reaches only by detours, such as one in a closure, starts the words anew, and a note
    behind them says where it is: ``acts[3] (closure of hook)``.

    Args:
        way: the path.
        pattern: True to write ``[*]`` for the positions and keys by which one entry differs from the next.
    """
    source = words = way.root.text
    note = ""
    for step in way.steps:
        write = step.wild if pattern and step.wild is not None else step.write
        if step.label:
            words, note = step.label, step.note(words)
            source = write(source)
        elif note:
            words, source = write(words), write(source)
        else:
            words = source = write(source)
    source, words = _parametrized(source, words)
    return Written(source, f"{words} ({note})" if note else words)


def pattern_of(way: ReferencePath) -> str:
    """Return a path in words, with ``[*]`` where one entry differs from the next: ``trainer.history[*]['loss']``."""
    return printable(written(way, pattern=True).words)


_PARAMETRIZATION = re.compile(r"\.parametrizations\['([^\W\d]\w*)'\]\.(original\d*)$")


def _parametrized(source: str, words: str) -> Written:
    """Return the source and words of the tensor behind a parametrized weight as PyTorch's users write them."""
    match = _PARAMETRIZATION.search(source) if "parametrizations" in source else None
    if match is None or not writable(match[1]):
        return Written(source, words)
    before = source[: match.start()]
    said = words.removesuffix(match[0])
    return Written(f"{before}.parametrizations.{match[1]}.{match[2]}", f"{said}.{match[1]} ({match[2]})")
