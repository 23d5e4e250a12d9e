"""Points: the places of a model as a table, from the modules alone or from one run of an example."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import FunctionType
from typing import Any

from torch import nn

from byname.errors import BadArgumentError, NoMatchError
from byname.model.call_graph import Call, Flow, is_place
from byname.model.called_functions import functions_called
from byname.model.methods import function_of, methods_of, names_reached
from byname.model.module_tree import is_called, modules_by_path, state_of, under
from byname.model.operations import is_elementary, is_operation
from byname.model.resolve import resolve
from byname.model.scopes import variables_of
from byname.model.select import OfClass, TheModule
from byname.model.selectors import Selector, is_counted, no_match
from byname.model.spot import Spot
from byname.model.where import parts_of, unwrapped
from byname.place import Place, ends_of, parse
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact
from byname.table import Row, Rows, closest, counted
from byname.tracing.tracer import trace

__all__ = ["Inventory", "Point", "Points", "points"]


@dataclass(frozen=True, slots=True)
class Point:
    """One place of a model.

    Attributes:
        path: the path that `attach`, `interject` and `record` accept.
        kind: ``module`` (the output of its forward), ``input`` (its first argument, where it was asked for),
            ``operation``, ``argument`` and ``variable`` (of a method),
            ``method`` or ``function`` (what a method of the module returns, or a function that it calls),
            ``parameter`` or ``buffer``.
        operation: the class name of a module or the name of a function; empty for other kinds.
        module: the class name of the module that is called or that owns the place.
        shape: the shape of a parameter or buffer, or of a call's first output tensor; None if unknown.
        calls: the number of calls in the example run; None without an example, or if they are not counted.
        shapes: the shapes of all output tensors of the first call.
    """

    path: str
    kind: str
    operation: str
    module: str
    shape: tuple[int, ...] | None = None
    calls: int | None = None
    shapes: tuple[tuple[int, ...], ...] = ()


class Inventory:
    """Lists the places that modules have without running. Reads the variables of each method once.

    Args:
        modules: all modules of the model; a method is listed only if the code of these modules mentions it.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._variables: dict[FunctionType, list[tuple[str, str]]] = {}
        self._reached = names_reached(modules)

    def of(self, path: str, module: nn.Module) -> Iterator[Point]:
        """Yield the parameters, buffers, variables and methods of one module, and the functions that it calls."""
        owner = type(module).__name__
        for kind in ("parameter", "buffer"):
            for name, tensor in state_of(module, kind).items():
                with DisableTorchFunction():
                    yield Point(under(path, name), kind, "", owner, tuple(fact(tensor, "shape")))
        for name, function in _methods(module, self._reached):
            if name != "forward":
                yield Point(under(path, name), "method", "", owner)
            for kind, variable in self._of_function(function):
                yield Point(f"{under(path, name)}.{variable}", kind, "", owner)
        for name, function in _functions(module):
            yield Point(under(path, name), "function", "", owner)
            for kind, variable in self._of_function(function, method=False):
                yield Point(f"{under(path, name)}.{variable}", kind, "", owner)

    def _of_function(self, function: FunctionType, *, method: bool = True) -> list[tuple[str, str]]:
        """Return (kind, name) of each argument and variable of a function, except the module as its first argument."""
        if function not in self._variables:
            code = function.__code__
            starred = bool(code.co_flags & 4) + bool(code.co_flags & 8)
            arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + starred]
            names = variables_of(function)
            self._variables[function] = [
                ("argument" if name in arguments else "variable", name)
                for name in names
                if not (method and code.co_argcount and name == code.co_varnames[0])
            ]
        return self._variables[function]


def _methods(module: nn.Module, reached: set[str]) -> Iterator[tuple[str, FunctionType]]:
    """Yield the methods of a module that a forward may call, except PyTorch's own methods."""
    if is_elementary(module):
        return
    for name in dict.fromkeys(["forward", *methods_of(module)]):
        function = function_of(module, name) if name in reached else None
        if function is not None and not str(function.__module__).startswith("torch."):
            yield name, function


def _functions(module: nn.Module) -> list[tuple[str, FunctionType]]:
    """Return the functions that a module calls whose names do not mean an operation there."""
    if is_elementary(module):
        return []
    return [(name, one) for name, one in functions_called(module).items() if not is_operation(name)]


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
