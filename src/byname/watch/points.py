"""Points: the places of a model as a table, from the modules alone or from one run of an example."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from byname.errors import BadArgumentError, NoMatchError
from byname.model.call_graph import Call, Flow, is_place
from byname.model.inventory import Inventory, Point
from byname.model.module_tree import is_called, modules_by_path
from byname.model.resolve import resolve
from byname.model.select import OfClass, TheModule
from byname.model.selectors import Selector, is_counted, no_match
from byname.model.spot import Spot
from byname.model.where import parts_of, unwrapped
from byname.place import Place, ends_of, parse
from byname.table import Row, Rows, closest, counted
from byname.tracing.tracer import trace

__all__ = ["Points", "points"]


@dataclass(frozen=True, slots=True, repr=False)
class Points(Rows[Point]):
    """The places of a model, in the order of the run if an example was given, else in the order of the modules.

    Attributes:
        items: the places.
        model: the class name of the model.
        notes: hints at places that are not listed, and how to list them.
    """

    items: tuple[Point, ...]
    model: str
    notes: tuple[str, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """The path of each place."""
        return tuple(point.path for point in self.items)

    def rows(self) -> list[Row]:
        """Return one dict per place: ``path, kind, operation, module, shape, calls``."""
        columns = ("path", "kind", "operation", "module", "shape", "calls")
        return [{name: getattr(point, name) for name in columns} for point in self.items]

    def _title(self) -> str:
        kinds = Counter(point.kind for point in self.items)
        return f"{self.model}: " + ", ".join(counted(count, kind) for kind, count in kinds.items())

    def _notes(self) -> Sequence[str]:
        return self.notes

    def _spare(self) -> Sequence[str]:
        return ("calls", "module", "operation")


def points(model: nn.Module, where: Any = None, *, example: Any = None) -> Points:
    """Return the places of a model that can be watched and changed.

    Without an example nothing runs: the table has modules, parameters, buffers, and the variables of methods. With an
    example it also has operations, shapes and numbers of calls; the model, the example and the random state stay
    unchanged.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> points(model, "0.*").paths
    ('0.weight', '0.bias')
    >>> for row in points(model, byname.select.relu, example=torch.zeros(1, 2)).rows():
    ...     print(row)
    {'path': '1', 'kind': 'module', 'operation': 'ReLU', 'module': 'ReLU', 'shape': (1, 3), 'calls': 1}

    Args:
        model: any module.
        where: list only these: a path, with or without wildcards, a selector, a module class, a module, or a sequence
            of these.
        example: a tensor; a tuple of positional arguments; a dict of keyword arguments; or ``(args, kwargs)``.

    Raises:
        NoMatchError: nothing matches `where`; the message names close matches.
        BadPathError: a path is malformed.
        BadExampleError: `example` is not one of these forms.
        BadArgumentError: `where` is invalid, or goes by the order of the run and there is no example.
        NotAModuleError: `model` is not a module.
    """
    root = unwrapped(model)
    modules = modules_by_path(root)
    flow = None if example is None else trace(root, example)
    listing = _Listing(root, modules, flow)
    if where is None:
        items, notes = listing.places, listing.notes(left_out=True)
    else:
        items, notes = (
            _in_order(listing, [one for each in parts_of(where) for one in listing.wanted(each)]),
            listing.notes(),
        )
    return Points(tuple(items), type(root).__name__, tuple(notes))


def _in_order(listing: _Listing, wanted: list[Point]) -> list[Point]:
    """Return the wanted places, each once, in the order of the listing; places outside of the listing come last."""
    order = {point.path: number for number, point in enumerate(listing.every)}
    each = {point.path: point for point in wanted}
    return sorted(each.values(), key=lambda point: order.get(point.path, len(order)))


class _Listing:
    """All places of a model.

    Attributes:
        every: all places, in order.
        places: without the operations inside leaf modules, which are not places of their own.
    """

    def __init__(self, root: nn.Module, modules: dict[str, nn.Module], flow: Flow | None) -> None:
        self._root = root
        self._modules = {path: module for path, module in modules.items() if is_called(module)}
        self._flow = flow
        self._inventory = Inventory(modules.values())
        self.every: list[Point] = []
        self._inside: set[str] = set()
        for call in flow.calls if flow is not None else ():
            if not is_place(call):
                self._inside.add(call.path)
        if flow is not None:
            self._list_calls(flow)
        listed = {point.path for point in self.every}
        for path, module in modules.items():
            if path in self._modules and (path or "forward") not in listed:
                calls = None if flow is None else 0
                name = type(module).__name__
                self.every.append(Point(path or "forward", "module", name, name, calls=calls))
            if path not in self._modules or (path or "forward") not in listed:
                self.every += self._inventory.of(path, module)
        self.places = [point for point in self.every if point.path not in self._inside]

    def _list_calls(self, flow: Flow) -> None:
        counts = Counter(call.path for call in flow.calls)
        for call in flow.calls:
            if call.call:
                continue
            owner = type(call.module).__name__
            shape = call.shapes[0] if call.shapes else None
            path = call.path or "forward"
            self.every.append(Point(path, call.kind, call.operation, owner, shape, counts[call.path], call.shapes))
            if call.kind == "module":
                self.every += self._inventory.of(call.path, call.module)

    def notes(self, *, left_out: bool = False) -> list[str]:
        """Return notes about the places that are not listed."""
        if self._flow is None:
            return ["operations and shapes are known with example="]
        if not left_out or not self._inside:
            return []
        return [
            f"left out: {counted(len(self._inside), 'operation')} inside modules of torch.nn; "
            "ask for them by their paths, such as 'fc1.linear' or 'fc1.*'"
        ]

    def wanted(self, where: Any) -> list[Point]:
        """Return the places that one path, selector, class or module selects."""
        if isinstance(where, str | Place):
            return self._at(parse(where) if isinstance(where, str) else where)
        if isinstance(where, Selector):
            return self._selected(where)
        selector = TheModule(where) if isinstance(where, nn.Module) else OfClass(where)
        calls = [call for call in self._module_calls() if selector.online().see(call)]
        if not calls:
            raise no_match(selector, self._module_calls())
        return self._of_calls(calls)

    def _at(self, pattern: Place) -> list[Point]:
        found = [point for point in self.every if pattern.matches(point.path) and not self._is_hidden(point, pattern)]
        return found or [self._of_spot(spot) for spot in resolve(pattern, self._root).spots]

    def _is_hidden(self, point: Point, pattern: Place) -> bool:
        """Return whether the place is an operation inside a module that the pattern matches itself."""
        if point.path not in self._inside:
            return False
        owner = parse(point.path).segments[:-1]
        return len(owner) in ends_of(pattern.segments, owner)

    def _of_spot(self, spot: Spot) -> Point:
        """Return the place of a path that has no row: another name of a place, an item of a value, a gradient."""
        if self._flow is not None and spot.kind == "operation":
            close = closest(spot.path, [point.path for point in self.every if point.kind == "operation"])
            raise NoMatchError(f"`{spot.full}` is no operation that ran; there are {close}")
        known = next((point for point in self.every if point.path == spot.path.removesuffix(".forward")), None)
        if known is not None and not spot.items and not spot.gradient:
            return replace(known, path=spot.full)
        owner = type(spot.module).__name__
        return Point(spot.full, spot.kind, spot.name if spot.kind == "operation" else "", owner)

    def _selected(self, selector: Selector) -> list[Point]:
        if self._flow is not None:
            return self._of_calls([self._flow.calls[index] for index in selector.matches(self._flow)])
        if is_counted(selector):
            raise BadArgumentError(f"{selector} goes by the order of the run: pass example= with an input of the model")
        online = selector.online()
        found = [call for call in self._module_calls() if online.see(call)]
        if not found:
            error = no_match(selector, self._module_calls())
            raise NoMatchError(f"{error}. Functions and operators are known with example= only")
        return self._of_calls(found)

    def _module_calls(self) -> list[Call]:
        """Return one call per module, with neither inputs nor outputs."""
        return [Call(path, type(one).__name__, "module", one) for path, one in self._modules.items()]

    def _of_calls(self, calls: Iterable[Call]) -> list[Point]:
        paths = {call.path or "forward" for call in calls}
        return [point for point in self.every if point.path in paths]
