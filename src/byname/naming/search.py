"""Search: a breadth-first search from the roots over all objects that they hold, which keeps every path to an object.

The search only reads. It is bounded in depth and in the number of objects, so that a heap of millions costs no more
than a small one. `byname.naming.referrers` finds objects that it does not reach.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, compress, islice, repeat, zip_longest
from operator import attrgetter
from typing import Any, TypeAlias

import torch

from byname.naming.children.reference import Reference
from byname.naming.children.registry import Children
from byname.naming.children.torch import are_bare
from byname.naming.reference_path import Branch, ReferencePath, Start
from byname.naming.roots import Root
from byname.reading.objects import attributes_of
from byname.reading.quiet import DisableTorchFunction

DEPTH = 10
BUDGET = 300_000
MOST_PATHS = 64
"""The most paths to one object that are returned."""
MOST_WAYS = 1024
"""The most holders of one object that are remembered, and the most paths that are followed at a time."""


class Targets(list[torch.Tensor]):
    """List in which byname holds tensors for a moment; a search never takes it for a holder in the program."""


class Ours(list[Any]):
    """List in which byname holds other objects for a moment; never taken for a holder in the program."""


class OursById(dict[int, Any]):
    """Dict in which byname holds objects by ``id`` for a moment; never taken for a holder in the program."""


class SearchResult:
    """Result of a search: the objects that it met. It holds these objects, so that no other object gets their ids.

    A holder is stored as a number: the object itself could lead back here, and such a cycle would keep all of it alive
    until the next collection. Paths are needed to few of the many objects, so a search records only the holders of an
    object, and reads a holder once more when the steps from it are needed.

    Attributes:
        budget: the bound on the number of objects if the search stopped at it; 0 if it saw all.
        numbers: the number of each object met, by its ``id``.
    """

    def __init__(self) -> None:
        self.budget = 0
        self._children = Children()
        self._values: list[object] = Ours()
        self.numbers: dict[int, int] = {}
        self._roots: dict[int, list[Root]] = {}
        self._first: list[int] = []
        self._others: dict[int, list[int]] = {}
        self._full: set[int] = set()  # ids of objects that have as many holders as are remembered
        self._waiting: list[int] = []
        self._steps: dict[int, list[_Into]] = OursById()
        self._levels: list[int] = []
        self._paths: list[dict[int, list[ReferencePath]]] = [OursById() for _ in range(_DETOURS + 1)]
        self._branches: dict[tuple[int, int], tuple[Branch, frozenset[int]]] = {}
        self._owners: dict[int, list[Any] | None] = OursById()
        self._contents: dict[int, dict[int, list[_Into]] | None] = OursById()

    def start(self, root: Root) -> None:
        number = self.numbers.setdefault(id(root.value), len(self._values))
        if number == len(self._values):
            self._values.append(root.value)
            self._first.append(_NOBODY)
            self._levels.append(0)
        self._roots.setdefault(number, []).append(root)

    def descend(
        self, holders: Sequence[int], level: int, only: Collection[int] | None, budget: int, width: int
    ) -> range:
        """Add the objects of some holders to a level; return the numbers of the new ones.

        It is one long loop without calls, since it runs for every object that the program's variables lead to. A holder
        of more than `width` objects waits, and so do all but modules once the level has as many new objects.
        """
        values, numbers, first, others, full = self._values, self.numbers, self._first, self._others, self._full
        children, bare = self._children.of, len(holders) <= width and are_bare([values[holder] for holder in holders])
        count = before = len(values)
        for holder in holders:
            if count > budget:
                break
            kind = type(values[holder])
            held = self._in_owner(holder) if issubclass(kind, _OWNERS) else children(values[holder], bare)
            if not held:  # as nearly every tensor
                continue
            if len(held) > width or (count - before > width and not issubclass(kind, torch.nn.Module)):
                self._waiting.append(holder)
                continue
            if full and full.issuperset(map(id, held)):
                continue
            for value in held if only is None else [one for one in held if id(one) in only]:
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
        self._levels += [level] * (count - before)
        return range(before, count)

    def _in_owner(self, number: int) -> list[object]:
        """Return the objects that a module or optimizer has, and keep the steps from a module: most names need some."""
        held = self._children.list(self._values[number])
        self._owners[number] = held if type(held) is list else None
        return [one for _, _, one in held]

    def __len__(self) -> int:
        return len(self._values)

    def dicts_of_owners(self) -> dict[int, int]:
        """Return the ids of the dicts inside the modules and optimizers met, each with the id of its owner.

        It also forgets the steps that are kept, because a search upwards would take their tuples for holders.
        """
        self._owners = OursById.fromkeys(self._owners)
        self._contents, self._steps = OursById(), OursById()
        found: dict[int, int] = {}
        for owner in map(self._values.__getitem__, self._owners):
            attributes = attributes_of(owner)
            for one in (attributes, *map(attributes.get, ("_parameters", "_buffers", "_modules", "state"))):
                found[id(one)] = id(owner)
        return found

    def ids_down_to(self, ident: int) -> Iterator[int]:
        """Yield the ids of an object, and of those on the path by which the search first met it."""
        number = self.numbers[ident]
        while number != _NOBODY:
            yield id(self._values[number])
            number = self._first[number]

    def tensors(self) -> Iterator[torch.Tensor]:
        return compress(self._values, map(issubclass, map(type, self._values), repeat(torch.Tensor)))  # type: ignore[arg-type]

    def roots(self) -> Iterator[Root]:
        return chain.from_iterable(self._roots.values())

    def ways_to(self, value: object, limit: int = MOST_PATHS) -> list[ReferencePath]:
        """Return the paths to an object, the shortest first; no path passes through the object itself."""
        number = self.numbers.get(id(value))
        return [] if number is None else self._paths_to(number, _DETOURS)[:limit]

    def branches_to(self, value: object) -> list[Branch]:
        """Return the paths that `ways_to` gives, as branches: one for each reference to the object, and for its roots.

        Where that gives too many paths, or one that passes through the object, each of its paths is a branch.
        """
        number = self.numbers.get(id(value))
        if number is None:
            return []
        roots, level = self._roots.get(number, ()), self._levels[number]
        found, count = [Branch([Start.of(ReferencePath(root)) for root in roots])] if roots else [], len(roots)
        for before, make, key in self._into(number):
            if before != number:
                branch, passed = self._branch(before, _DETOURS if self._levels[before] < level else _DETOURS - 1)
                count += len(branch.starts)
                if count > MOST_PATHS or number in passed:
                    return list(map(Branch.along, self._paths_to(number, _DETOURS)))
                if branch.starts:
                    found.append(Branch(branch.starts, branch, make(key), self._values[before]))
        return found

    def _branch(self, number: int, detours: int) -> tuple[Branch, frozenset[int]]:
        """Return the paths of `_paths_to` to an object as one branch, and the numbers of all objects on them."""
        known = self._branches.get((number, detours))
        if known is None:
            into = self._into(number)
            if len(into) == 1 and number not in self._roots and self._levels[into[0][0]] < self._levels[number]:
                before, make, key = into[0]
                branch, passed = self._branch(before, detours)  # no path goes through the object: it leaves by `before`
                branch = Branch(branch.starts, branch, make(key), self._values[before])
            else:
                paths = self._paths_to(number, detours)
                branch = Branch(list(map(Start.of, paths)))
                passed = frozenset([self.numbers[id(one)] for way in paths for one in way.passed])
            known = self._branches[number, detours] = branch, passed | {number}
        return known

    def _paths_to(self, number: int, detours: int) -> list[ReferencePath]:
        """Return the shortest paths to an object: the paths to its holders, computed once a holder, and one more step.

        On a path each object was met later than the one before it, except for up to `detours` steps, such as that from
        a list to an object in it that a variable holds too.
        """
        known = self._paths[detours]
        if number in known:
            return known[number]
        levels, value = self._levels, self._values[number]
        found = [ReferencePath(root) for root in self._roots.get(number, ())]
        for before, make, key in self._into(number):
            rises = levels[before] < levels[number]
            if before == number or not (rises or detours):
                continue
            if len(found) >= MOST_WAYS:
                break
            paths = self._paths_to(before, detours if rises else detours - 1)
            step, holder = make(key), self._values[before]
            only = rises and len(paths) == 1  # the path of the search itself, which passes no object twice
            found += [one.then(step, holder) for one in paths if only or not one.passes(value)]
        if len(found) > 1:
            found = sorted(found, key=attrgetter("length"))[:MOST_PATHS]
        known[number] = found
        return found

    def _into(self, number: int) -> list[_Into]:
        """Return the holders of an object, each with the function that makes the step from it.

        The result has at most `MOST_WAYS` entries, at most `MOST_PATHS` from one holder, and one from each in turn: a
        list that holds one object a hundred thousand times costs no more than a list of numbers, and hides no other
        holder.
        """
        found = self._steps.get(number)
        if found is None:
            value, first = self._values[number], self._first[number]
            holders = [*([] if first == _NOBODY else [first]), *self._others.get(number, ())]
            ways = [self._read(holder, value) for holder in holders]
            found = [one for way in ways for one in way]
            if len(found) > sum(map(bool, ways)):  # which is rare
                turns = chain.from_iterable(zip_longest(*(way[:MOST_PATHS] for way in ways)))
                found = list(filter(None, turns))
            self._steps[number] = found = found[:MOST_WAYS]
        return found

    def _read(self, holder: int, value: object) -> list[_Into]:
        """Return the makers of the steps from a holder to a value. A second call for a large holder reads it whole."""
        contents = self._contents.get(holder)
        if contents is None:
            kept = self._owners.get(holder)
            if kept is not None and len(kept) <= _FEW:
                return [(holder, make, key) for make, key, one in kept if one is value]
            with DisableTorchFunction():
                held = kept or self._children.list(self._values[holder])
                if holder not in self._contents:
                    self._contents[holder] = None
                    return list(islice(((holder, make, key) for make, key, one in held if one is value), MOST_PATHS))
                contents = self._contents[holder] = {}
                for make, key, one in held:
                    contents.setdefault(id(one), []).append((holder, make, key))
        return contents.get(id(value), [])


_OWNERS = torch.nn.Module, torch.optim.Optimizer

_FEW = 16
"""A module with at most so few objects is looked through for each that is wanted."""

_Into: TypeAlias = tuple[int, Callable[[Any], Reference], Any]
"""The number of a holder, with the function that makes the step from it, and its argument."""

_NOBODY = -1
"""Number in place of the holder of a root's value, which has none."""

_DETOURS = 8
"""In random graphs full of cycles, 8 detours gave all names that following every path gave, at the same cost as 3."""
_WIDTHS = 4096, 65_536, sys.maxsize
"""The most objects of a holder or a level in the first turn, in the second, which reads what was left, and at last."""


def search(
    roots: Iterable[Root], *, only: Collection[int] | None = None, depth: int = DEPTH, budget: int = BUDGET
) -> SearchResult:
    """Search the objects within `depth` steps of the roots, at most `budget` of them, the nearest first.

    From holders that are read last, such as a long list, the search goes `depth` steps further. With `only`, the ids of
    some objects, it visits no others.
    """
    reached = SearchResult()
    for root in sorted(roots, key=attrgetter("quality", "distance")):
        reached.start(root)
    holders: Sequence[int] = range(len(reached))
    with DisableTorchFunction():
        for turn, width in enumerate(_WIDTHS):  # the samples of a data set come last, and may use up the budget
            for level in range(turn * depth + 1, (turn + 1) * depth + 1):
                holders = reached.descend(holders, level, only, budget, width)
                if not holders or len(reached) > budget:
                    break
            holders, reached._waiting = reached._waiting, []
    reached.budget = budget if len(reached) > budget else 0
    return reached
