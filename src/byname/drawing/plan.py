"""What is to be drawn, before anything has a position? Items inside items, and the wires between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import nn

__all__ = ["CALLED", "Item", "Plan", "Run", "Shape", "Wire"]

Shape = tuple[int, ...]

CALLED = ("module", "operation")
"""The kinds of items that stand for calls; the others are where tensors come from or go to."""


@dataclass(slots=True)
class Run:
    """Neighbours that are alike: only the first is drawn.

    Attributes:
        groups: the items of each repetition, in order; the first one is the one drawn.
        wires: what goes from one repetition to the next, as the first one's items: (from, to).
    """

    groups: list[list[int]]
    wires: set[tuple[int, int]] = field(default_factory=set)


@dataclass(slots=True)
class Item:
    """One thing to draw.

    Attributes:
        number: its place in `Plan.items`.
        kind: "page" (holds all), "module", "operation", "input", "output", "parameter", "constant", "unseen" (made
            where nobody looked) or "repeat" (a row of items that repeats).
        path: the place in the model; of an input its name.
        operation: class of the module, name of the function.
        parent: number of the item around it, -1 for the page.
        module: the module called, or the one that ran the operation.
        call: how many calls of the same path came before.
        number_of_call: its index in the flow; None for what is no call.
        shapes: of what comes out.
        children: numbers of the items in it, in order.
        marks: what is attached to it, in words.
        same: where the same module stands first, when it was registered in several places.
        run: the repetitions that it is the first of.
    """

    number: int
    kind: str
    path: str
    operation: str
    parent: int
    module: nn.Module | None = None
    call: int = 0
    number_of_call: int | None = None
    shapes: tuple[Shape, ...] = ()
    children: list[int] = field(default_factory=list)
    marks: list[str] = field(default_factory=list)
    same: str | None = None
    run: Run | None = None


@dataclass(frozen=True, slots=True)
class Wire:
    """A tensor that comes out of one item and goes into another.

    Attributes:
        source, target: numbers of items.
        shape: of the tensor as it arrives; None where nobody knows it.
        via: names of operations on the way that are not drawn themselves.
    """

    source: int
    target: int
    shape: Shape | None
    via: tuple[str, ...] = ()


@dataclass(slots=True)
class Plan:
    """Items and wires.

    Attributes:
        items, wires: all of them, whether drawn or not.
        flowing: whether wires are known; without an example there are none.
        notes: what the picture does not show, in sentences.
        calls: how often each place was called.
        twins: of an item in a later repetition, the one that is drawn in its place.
    """

    items: list[Item]
    wires: list[Wire]
    flowing: bool
    notes: list[str] = field(default_factory=list)
    twins: dict[int, int] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)

    def add(self, kind: str, path: str, operation: str, parent: int, module: nn.Module | None = None) -> Item:
        """A new item inside another."""
        item = Item(len(self.items), kind, path, operation, parent, module)
        self.items.append(item)
        if parent >= 0:
            self.items[parent].children.append(item.number)
        return item

    def inside(self, number: int) -> Iterator[int]:
        """An item and all in it, each before what it holds."""
        waiting = [number]
        while waiting:
            one = waiting.pop()
            yield one
            waiting += reversed(self.items[one].children)

    def above(self, number: int) -> Iterator[int]:
        """An item, the one around it, and so on up to the page."""
        while number >= 0:
            yield number
            number = self.items[number].parent
