"""View: the part of a plan that is shown: one of equal repetitions, boxes down to a depth, and the links between them.

Neighbours are equal if they have the same class, settings, parameter shapes, output shapes and contents. Their wires
must also agree: inside, to their predecessor, to their successor and to all other items. Only their names may differ.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterator, Set
from dataclasses import dataclass, field

from byname.drawing.plan import CALLED, EqualItems, Plan, Shape, Wire, traits
from byname.table import counted

LONGEST_PERIOD = 12
"""The largest number of neighbours in one repetition."""

FEWEST = 3
"""The smallest number of repetitions for which only one is drawn."""

WORTH = 8
"""The smallest number of items that must be saved."""


def collapse(plan: Plan) -> None:
    """Find the repetitions in a plan, outermost first. The first repetition gets `EqualItems`; the rest are removed."""
    alike = _RepeatFinder(plan)
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
        incoming: for each incoming wire, where its source is and the positions of its ends, relative to the group.
        outgoing, outgoing_to_next: the wires to other items outside, and those to the next group.
    """

    incoming: list[tuple[Hashable, ...]] = field(default_factory=list)
    outgoing: set[tuple[Hashable, ...]] = field(default_factory=set)
    outgoing_to_next: set[tuple[Hashable, ...]] = field(default_factory=set)


class _RepeatFinder:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        order = list(plan.inside(0))
        self.position = {number: place for place, number in enumerate(order)}
        self.order = order
        self.size = dict.fromkeys(order, 1)
        for number in reversed(order[1:]):
            self.size[plan.items[number].parent] += self.size[number]
        self.incoming: defaultdict[int, list[Wire]] = defaultdict(list)
        self.outgoing: defaultdict[int, list[Wire]] = defaultdict(list)
        for wire in plan.wires:
            self.incoming[wire.target].append(wire)
            self.outgoing[wire.source].append(wire)
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
            parts = tuple((self.kind[child], self.plan.local(self.plan.items[child])) for child in item.children)
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
        """Return how often a group of `period` items repeats from a position on, with the same wires."""
        pattern = [self.kind[child] for child in children[place : place + period]]
        items = [self.plan.items[child] for child in children[place : place + period]]
        plain = all(item.kind in (*CALLED, "parameter", "constant") for item in items)
        if not plain or not all(self.fits(children, place + k * period, pattern) for k in range(FEWEST)):
            return 1
        groups: list[_Group] = []
        while self.fits(children, place + len(groups) * period, pattern):
            group = self.group(children, place + len(groups) * period, period, first=not groups)
            if groups and not _fits_in(groups, group):
                break
            groups.append(group)
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

    def group(self, children: list[int], start: int, period: int, *, first: bool) -> _Group:
        """Return the wires of a group: inside it, to the group before, to the group after, and to other items."""
        before, here, after = (self.span(children, start + k * period, period) for k in (-1, 0, 1))
        found = _Group()
        for place in here:
            for wire in self.incoming[self.order[place]]:
                source = self.position[wire.source]
                where = "inside" if source in here else "before" if source in before and not first else "elsewhere"
                begin = {"inside": here.start, "before": before.start, "elsewhere": 0}[where]
                found.incoming.append((where, source - begin, place - here.start, wire.shape, wire.via))
            for wire in self.outgoing[self.order[place]]:
                target = self.position[wire.target]
                if target not in here:
                    goes = found.outgoing_to_next if target in after else found.outgoing
                    goes.add((place - here.start, target, wire.shape, wire.via))
        return found

    def note_wires(self, run: EqualItems) -> None:
        """Note the wires from each repetition to the next, as pairs of items of the first repetition."""
        first, second = (self.span(group, 0, len(group)) for group in run.groups[:2])
        for place in second:
            for wire in self.incoming[self.order[place]]:
                if self.position[wire.source] in first:
                    run.wires.add((wire.source, self.order[place - second.start + first.start]))


def _fits_in(groups: list[_Group], latest: _Group) -> bool:
    """Return whether a group has the inputs of its predecessors, and the group before it their outputs.

    Where the second group takes an output of the first, the first may take anything from outside.
    """
    first, previous = groups[0], groups[-1]
    if len(groups) > 1:
        return latest.incoming == previous.incoming and previous.outgoing == first.outgoing
    return len(latest.incoming) == len(first.incoming) and all(
        one == other or (one[0], other[0], one[2]) == ("elsewhere", "before", other[2])
        for one, other in zip(first.incoming, latest.incoming, strict=True)
    )


def _complete(groups: list[_Group]) -> bool:
    """Return whether the last group has at least the outgoing wires of the others; without a chain, exactly these."""
    first, last = groups[0], groups[-1]
    chained = any(wire[0] == "before" for wire in groups[1].incoming)
    given = last.outgoing | last.outgoing_to_next
    return first.outgoing <= given if chained else not first.outgoing_to_next and first.outgoing == given


MOST_BOXES = 400
"""The largest number of boxes of a picture without a requested depth."""


@dataclass(slots=True)
class Wires:
    """All wires between two shown items, with the shapes that arrive and the operations on the way, each once.

    Attributes:
        leaves, enters: the repetitions that they come from and go to, as (item of the run, number of the repetition).
    """

    source: int
    target: int
    shapes: dict[Shape | None, None] = field(default_factory=dict)
    via: dict[str, None] = field(default_factory=dict)
    leaves: set[tuple[int, int]] = field(default_factory=set)
    enters: set[tuple[int, int]] = field(default_factory=set)


