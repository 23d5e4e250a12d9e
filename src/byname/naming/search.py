"""By which ways can a tensor be reached? A breadth-first search from the roots that remembers every way in.

The search only reads; it is bounded in depth and in the number of objects, so that a heap of millions costs no more
than a small one. What it does not reach is left to `byname.naming.referrers`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import torch

from byname.naming.children.registry import held_by
from byname.naming.children.step import Step, same, writable
from byname.naming.roots import Root
from byname.reading.quiet import untouched
from byname.reading.tensor import is_tensor
from byname.table import printable

__all__ = ["Ours", "OursById", "Place", "Reached", "Targets", "Way", "Written", "pattern_of", "search", "written"]

DEPTH = 10
BUDGET = 300_000
TOLD = 64
"""How many ways to an object are told."""
MOST_WAYS = 1024
"""How many ways to an object are remembered, and followed at a time."""


class Targets(list[torch.Tensor]):
    """Tensors that byname itself holds for the time of a question; never taken for the program's holder of them."""


class Ours(list[Any]):
    """The same for other objects that byname holds meanwhile."""


class OursById(dict[int, Any]):
    """The same by ``id``."""


@dataclass(slots=True, eq=False)
class Place:
    """An object that the search came upon, and the ways in: a root, or a holder and what makes the step from it.

    At most `MOST_WAYS` of them, and of the ways from one holder as many as are ever told: a list with one object a
    hundred thousand times costs no more than a list of numbers.

    A holder stands there by its ``id``: as an object it could lead back here, and such a circle would keep everything
    in it alive until the next collection.
    """

    value: object
    ways: list[tuple[int | Root, Callable[[Any], Step] | None, Any]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Way:
    """One whole way: a root, the steps from it, and the objects that are passed: the root's value and what follows."""

    root: Root
    steps: tuple[Step, ...]
    passed: tuple[object, ...] = ()

    @property
    def source(self) -> str:
        """The way as the program would write it."""
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


@dataclass(slots=True)
class Reached:
    """What a search came upon: places by ``id`` of their values, which the places keep alive meanwhile.

    Attributes:
        places: the places.
        budget: how many objects the search was to look at, where it came to that bound; 0 where it saw all.
    """

    places: dict[int, Place]
    budget: int = 0

    def tensors(self) -> Iterator[tuple[torch.Tensor, Place]]:
        """Every tensor that has a way."""
        for place in self.places.values():
            if is_tensor(place.value):
                yield place.value, place  # type: ignore[misc]

    def roots(self) -> Iterator[Root]:
        """Every root that the search started from."""
        for place in self.places.values():
            for before, _, _ in place.ways:
                if isinstance(before, Root):
                    yield before

    def ways_to(self, value: object, limit: int = TOLD) -> list[Way]:
        """The ways to an object, shortest first, none through itself."""
        place = self.places.get(id(value))
        if place is None:
            return []
        only = self._only_way(place)
        return [only] if only is not None else list(self._ways(place, limit))

    def _only_way(self, place: Place) -> Way | None:
        """The one way to a place, where there is just one; by far the most frequent case."""
        steps: list[Step] = []
        passed: list[object] = []
        while len(place.ways) == 1 and len(steps) < _PATIENCE:
            before, make, key = place.ways[0]
            if isinstance(before, Root) or make is None:
                return (
                    Way(before, tuple(reversed(steps)), tuple(reversed(passed))) if isinstance(before, Root) else None
                )
            step = make(key)
            place.ways[0] = (before, same, step)
            steps.append(step)
            place = self.places[before]
            passed.append(place.value)
        return None

    def _ways(self, place: Place, limit: int) -> Iterator[Way]:
        """Follows the ways back to the roots, breadth first, so that the shortest come first."""
        level: list[_Partial] = [(place, (), (), frozenset([id(place.value)]))]
        given = 0
        while level and given < limit:
            deeper: list[_Partial] = []
            for here, steps, passed, seen in level:
                if len(deeper) >= MOST_WAYS:
                    break
                for number, (before, make, key) in enumerate(here.ways):
                    if isinstance(before, Root):
                        yield Way(before, steps, passed)
                        given += 1
                        if given >= limit:
                            return
                    elif make is not None and before not in seen:
                        step = make(key)
                        here.ways[number] = (before, same, step)
                        holder = self.places[before]
                        deeper.append((holder, (step, *steps), (holder.value, *passed), seen | {before}))
            level = deeper


_Partial: TypeAlias = tuple[Place, tuple[Step, ...], tuple[object, ...], frozenset[int]]
"""The end of a way: where it begins, its steps, what it passes, and the objects that it may not pass again."""

_PATIENCE = 4096


def search(
    roots: Iterable[Root],
    *,
    only: Collection[int] | None = None,
    depth: int = DEPTH,
    budget: int = BUDGET,
) -> Reached:
    """Looks at what is within `depth` steps of the roots, at most `budget` objects, the nearest first.

    Args:
        roots: where to start.
        only: ids of the only objects to look at.
        depth, budget: the bounds.
    """
    places: dict[int, Place] = {}
    level: list[Place] = []
    for root in sorted(roots, key=lambda root: (root.quality, root.distance)):
        place = places.get(id(root.value))
        if place is None:
            place = places[id(root.value)] = Place(root.value)
            level.append(place)
        place.ways.append((root, None, None))
    with untouched():
        for _ in range(depth):
            level = _next_level(level, places, only, budget)
            if not level or len(places) > budget:
                break
    return Reached(places, budget if len(places) > budget else 0)


def _next_level(level: list[Place], places: dict[int, Place], only: Collection[int] | None, budget: int) -> list[Place]:
    found: list[Place] = []
    for holder in level:
        if len(places) > budget:
            break
        here = id(holder.value)
        for make, key, value in held_by(holder.value):
            ident = id(value)
            if only is not None and ident not in only:
                continue
            place = places.get(ident)
            if place is None:
                place = places[ident] = Place(value)
                found.append(place)
                if len(places) > budget:
                    break
            ways = place.ways
            if len(ways) < TOLD or (len(ways) < MOST_WAYS and ways[-TOLD][0] != here):
                ways.append((here, make, key))
    return found


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
