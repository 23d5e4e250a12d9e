"""Points: the places of a model as a table, from the modules alone or from one run of an example."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from byname.errors import BadArgumentError, NoMatchError
from byname.model.call_graph import ModelCall, is_place
from byname.model.methods import names_reached
from byname.model.module_tree import REGISTRY, has_forward, is_script, join_path, modules_by_path, own_state
from byname.model.predicates import OfModule
from byname.model.resolve import resolve
from byname.model.scopes import variable_sites
from byname.model.selectors import Selector, is_indexed, no_match
from byname.model.spot import Spot
from byname.model.states import states_of
from byname.model.where import calls_of, parts_of, unwrapped
from byname.place import NameSegment, Place, as_place, ends_of, parse
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact
from byname.table import Row, Rows, closest, counted
from byname.text import printable
from byname.watch.example_run import Code, ExampleRun, Point, code_of
from byname.watch.variables.subscribe import RETURN


@dataclass(frozen=True, slots=True, repr=False)
class Points(Rows[Point]):
    """The places of a model, in the order of the run if an example was given, otherwise in the order of the modules.

    Attributes:
        items: the places.
        model: the class name of the model.
        notes: hints at places that are not listed, and how to list them.
    """

    items: tuple[Point, ...]
    model: str
    notes: tuple[str, ...] = ()
    _row = Point

    @property
    def paths(self) -> tuple[str, ...]:
        """The path of each place."""
        return tuple(point.path for point in self.items)

    def _tables(self) -> list[tuple[str, list[Row]]]:
        """Return title and printed rows of the table of what ran and, if anything did not run, of a second table."""
        ran = [point for point in self.items if point.ran is not False]
        others = [point for point in self.items if point.ran is False]
        tables = [(self._title(), [point.shown() for point in ran])]
        if others:
            tables.append((f"not run by the example: {_kinds(others)}", [point.shown() for point in others]))
        return tables

    def _title(self) -> str:
        return f"{self.model}: {_kinds(self.items)}"


def _kinds(points: Sequence[Point]) -> str:
    kinds = Counter(point.kind for point in points)
    return ", ".join(counted(count, kind) for kind, count in kinds.items())


def points(model: nn.Module, where: Any = None, *, example: Any = None) -> Points:
    """Return the places of a model that can be observed and changed.

    Without an example nothing runs. The table has modules, parameters, buffers, and the variables of methods and of the
    functions that they call, with the lines that assign them. With an example it also has inputs, operations, the lines
    of calls, shapes and numbers of calls. Places that did not run are printed in a second table. The model, the example
    and the random state stay unchanged.

    >>> from torch import nn
    >>> model = nn.Sequential(nn.Linear(2, 3), nn.ReLU())
    >>> points(model, "0.*").paths
    ('0.weight', '0.bias')
    >>> for row in points(model, byname.select.relu, example=torch.zeros(1, 2)).rows():
    ...     print(row["path"], row["kind"], row["shape"], row["calls"])
    1 module (1, 3) 1

    Args:
        model: any module.
        where: list only these: a path, with or without wildcards, a selector, a module class, a module, or a sequence
            of these.
        example: a tensor; a tuple of positional arguments; a dict of keyword arguments; or ``(args, kwargs)``.

    Raises:
        NoMatchError: nothing matches `where`; the message names close matches.
        BadPathError: a path is malformed.
        BadExampleError: `example` is not one of these forms.
        BadArgumentError: `where` is invalid, or asks for the order of the run and there is no example.
        NotAModuleError: `model` is not a module.
    """
    root = unwrapped(model)
    modules = modules_by_path(root)
    parts = None if where is None else [*parts_of(where, root)]
    counting = parts is None or any(isinstance(one, str | Place) for one in parts)  # only a path selects a variable
    listing = _Listing(root, modules, example, counting=counting)
    if parts is None:
        items, notes = listing.places, listing.notes(left_out=True)
    else:
        items, notes = _in_order(listing, [one for each in parts for one in listing.wanted(each)]), listing.notes()
    return Points(tuple(items), type(root).__name__, tuple(notes))


def _in_order(listing: _Listing, wanted: list[Point]) -> list[Point]:
    """Return the requested places, each once, in the order of the listing; places outside of the listing come last."""
    order = {point.path: number for number, point in enumerate(listing.every)}
    each = {point.path: point for point in wanted}
    return sorted(each.values(), key=lambda point: order.get(point.path, len(order)))


class _Listing:
    """All places of a model.

    Attributes:
        every: all places, in order.
        places: the places that are listed by default. Operations inside leaf modules are not, nor is an operation in an
            outer function that an inner function lists already.
    """

    def __init__(self, root: nn.Module, modules: dict[str, nn.Module], example: Any, *, counting: bool) -> None:
        self._root = root
        self._modules = {path: module for path, module in modules.items() if has_forward(module)}
        reached = names_reached(modules.values())
        self._code = {id(module): [*code_of(module, reached)] for module in modules.values()}
        self._run = None if example is None else ExampleRun(root, modules, self._code, example, counting=counting)
        self.every = [*self._rows(modules)]
        self._inside: dict[str, None] = {}  # in order
        self._around: set[str] = set()
        if self._run is not None:
            self._inside = {call.path: None for call in self._run.flow.calls if not is_place(call)}
            operations = {one.path for one in self.every if one.kind == "operation"}
            self._around = operations - self._run.counts.keys() - self._run.listed
        self.places = [one for one in self.every if one.path not in self._around and one.path not in self._inside]

    def _rows(self, modules: dict[str, nn.Module]) -> Iterator[Point]:
        """Yield what ran in the order of the run, then the modules that did not run, or all if there is no example."""
        listed: set[str] = set()
        for call in () if self._run is None else self._run.flow.calls:
            if call.kind == "module" and not call.call:
                listed.add(call.path)
                yield from self._of_module(call.path, call.module)
            elif self._run is not None and not call.call:
                yield self._run.called(call, self._run.counts[call.path])
        for path, module in modules.items():
            if path not in listed:
                yield from self._of_module(path, module)

    def _of_module(self, path: str, module: nn.Module) -> Iterator[Point]:
        """Yield a module, unless it has no forward, as a ModuleList, and its state, inputs, code and operations."""
        name, run = type(module).__name__, self._run
        first = None if run is None else run.first.get(id(module))
        if run is not None and first is not None:
            yield run.called(first, run.counts[path])
        elif path in self._modules:
            ran, calls = (None, None) if run is None else (False, 0)
            yield Point(path or "forward", "module", name, name, calls=calls, ran=ran)
        for kind in () if is_script(module) else REGISTRY:
            for key, tensor in own_state(module, kind).items():
                used = None if run is None else first is not None or id(tensor) in run.used
                with DisableTorchFunction():
                    yield Point(join_path(path, key), kind, "", name, tuple(fact(tensor, "shape")), ran=used)
        if run is not None and first is not None:
            yield from run.inputs(path, first)
        yield from self._in_code(path, module)

    def _in_code(self, path: str, module: nn.Module) -> Iterator[Point]:
        """Yield the methods, functions and variables of a module, and the operations of its functions."""
        variables: set[str] = set()
        operations = {} if self._run is None else self._run.operations.get(id(module), {})
        code = self._code[id(module)]
        for one in code:
            rows = [*self._places(path, module, one)]
            yield from rows
            variables.update(row.path for row in rows)
            yield from (row for place, row in operations.get(one.name, {}).items() if place not in variables)
        for name in sorted(operations.keys() - {one.name for one in code}):
            yield from (row for place, row in operations[name].items() if place not in variables)

    def _places(self, path: str, module: nn.Module, code: Code) -> Iterator[Point]:
        """Yield what a method or function returns, its arguments and its variables; a forward returns the output."""
        owner, sites, within = type(module).__name__, variable_sites(code.function), join_path(path, code.name)
        rows = [] if code.kind == "forward" else [(Point(within, code.kind, "", owner), RETURN)]
        for kind, name in code.variables:
            rows.append((Point(f"{within}.{name}", kind, "", owner, site=sites.get(name)), name))
        for point, name in rows:
            yield point if self._run is None else self._run.with_counts(point, module, code, name)

    def notes(self, *, left_out: bool = False) -> list[str]:
        """Return notes about the places that are not listed, with `left_out` also the operations in leaf modules."""
        if self._run is None:
            return ["give example= to see operations, inputs, shapes and functions in tables"]
        if not left_out or not self._inside:
            return []
        size, one = counted(len(self._inside), "operation"), next(iter(self._inside))
        return [f"left out: {size} inside modules of torch.nn; ask for them by their paths, such as '{printable(one)}'"]

    def wanted(self, where: Any) -> list[Point]:
        """Return the places that one path, selector, class or module selects."""
        if isinstance(where, str | Place):
            return self._at(as_place(where))
        if isinstance(where, Selector):
            return self._selected(where)
        return self._of_calls(self._modules_of(OfModule(where)))

    def _modules_of(self, selector: Selector) -> list[ModelCall]:
        """Return the calls of modules that a selector selects without a run."""
        calls, online = calls_of(self._modules), selector.online()
        if found := [call for call in calls if online(call)]:
            return found
        raise no_match(selector, calls)

    def _at(self, pattern: Place) -> list[Point]:
        found = [point for point in self.every if pattern.matches(point.path) and not self._is_hidden(point, pattern)]
        return found or [self._of_spot(spot) for spot in resolve(pattern, self._root).spots]

    def _is_hidden(self, point: Point, pattern: Place) -> bool:
        """Return whether a place is left out although a pattern matches its path.

        A pattern with wildcards matches an input only if it ends in ``input``, and no operation of an outer function
        that an inner one lists already. No pattern matches both a leaf module and the operations inside it.
        """
        if point.kind == "input":
            return pattern.wild and pattern.segments[-1] != NameSegment("input")
        if point.path in self._around:
            return pattern.wild
        if point.path not in self._inside:
            return False
        owner = parse(point.path).segments[:-1]
        return len(owner) in ends_of(pattern.segments, owner)

    def _of_spot(self, spot: Spot) -> Point:
        """Return the place of a path that has no row: another name of a place, an item of a value, or a gradient."""
        if self._run is not None and spot.kind == "operation":
            close = closest(spot.path, [point.path for point in self.every if point.kind == "operation"])
            raise NoMatchError(f"`{spot.full}` is not an operation that ran; there are {close or 'none'}")
        known = next((point for point in self.every if point.path == spot.path.removesuffix(".forward")), None)
        if known is not None and not spot.items and not spot.gradient:
            return replace(known, path=spot.full)
        owner = type(spot.module).__name__
        return Point(spot.full, spot.kind, spot.name if spot.kind == "operation" else "", owner)

    def _selected(self, selector: Selector) -> list[Point]:
        states = [self._of_spot(spot) for spot in states_of(selector, self._root, reads=True).spots]
        return states if selector.only_states else states + self._called(selector)

    def _called(self, selector: Selector) -> list[Point]:
        if self._run is not None:
            return self._of_calls([self._run.flow.calls[index] for index in selector.matches(self._run.flow)])
        if is_indexed(selector):
            raise BadArgumentError(f"{selector} needs the order of the run: pass example= with an input of the model")
        try:
            return self._of_calls(self._modules_of(selector))
        except NoMatchError as error:
            raise NoMatchError(f"{error}. Pass example= to find functions and operators") from None

    def _of_calls(self, calls: Iterable[ModelCall]) -> list[Point]:
        paths = {call.path or "forward" for call in calls}
        return [point for point in self.every if point.path in paths]
