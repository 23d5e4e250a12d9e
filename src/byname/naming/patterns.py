"""How is a way written: as source, in words that a person reads, and as the pattern that many such ways share?"""

from __future__ import annotations

import re
from typing import NamedTuple

from byname.naming.children.step import writable
from byname.naming.search import Way
from byname.table import printable

__all__ = ["Written", "pattern_of", "written"]


class Written(NamedTuple):
    """A way as source, and in words; these are the same unless the source is hard to read."""

    source: str
    words: str


def written(way: Way, *, pattern: bool = False) -> Written:
    """Writes a way out.

    A variable that the source reaches only by detours, such as one in a closure, begins the words anew; where it is
    stands behind them: ``acts[3] (closure of hook)``.

    Args:
        way: the way.
        pattern: write ``[*]`` for the positions and keys by which one entry differs from the next.
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


def pattern_of(way: Way) -> str:
    """A way in words, with ``[*]`` where one entry differs from the next: ``trainer.history[*]['loss']``."""
    return printable(written(way, pattern=True).words)


_PARAMETRIZATION = re.compile(r"\.parametrizations\['([^\W\d]\w*)'\]\.(original\d*)$")


def _parametrized(source: str, words: str) -> Written:
    """The tensor behind a parametrized weight, written and said as PyTorch's users do."""
    match = _PARAMETRIZATION.search(source) if "parametrizations" in source else None
    if match is None or not writable(match[1]):
        return Written(source, words)
    before = source[: match.start()]
    said = words.removesuffix(match[0])
    return Written(f"{before}.parametrizations.{match[1]}.{match[2]}", f"{said}.{match[1]} ({match[2]})")
