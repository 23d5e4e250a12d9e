"""Search: a breadth-first search from the roots over all objects that they hold, which keeps every path to an object.

The search only reads. It is bounded in depth and in the number of objects, so that a heap of millions costs no more
than a small one. `byname.naming.referrers` finds objects that it does not reach.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import chain, compress, groupby, islice, repeat, zip_longest
from operator import attrgetter, itemgetter
from typing import Any, TypeAlias

import torch

from byname.naming.children.reference import Reference
from byname.naming.children.registry import Children
from byname.naming.children.torch import gradients_alone
from byname.naming.reference_path import MOST_PATHS, MOST_WAYS, Link, PathMap, ReferencePath, is_internal
from byname.naming.roots import Root
from byname.reading.objects import attributes_of
from byname.reading.quiet import DisableTorchFunction

DEPTH = 10
BUDGET = 300_000


class Targets(list[torch.Tensor]):
    """List in which byname holds tensors for a moment; a search never takes it for a holder in the program."""


class ScratchList(list[Any]):
    """List in which byname holds other objects for a moment; never taken for a holder in the program."""


class ScratchDict(dict[int, Any]):
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
        self._values: list[object] = ScratchList()
        self.numbers: dict[int, int] = {}
        self._roots: dict[int, list[Root]] = {}
        self._first: list[int] = []
        self._others: dict[int, list[int]] = {}
        self._full: set[int] = set()  # ids of objects that have as many holders as are remembered
        self._waiting: list[int] = []
        self._levels: list[int] = []
        self.path_map = PathMap({}, {})
        self._plain: set[int] = set()
        self._met_state = False
        self._own_paths = PathMap(self._roots, self.path_map.into, self._values)
        self._owners: dict[int, list[Any] | None] = ScratchDict()
        self._contents: dict[int, dict[int, list[_Maker]] | None] = ScratchDict()

    def start(self, root: Root) -> None:
        self._roots.setdefault(self._meet(root.value), []).append(root)

    def pass_over(self, scopes: Iterable[str]) -> None:
        """Search no namespace of these modules: its variables are roots, and ``globals()`` holds nothing more."""
        for module in filter(None, map(sys.modules.get, scopes)):
            self._meet(vars(module))

    def _meet(self, value: object) -> int:
        number = self.numbers.setdefault(id(value), len(self._values))
        if number == len(self._values):
            self._values.append(value)
            self._first.append(_NO_HOLDER)
            self._levels.append(0)
        return number

    def descend(
        self, holders: Sequence[int], level: int, only: Collection[int] | None, budget: int, width: int
    ) -> range:
        """Add the objects of some holders to a level; return the numbers of the new ones.

        It is one long loop without calls, since it runs for every object that the program's variables lead to. A holder
        of more than `width` objects waits, and so do all but modules once the level has as many new objects.
        """
        values, numbers, first, others, full = self._values, self.numbers, self._first, self._others, self._full
        children, count, before = self._children.of, len(values), len(values)
        gradients = self._gradients(holders) if len(holders) <= width else {}
        for holder in holders:
            if count > budget:
                break
            kind = type(values[holder])
            held: Sequence[object] | None = gradients.get(holder)
            if held is None:
                held = self._in_owner(holder) if issubclass(kind, _OWNERS) else children(values[holder])
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

    def _gradients(self, holders: Sequence[int]) -> dict[int, Sequence[object] | None]:
        """Return what the tensors of PyTorch's own classes among some holders hold, as `gradients_alone` does."""
        values: list[Any] = self._values
        tensors = [one for one in holders if (kind := type(values[one])) is torch.Tensor or kind is torch.nn.Parameter]
        return dict(zip(tensors, gradients_alone(list(map(values.__getitem__, tensors))), strict=True))

    def _in_owner(self, number: int) -> list[object]:
        """Return the objects that a module or optimizer has, and keep the steps to them: most names need some."""
        self._owners[number] = held = list(self._children.list(self._values[number]))
        return [one for _, _, one in held]

    def __len__(self) -> int:
        return len(self._values)

    def dicts_of_owners(self) -> dict[int, int]:
        """Return the ids of the dicts inside the modules and optimizers met, each with the id of its owner.

        It also forgets the steps that are kept, because a search upwards would take their tuples for holders.
        """
        self._owners = ScratchDict.fromkeys(self._owners)
        self._contents = ScratchDict()
        found: dict[int, int] = {}
        for owner in map(self._values.__getitem__, self._owners):
            attributes = attributes_of(owner)
            for one in (attributes, *map(attributes.get, ("_parameters", "_buffers", "_modules", "state"))):
                found[id(one)] = id(owner)
        return found

    def ids_down_to(self, ident: int) -> Iterator[int]:
        """Yield the ids of an object, and of those on the path by which the search first met it."""
        number = self.numbers[ident]
        while number != _NO_HOLDER:
            yield id(self._values[number])
            number = self._first[number]

    def tensors(self) -> Iterator[torch.Tensor]:
        return compress(self._values, map(issubclass, map(type, self._values), repeat(torch.Tensor)))  # type: ignore[arg-type]

    def roots(self) -> Iterator[Root]:
        return chain.from_iterable(self._roots.values())

    def thing(self, ident: int) -> Any:
        """Return the object with this id, if the search met it."""
        number = self.numbers.get(ident)
        return None if number is None else self._values[number]

    def paths_to(self, value: object, limit: int = MOST_PATHS) -> list[ReferencePath]:
        """Return the paths to an object, the shortest first; no path passes through the object itself."""
        number = self.note_paths(value)
        return [] if number is None else self._own_paths.paths(number)[:limit]

    def note_paths(self, value: object) -> int | None:
        """Note in `path_map` all references that lead to an object; return its number, or None if it was not met."""
        number, into, roots = self.numbers.get(id(value)), self.path_map.into, self.path_map.roots
        waiting = [] if number is None or number in into else [number]
        for one in waiting:
            if one not in into:
                into[one] = links = self._links(one)
                waiting += [link[0] for link in links]
                if one in self._roots:
                    roots[one] = [root._replace(value=None, code=None) for root in self._roots[one]]
        return number

    def _links(self, number: int) -> list[Link]:
        """Return the references to an object.

        There are at most `MOST_WAYS`, at most `MOST_PATHS` from one holder, and one from each in turn: a list that
        holds one object a hundred thousand times costs no more than a list of numbers, and hides no other holder.
        """
        values, levels, first = self._values, self._levels, self._first[number]
        value, level, others = values[number], levels[number], self._others.get(number, ())
        found: list[Link] = []
        holders = 0
        for holder in others if first == _NO_HOLDER else (first, *others):
            steps = self._steps(holder, value)
            if steps:
                rises, holders = levels[holder] < level, holders + 1
                for step in steps:
                    kind = step.kind
                    internal = kind in _ORDINARY and is_internal(step, values[holder])
                    found.append((holder, step, internal, rises))
                    self._met_state = self._met_state or kind == "state"
        if len(found) > holders:  # which is rare
            turns = zip_longest(*[list(links) for _, links in groupby(found, itemgetter(0))])
            found = list(filter(None, chain.from_iterable(turns)))
        return found[:MOST_WAYS]

    def is_plain(self, number: int) -> bool:
        """Return whether a path leads to an object, its steps away from the variables, and none through a state.

        The state of an optimizer is meant. All references that lead to the object are noted.
        """
        plain, into = self._plain, self.path_map.into
        links = into[number]
        if links and links[0][3] and links[0][0] in plain and not self._met_state:
            return True
        if number not in plain:
            waiting, seen = [number], {number}
            for one in waiting:
                for before, step, _, _ in into[one]:
                    if step.kind == "state":
                        return False
                    if before not in plain and before not in seen:
                        seen.add(before)
                        waiting.append(before)
            for one in sorted(waiting, key=self._levels.__getitem__) if len(waiting) > 1 else waiting:
                if one in self._roots or any(rises and before in plain for before, _, _, rises in into[one]):
                    plain.add(one)
        return number in plain

    def _steps(self, holder: int, value: object) -> Sequence[Reference]:
        """Return the steps from a holder to a value. A second call for a large holder reads it whole."""
        contents = self._contents.get(holder)
        if contents is None:
            kept = self._owners.get(holder)
            if kept is not None and len(kept) <= _FEW:
                return [make(key) for make, key, one in kept if one is value]
            with DisableTorchFunction():
                held = kept or self._children.list(self._values[holder])
                if holder not in self._contents:
                    self._contents[holder] = None
                    found = ((make, key) for make, key, one in held if one is value)
                    return [make(key) for make, key in islice(found, MOST_PATHS)]
                contents = self._contents[holder] = {}
                for make, key, one in held:
                    contents.setdefault(id(one), []).append((make, key))
        return [make(key) for make, key in contents.get(id(value), ())[:MOST_PATHS]]


_ORDINARY = "attribute", "item"
"""The kinds of steps that may read something internal."""

_OWNERS = torch.nn.Module, torch.optim.Optimizer

_FEW = 16
"""A module with at most so few objects is looked through for each that is wanted."""

_Maker: TypeAlias = tuple[Callable[[Any], Reference], Any]
"""A function that makes a step, and its argument."""

_NO_HOLDER = -1
"""Number in place of the holder of a root's value, which has none."""

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
    ordered = sorted(roots, key=attrgetter("quality", "distance"))
    for root in ordered:
        reached.start(root)
    holders: Sequence[int] = range(len(reached))
    reached.pass_over({root.scope for root in ordered if root.how == "global"})
    with DisableTorchFunction():
        for turn, width in enumerate(_WIDTHS):  # the samples of a data set come last, and may use up the budget
            for level in range(turn * depth + 1, (turn + 1) * depth + 1):
                holders = reached.descend(holders, level, only, budget, width)
                if not holders or len(reached) > budget:
                    break
            holders, reached._waiting = reached._waiting, []
    reached.budget = budget if len(reached) > budget else 0
    return reached
