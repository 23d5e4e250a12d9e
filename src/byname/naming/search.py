"""By which ways can a tensor be reached? A breadth-first search from the roots that remembers every way in.

The search only reads; it is bounded in depth and in the number of objects, so that a heap of millions costs no more
than a small one. What it does not reach is left to `byname.naming.referrers`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

import torch

from byname.naming.children.reference import Held, Reference, same, writable
from byname.naming.children.registry import Children
from byname.naming.roots import Root
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import is_tensor
from byname.table import printable

__all__ = ["Ours", "OursById", "SearchResult", "Targets", "ReferencePath", "Written", "pattern_of", "search", "written"]

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


@dataclass(frozen=True, slots=True)
class ReferencePath:
    """One whole way: a root, the steps from it, and the objects that are passed: the root's value and what follows."""

    root: Root
    steps: tuple[Reference, ...]
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


class SearchResult:
    """What a search came upon. It holds these objects, so that their ids stay theirs.

    An object stands for its holders as a number: as an object it could lead back here, and such a circle would keep
    everything in it alive until the next collection. Few of the many objects are ever asked about, so a search notes
    only who holds an object, and the holder is read once more when somebody asks how.

    Attributes:
        budget: how many objects the search was to look at, where it came to that bound; 0 where it saw all.
    """

    def __init__(self) -> None:
        self.budget = 0
        self._children = Children()
        self._values: list[object] = Ours()
        self._numbers: dict[int, int] = {}
        self._roots: dict[int, list[Root]] = {}
        self._first: list[int] = []
        self._others: dict[int, list[int]] = {}
        self._full: set[int] = set()  # ids of objects that have as many holders as are remembered
        self._steps: dict[int, list[_Into]] = OursById()
        self._alone: dict[int, ReferencePath | None] = OursById()
        self._contents: dict[int, dict[int, list[_Made]] | None] = OursById()

    def start(self, root: Root) -> None:
        """Add a root."""
        number = self._numbers.setdefault(id(root.value), len(self._values))
        if number == len(self._values):
            self._values.append(root.value)
            self._first.append(_NOBODY)
        self._roots.setdefault(number, []).append(root)

    def descend(self, level: range, only: Collection[int] | None, budget: int) -> range:
        """Add what the objects of a level hold; return the numbers of those that are new.

        One long loop without calls: it runs once for every object that the program's variables lead to.
        """
        values, numbers, first, others, full = self._values, self._numbers, self._first, self._others, self._full
        children = self._children.of
        count = len(values)
        for holder in level:
            if count > budget:
                break
            held = children(values[holder])
            if full and full.issuperset(map(id, held)):
                continue
            for value in held:
                if only is not None and id(value) not in only:
                    continue
                number = numbers.setdefault(id(value), count)
                if number == count:
                    values.append(value)
                    first.append(holder)
                    count += 1
                    if count > budget:
                        break
                elif number not in others:
                    if first[number] != holder:
                        others[number] = [holder]
                elif (known := others[number])[-1] != holder and len(known) < MOST_WAYS:
                    known.append(holder)
                    if len(known) == MOST_WAYS:
                        full.add(id(value))
        return range(level.stop, count)

    def __len__(self) -> int:
        return len(self._values)

    def has(self, thing: object) -> bool:
        """Whether the search came upon this very object."""
        return id(thing) in self._numbers

    def has_id(self, ident: int) -> bool:
        """Whether the search came upon the object of this ``id``."""
        return ident in self._numbers

    def tensors(self) -> Iterator[torch.Tensor]:
        """Every tensor that has a way."""
        for value in self._values:
            if is_tensor(value):
                yield value  # type: ignore[misc]

    def roots(self) -> Iterator[Root]:
        """Every root that the search started from."""
        for roots in self._roots.values():
            yield from roots

    def ways_to(self, value: object, limit: int = TOLD) -> list[ReferencePath]:
        """The ways to an object, shortest first, none through itself."""
        number = self._numbers.get(id(value))
        if number is None:
            return []
        only = self._only_way(number)
        return [only] if only is not None else list(self._ways(number, limit))

    def _only_way(self, number: int) -> ReferencePath | None:
        """The one way to an object, where there is just one; by far the most frequent case."""
        into = self._into(number)
        if len(into) != 1:
            return None
        before, make, key = into[0]
        if isinstance(before, Root):
            return ReferencePath(before, ())
        if before not in self._alone:  # the parameters of a module share the way to it
            self._alone[before] = self._followed_alone(before)
        way = self._alone[before]
        if way is None:
            return None
        step = make(key)
        into[0] = (before, same, step)
        return ReferencePath(way.root, (*way.steps, step), (*way.passed, self._values[before]))

    def _followed_alone(self, number: int) -> ReferencePath | None:
        steps: list[Reference] = []
        passed: list[object] = []
        while len(steps) < _PATIENCE and len(into := self._into(number)) == 1:
            before, make, key = into[0]
            if isinstance(before, Root):
                return ReferencePath(before, tuple(reversed(steps)), tuple(reversed(passed)))
            step = make(key)
            into[0] = (before, same, step)
            steps.append(step)
            number = before
            passed.append(self._values[number])
        return None

    def _ways(self, number: int, limit: int) -> Iterator[ReferencePath]:
        """Follows the ways back to the roots, breadth first, so that the shortest come first."""
        level: list[_Partial] = [(number, (), (), frozenset([number]))]
        given = 0
        while level and given < limit:
            deeper: list[_Partial] = []
            for here, steps, passed, seen in level:
                if len(deeper) >= MOST_WAYS:
                    break
                into = self._into(here)
                for at, (before, make, key) in enumerate(into):
                    if isinstance(before, Root):
                        yield ReferencePath(before, steps, passed)
                        given += 1
                        if given >= limit:
                            return
                    elif before not in seen:
                        step = make(key)
                        into[at] = (before, same, step)
                        deeper.append((before, (step, *steps), (self._values[before], *passed), seen | {before}))
            level = deeper

    def _into(self, number: int) -> list[_Into]:
        """The roots of an object, or its holders, each with what makes the step from it.

        At most `MOST_WAYS` of them, and of the ways from one holder as many as are ever told: a list with one object a
        hundred thousand times costs no more than a list of numbers.
        """
        found = self._steps.get(number)
        if found is None:
            found = self._steps[number] = [(root, same, None) for root in self._roots.get(number, ())]
            first = [self._first[number]] if self._first[number] != _NOBODY else []
            for holder in (*first, *self._others.get(number, ())):
                for make, key in self._made(holder, self._values[number]):
                    if len(found) < TOLD or (len(found) < MOST_WAYS and found[-TOLD][0] != holder):
                        found.append((holder, make, key))
        return found

    def _made(self, holder: int, value: object) -> list[_Made]:
        """What makes the steps from a holder to a value. A large holder is read whole when it is asked once more."""
        with DisableTorchFunction():
            if holder not in self._contents:
                held = self._children.list(self._values[holder])
                if type(held) is not list or len(held) > _FEW:
                    self._contents[holder] = None
                    return list(islice(((make, key) for make, key, one in held if one is value), TOLD))
                self._contents[holder] = _by_id(held)
            contents = self._contents[holder]
            if contents is None:
                contents = self._contents[holder] = _by_id(self._children.list(self._values[holder]))
            return contents.get(id(value), [])[:TOLD]


