"""Repeats: find equal neighbours, so that one of them is drawn for all.

Items are equal if they have the same class, settings, parameter shapes, output shapes and contents. Their wires must
also agree: inside, to their predecessor, to their successor and to all other items. Only their names may differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass
from typing import Any

from byname.drawing.plan import CALLED, DrawnItem, EqualItems, Plan, Wire, traits

LONGEST_PERIOD = 12
"""The largest number of neighbours in one repetition."""

FEWEST = 3
"""The smallest number of repetitions for which only one is drawn."""

WORTH = 8
"""The smallest number of items that must be saved."""


def collapse(plan: Plan) -> None:
    """Find the repetitions in a plan, outermost first. The first repetition gets `EqualItems`; the rest are removed."""
    alike = _Alike(plan)
    waiting = [0]
    while waiting:
        parent = waiting.pop()
        children: list[int] = []
        for run in alike.runs(plan.items[parent].children):
            if len(run.groups) == 1:
                children += run.groups[0]
            else:
                children.append(_mark(plan, parent, run))
        waiting += children
        plan.items[parent].children = children


def _mark(plan: Plan, parent: int, run: EqualItems) -> int:
    """Return the item that represents a run: the first one, or a new one around the items of the first repetition."""
    first, *others = run.groups[0]
    for group in run.groups[1:]:
        for original, other in zip(run.groups[0], group, strict=True):
            plan.twins.update(zip(plan.inside(other), plan.inside(original), strict=True))
    if others:
        item = plan.add("repeat", "", "", parent)
        item.children = run.groups[0]
        for child in item.children:
            plan.items[child].parent = item.number
        first = item.number
    plan.items[first].run = run
    return first


@dataclass(slots=True)
class _Group:
    """The wires of a candidate for a repetition.

    Attributes:
        coming: for each incoming wire, the kind of its source and the positions of its ends relative to the group.
        sources: for each incoming wire, the position of its source in the plan.
        going: the wires to items outside, except to the next group.
        going_next: the wires to the next group.
    """

    coming: list[tuple[Hashable, ...]]
    sources: list[int]
    going: set[tuple[Hashable, ...]]
    going_next: set[tuple[Hashable, ...]]


class _Alike:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        order = list(plan.inside(0))
        self.position = {number: place for place, number in enumerate(order)}
        self.order = order
        self.size = dict.fromkeys(order, 1)
        for number in reversed(order[1:]):
            self.size[plan.items[number].parent] += self.size[number]
        self.coming: defaultdict[int, list[Wire]] = defaultdict(list)
        self.going: defaultdict[int, list[Wire]] = defaultdict(list)
        for wire in plan.wires:
            self.coming[wire.target].append(wire)
            self.going[wire.source].append(wire)
        self.kinds: dict[Hashable, int] = {}
        self.kind: dict[int, int] = {}
        self.recognize()

    def recognize(self) -> None:
        """Give equal items the same number, without regard to wires from outside."""
        inner: defaultdict[int, list[tuple[Hashable, ...]]] = defaultdict(list)
        for wire in self.plan.wires:
            above = set(self.plan.above(wire.source))
            meet = next(number for number in self.plan.above(wire.target) if number in above)
            start = self.position[meet]
            ends = self.position[wire.source] - start, self.position[wire.target] - start
            inner[meet].append((*ends, wire.shape, wire.via))
        for number in reversed(self.order):
            item = self.plan.items[number]
            parts = tuple((self.kind[child], _relative(self.plan, child)) for child in item.children)
            form = (item.kind, traits(item), parts, tuple(inner[number]))
            self.kind[number] = self.kinds.setdefault(form, len(self.kinds))

    def runs(self, children: list[int]) -> Iterator[EqualItems]:
        """Yield the children as runs; an item that does not repeat is a run with one group."""
        place = 0
        while place < len(children):
            period, times = self.longest(children, place)
            groups = [children[place + k * period : place + (k + 1) * period] for k in range(times)]
            run = EqualItems(groups)
            if times > 1:
                self.note_wires(run)
            yield run
            place += period * times

    def longest(self, children: list[int], place: int) -> tuple[int, int]:
        """Return the period and the number of the repetitions that begin at a position; (1, 1) if nothing repeats."""
        best = (1, 1)
        for period in range(1, min(LONGEST_PERIOD, (len(children) - place) // FEWEST) + 1):
            if self.kind[children[place]] == self.kind[children[place + period]]:
                times = self.times(children, place, period)
                if times >= FEWEST and times * period > best[0] * best[1]:
                    saved = (times - 1) * sum(self.size[child] for child in children[place : place + period])
                    best = (period, times) if saved >= WORTH else best
        return best

    def times(self, children: list[int], place: int, period: int) -> int:
        """Return how often a group of items repeats from a position on, with the same wires.

        Args:
            children: the items.
            place: the position of the first group.
            period: the number of items in a group.
        """
        pattern = [self.kind[child] for child in children[place : place + period]]
        items = [self.plan.items[child] for child in children[place : place + period]]
        plain = all(item.kind in (*CALLED, "parameter", "constant") for item in items)
        if not plain or not all(self.fits(children, place + k * period, pattern) for k in range(FEWEST)):
            return 1
        groups: list[_Group] = []
        while self.fits(children, place + len(groups) * period, pattern):
            groups.append(self.group(children, place + len(groups) * period, period))
            if not _consistent(groups):
                groups.pop()
                break
        while len(groups) > 1 and not _complete(groups):
            groups.pop()
        return len(groups)

    def fits(self, children: list[int], start: int, pattern: list[int]) -> bool:
        return [self.kind[child] for child in children[start : start + len(pattern)]] == pattern

    def span(self, children: list[int], start: int, period: int) -> range:
        """Return the positions of all items of a group, in the order of the plan."""
        group = children[max(start, 0) : start + period]
        if not group or start < 0:
            return range(0)
        return range(self.position[group[0]], self.position[group[-1]] + self.size[group[-1]])

    def group(self, children: list[int], start: int, period: int) -> _Group:
        """Return the wires of a group: inside it, to the group before, to the group after, and to other items."""
        before, here, after = (self.span(children, start + k * period, period) for k in (-1, 0, 1))
        found = _Group([], [], set(), set())
        for place in here:
            for wire in self.coming[self.order[place]]:
                source = self.position[wire.source]
                end = (place - here.start, wire.shape, wire.via)
                found.sources.append(source)
                if source in here:
                    found.coming.append(("inside", source - here.start, *end))
                elif source in before:
                    found.coming.append(("before", source - before.start, *end))
                else:
                    found.coming.append(("elsewhere", source, *end))
            for wire in self.going[self.order[place]]:
                target = self.position[wire.target]
                if target not in here:
                    goes = found.going_next if target in after else found.going
                    goes.add((place - here.start, target, wire.shape, wire.via))
        return found

    def note_wires(self, run: EqualItems) -> None:
        """Note the wires from each repetition to the next, as pairs of items of the first repetition."""
        first, second = (self.span(group, 0, len(group)) for group in run.groups[:2])
        for place in second:
            for wire in self.coming[self.order[place]]:
                if self.position[wire.source] in first:
                    run.wires.add((wire.source, self.order[place - second.start + first.start]))


def _consistent(groups: list[_Group]) -> bool:
    """Return whether the latest group has the inputs of its predecessors, and the group before it their outputs."""
    if len(groups) < 2:
        return True
    latest, previous = groups[-1], groups[-2]
    if len(groups) == 2:
        return len(latest.coming) == len(previous.coming) and _entrance(previous, latest)
    return latest.coming == previous.coming and previous.going == groups[0].going


def _entrance(first: _Group, second: _Group) -> bool:
    """Return whether the wires into the first two groups agree.

    Where the second group takes an output of the first, the first may take anything from outside.
    """
    pairs: Iterator[tuple[tuple[Any, ...], tuple[Any, ...]]] = zip(first.coming, second.coming, strict=True)
    for (one, other), source, other_source in zip(pairs, first.sources, second.sources, strict=True):
        fits = {
            "before": one[0] != "inside" and one[2] == other[2],
            "inside": one == other,
            "elsewhere": one[0] != "inside" and source == other_source and one[2:] == other[2:],
        }
        if not fits[other[0]]:
            return False
    return True


def _complete(groups: list[_Group]) -> bool:
    """Return whether the last group has at least the outgoing wires of the others; without a chain, exactly these."""
    first, last = groups[0], groups[-1]
    chained = any(wire[0] == "before" for wire in groups[1].coming)
    given = last.going | last.going_next
    return first.going <= given if chained else not first.going_next and first.going == given


def _relative(plan: Plan, number: int) -> str:
    """Return the name of an item within the item around it: equal blocks differ only in their own names."""
    item = plan.items[number]
    around: DrawnItem = plan.items[item.parent]
    prefix = f"{around.path}." if around.path else ""
    return item.path.removeprefix(prefix)
