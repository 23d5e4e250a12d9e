"""View: the part of a plan that is shown: boxes down to a depth, one of equal repetitions, and links between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Set
from dataclasses import dataclass, field

from byname.drawing.plan import Plan, Shape, Wire
from byname.table import counted

MOST_BOXES = 400
"""The largest number of boxes of a picture without a requested depth."""


@dataclass(slots=True)
class Wires:
    """All wires between two shown items.

    Attributes:
        source, target: the numbers of the items.
        wires: the wires; one that repeats is there once.
        leaves: the repetitions that it comes from, as (item of the run, number of the repetition).
        enters: the repetitions that it goes into, likewise.
    """

    source: int
    target: int
    wires: list[Wire] = field(default_factory=list)
    leaves: set[tuple[int, int]] = field(default_factory=set)
    enters: set[tuple[int, int]] = field(default_factory=set)

    @property
    def shapes(self) -> tuple[Shape | None, ...]:
        """The shapes that arrive, each once."""
        return tuple(dict.fromkeys(wire.shape for wire in self.wires))


@dataclass(slots=True)
class View:
    """The shown part of a plan.

    Attributes:
        plan: the plan.
        shown: the numbers of the shown items, each before those inside it.
        stands_for: for each shown item, the numbers of the calls that it represents.
        links: the links between shown items.
        open: the shown items whose contents are shown.
    """

    plan: Plan
    shown: list[int]
    stands_for: dict[int, list[int]]
    links: list[Wires]
    open: set[int]

    def children(self, number: int) -> list[int]:
        """Return the items that are shown inside an item."""
        return self.plan.items[number].children if number in self.open else []


def view(plan: Plan, depth: int | None, *, opened: Set[str] = frozenset(), closed: Set[str] = frozenset()) -> View:
    """Return the part of a plan to show. Closed items get the marks of the items inside them.

    Args:
        plan: the plan.
        depth: the number of nested modules that are opened; by default the greatest one with up to `MOST_BOXES` boxes.
        opened: the paths of modules that are open at any depth, together with the modules around them.
        closed: the paths of modules that are one box.
    """
    levels = dict(_levels(plan))
    limit = _fitting(plan, levels) if depth is None else depth
    wanted = _and_around(plan, opened)
    seen: dict[int, None] = {}  # an item of a "repeat" may be reached twice
    open_ones: set[int] = set()
    waiting = [0]
    while waiting:
        number = waiting.pop()
        seen[number] = None
        item = plan.items[number]
        is_closed = item.kind == "module" and item.path in closed
        if item.children and not is_closed and (number in wanted or levels[item.children[0]] <= limit):
            open_ones.add(number)
            waiting += reversed(item.children)
    shown = [*seen]
    for number in set(shown) - open_ones:
        _take_marks(plan, number)
    place = _Places(plan, set(shown), open_ones)
    stands_for: dict[int, list[int]] = {number: [] for number in shown}
    for item in plan.items:
        if item.number_of_call is not None and (there := place.of(item.number)) is not None:
            stands_for[there].append(item.number_of_call)
    return View(plan, shown, stands_for, place.links(), open_ones)


def _and_around(plan: Plan, paths: Set[str]) -> set[int]:
    """Return the items of modules with these paths, and the items around them."""
    named = [item.number for item in plan.items if item.kind == "module" and item.path in paths]
    return {one for number in named for one in plan.above(number)} | set(named)


def _take_marks(plan: Plan, number: int) -> None:
    """Add the marks of the items inside a closed item to it."""
    item = plan.items[number]
    for inner in list(plan.inside(number))[1:]:
        below = plan.items[inner]
        item.marks += [f"{below.path.removeprefix(item.path).lstrip('.')}: {mark}" for mark in below.marks]


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
                f"drawn to depth {level - 1}; deeper would be {counted(len(levels), 'box', 'boxes')} (depth=)"
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
            shown = Wire(start, end, wire.shape, wire.via)
            if shown not in link.wires:
                link.wires.append(shown)
        return list(found.values())

    def repeated(self, wire: Wire) -> bool:
        """Return whether a wire goes from one repetition to the next, or lies in a repetition that is not drawn."""
        source, target = self.times(wire.source), self.times(wire.target)
        return any(target.get(run, time) != time or (run in target and time) for run, time in source.items())

    def times(self, number: int) -> dict[int, int]:
        """Return the runs that an item is in, each with the number of the repetition."""
        return dict(self.groups[one] for one in self.plan.above(number) if one in self.groups)