def _by_id(held: Held) -> dict[int, list[_Made]]:
    found: dict[int, list[_Made]] = {}
    for make, key, one in held:
        found.setdefault(id(one), []).append((make, key))
    return found


_FEW = 64
"""A holder of so few objects is read whole at once: who asks for one of them most often asks for the others."""

_Made: TypeAlias = tuple[Callable[[Any], Reference], Any]
"""What makes a step: a function and its argument."""

_Into: TypeAlias = tuple[int | Root, Callable[[Any], Reference], Any]
"""A root, or the number of a holder and what makes the step from it."""

_Partial: TypeAlias = tuple[int, tuple[Reference, ...], tuple[object, ...], frozenset[int]]
"""The end of a way: where it begins, its steps, what it passes, and the objects that it may not pass again."""

_NOBODY = -1
"""Stands for the holder of a root's value."""

_PATIENCE = 4096


def search(
    roots: Iterable[Root],
    *,
    only: Collection[int] | None = None,
    depth: int = DEPTH,
    budget: int = BUDGET,
) -> SearchResult:
    """Looks at what is within `depth` steps of the roots, at most `budget` objects, the nearest first.

    Args:
        roots: where to start.
        only: ids of the only objects to look at.
        depth, budget: the bounds.
    """
    reached = SearchResult()
    for root in sorted(roots, key=lambda root: (root.quality, root.distance)):
        reached.start(root)
    level = range(len(reached))
    with DisableTorchFunction():
        for _ in range(depth):
            level = reached.descend(level, only, budget)
            if not level or len(reached) > budget:
                break
    reached.budget = budget if len(reached) > budget else 0
    return reached


class Written(NamedTuple):
    """A way as source, and in words; these are the same unless the source is hard to read."""

    source: str
    words: str


def written(way: ReferencePath, *, pattern: bool = False) -> Written:
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


def pattern_of(way: ReferencePath) -> str:
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