@dataclass(slots=True)
class View:
    """The shown part of a plan.

    Attributes:
        shown: the numbers of the shown items, each before those inside it.
        calls: for each shown item, the numbers of the calls that it represents.
        open: the shown items whose contents are shown.
    """

    plan: Plan
    shown: list[int]
    calls: dict[int, list[int]]
    links: list[Wires]
    open: set[int]

    def children(self, number: int) -> list[int]:
        return self.plan.items[number].children if number in self.open else []


def view(plan: Plan, depth: int | None, *, opened: Set[str] = frozenset(), closed: Set[str] = frozenset()) -> View:
    """Return the part of a plan to show, as `draw` is asked. Closed items get the marks of the items inside them."""
    levels = dict(_levels(plan))
    limit = _fitting(plan, levels) if depth is None else depth
    named = (item.number for item in plan.items if item.kind == "module" and item.path in opened)
    wanted = {one for number in named for one in plan.above(number)}
    seen: dict[int, None] = {}  # an item of a "repeat" may be reached twice
    opened_items: set[int] = set()
    waiting = [0]
    while waiting:
        number = waiting.pop()
        seen[number] = None
        item = plan.items[number]
        is_closed = item.kind == "module" and item.path in closed
        if item.children and not is_closed and (number in wanted or levels[item.children[0]] <= limit):
            opened_items.add(number)
            waiting += reversed(item.children)
    shown = [*seen]
    for item in (plan.items[number] for number in set(shown) - opened_items):
        for below in (plan.items[number] for number in [*plan.inside(item.number)][1:]):
            item.marks += [f"{below.path.removeprefix(item.path).lstrip('.')}: {mark}" for mark in below.marks]
    place = _Places(plan, set(shown), opened_items)
    calls: dict[int, list[int]] = {number: [] for number in shown}
    for item in plan.items:
        if item.number_of_call is not None and (there := place.of(item.number)) is not None:
            calls[there].append(item.number_of_call)
    return View(plan, shown, calls, place.links(), opened_items)


def _levels(plan: Plan) -> Iterator[tuple[int, int]]:
    """Yield each item that can be shown, with the number of modules that must be open to show it."""
    waiting = [(0, -1)]
    while waiting:
        number, level = waiting.pop()
        yield number, level
        item = plan.items[number]
        inner = level + (item.kind in ("page", "module"))
        waiting += [(child, inner) for child in reversed(item.children)]


def _fitting(plan: Plan, levels: dict[int, int]) -> int:
    """Return the greatest depth with up to `MOST_BOXES` boxes, at least 1; note it if there are deeper items."""
    counts = Counter(levels.values())
    total, deepest = 0, max(counts)
    for level in sorted(counts):
        total += counts[level]
        if total > MOST_BOXES and level > 1:
            plan.notes.append(
                f"drawn to depth {level - 1}; all levels have {counted(len(levels), 'box', 'boxes')} (depth=)"
            )
            return level - 1
    return deepest


class _Places:
    """Finds the shown item for each item of a plan."""

    def __init__(self, plan: Plan, shown: set[int], opened: set[int]) -> None:
        self.plan, self.shown, self.opened = plan, shown, opened
        self.groups: dict[int, tuple[int, int]] = {}
        for number in range(len(plan.items)):
            run = plan.items[number].run
            for time, group in enumerate(run.groups if run else ()):
                self.groups.update(dict.fromkeys(group, (number, time)))

    def of(self, number: int) -> int | None:
        """Return the item that is shown for an item; None for an operation that was folded into a wire."""
        place = self.drawn(number)
        while place not in self.shown:
            place = self.drawn(self.plan.items[place].parent)
        return None if place in self.opened and place != self.drawn(number) else place

    def drawn(self, number: int) -> int:
        """Return the item of the first repetition that represents an item; the item itself if it does not repeat."""
        while number in self.plan.twins:
            number = self.plan.twins[number]
        return number

    def links(self) -> list[Wires]:
        """Return the links, each with all shown wires between the same two items."""
        found: dict[tuple[int, int], Wires] = {}
        for wire in self.plan.wires:
            start, end = self.of(wire.source), self.of(wire.target)
            if start is None or end is None or start == end or self.repeated(wire):
                continue
            link = found.setdefault((start, end), Wires(start, end))
            source, target = self.times(wire.source), self.times(wire.target)
            link.leaves.update([(run, time) for run, time in source.items() if run not in target][-1:])
            link.enters.update([(run, time) for run, time in target.items() if run not in source][-1:])
            link.shapes[wire.shape] = None
            link.via.update(dict.fromkeys(wire.via))
        return list(found.values())

    def repeated(self, wire: Wire) -> bool:
        """Return whether a wire goes from one repetition to the next, or lies in a repetition that is not drawn."""
        source, target = self.times(wire.source), self.times(wire.target)
        return any(target.get(run, time) != time or (run in target and time) for run, time in source.items())

    def times(self, number: int) -> dict[int, int]:
        """Return the runs that an item is in, each with the number of the repetition."""
        return dict(self.groups[one] for one in self.plan.above(number) if one in self.groups)
