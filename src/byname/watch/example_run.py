"""Example run: the calls, variables and functions of a model, as one run of an example shows them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from types import FunctionType
from typing import Any

from torch import nn

from byname.model.call_graph import ModelCall
from byname.model.called_functions import functions_named, is_of_program
from byname.model.inventory import Code, Inventory, Point
from byname.model.module_tree import is_script, state_of, under
from byname.model.operations import is_elementary
from byname.reading.modules import state_of as named_state
from byname.source.code import ThisCode, stands_for
from byname.source.location import Instruction, Site, locate
from byname.tracing.tracer import trace
from byname.watch.variables.subscribe import RETURN
from byname.watch.variables.tally import Seen, Tally, Wanted


class ExampleRun:
    """One run of an example; no tensor of it is kept.

    Some functions are only found in a dict of functions, such as the attention functions of `transformers`. If such a
    function ran, the example runs a second time for its variables.

    Args:
        root: the model.
        modules: its modules, by path.
        inventory: lists their methods and functions.
        example: the arguments of the model, see `points`.

    Attributes:
        flow: the calls, in order.
        first: the first call of each module that ran, by ``id``.
    """

    def __init__(self, root: nn.Module, modules: dict[str, nn.Module], inventory: Inventory, example: Any) -> None:
        self._inventory = inventory
        self._tally = Tally()
        self._paths = {id(module): path for path, module in modules.items()}
        self._code = {id(module): [*inventory.code(module)] for module in modules.values()}
        written = [one for one in modules.values() if not (is_elementary(one) or is_script(one))]
        self._named = {id(one): named for one in written if (named := functions_named(one))}
        with self._tally.listening(self._wanted(written, self._code)):
            self.flow = trace(root, example, {key: _codes(named) for key, named in self._named.items()})
        sources = set(self.flow.sources.values())
        self._used = {id(tensor) for name, tensor in named_state(root) if name in sources}
        self.first: dict[int, ModelCall] = {}
        for call in self.flow.calls:
            if call.kind == "module":
                self.first.setdefault(id(call.module), call)
        in_tables = {id(one): found for one in written if (found := [*self._from_tables(one)])}
        if in_tables:
            with self._tally.listening(self._wanted(written, in_tables)):
                trace(root, example)
        for key, found in in_tables.items():
            self._code[key] += found

    def _wanted(self, modules: Iterable[nn.Module], code: dict[int, list[Code]]) -> Iterator[Wanted]:
        for module in modules:
            for one in code.get(id(module), ()):
                names = [name for _, name in self._inventory.variables(one)]
                told = names if one.kind == "forward" else [*names, RETURN]
                yield module, one.name, one.function, told, one.kind == "function"

    def _from_tables(self, module: nn.Module) -> Iterator[Code]:
        """Yield the user's functions that ran in a module and that the inventory does not list."""
        key = id(module)
        listed = {one.name for one in self._code[key]}
        for name in self._functions_run.get(key, ()):
            function = self._named[key][name]
            if name not in listed and is_of_program(function, type(module)):
                yield Code(name, function, "function")

    @cached_property
    def _functions_run(self) -> dict[int, dict[str, None]]:
        """The names of the functions in which operations ran, by the ``id`` of the module that called them."""
        found: dict[int, dict[str, None]] = {}
        for call in self.flow.calls:
            for path in reversed(call.inside):
                found.setdefault(id(call.module), {}).setdefault(self._function_of(call, path))
        return found

    def _function_of(self, call: ModelCall, path: str) -> str:
        return path.removeprefix(f"{self._paths[id(call.module)]}.").partition(".")[0]

    @cached_property
    def _operations(self) -> dict[tuple[int, str], dict[str, Point]]:
        """The operations in functions, by the ``id`` of the module and the name of the function, then by path."""
        found: dict[tuple[int, str], dict[str, Point]] = {}
        for call in self.flow.calls:
            for path in call.inside:
                known = found.setdefault((id(call.module), self._function_of(call, path)), {})
                point = known.get(path) or replace(self.called(call, 0), path=path)
                known[path] = replace(point, calls=(point.calls or 0) + 1)
        return found

    @cached_property
    def listed(self) -> set[str]:
        """The paths of the operations in functions that the table lists: one each, in the innermost listed function."""
        names = {key: {one.name for one in code} for key, code in self._code.items()}
        found = set()
        for call in self.flow.calls:
            known = names[id(call.module)] if call.inside else ()
            found.update([path for path in call.inside if self._function_of(call, path) in known][:1])
        return found

    def called(self, call: ModelCall, calls: int) -> Point:
        """Return the row of a module or operation, from its first call and the number of its calls."""
        shape = call.shapes[0] if call.shapes else None
        owner, path = type(call.module).__name__, call.path or "forward"
        return Point(path, call.kind, call.operation, owner, shape, calls, call.shapes, _site(call.line), ran=True)

    def inputs(self, path: str, module: nn.Module, calls: int) -> Iterator[Point]:
        """Yield the first argument of a module's first call, and the others that hold tensors."""
        call = self.first.get(id(module))
        for label, shapes in () if call is None else call.given:
            if shapes or not label:
                row = self.called(self.first[id(module)], calls)
                place, shape = under(path, f"input{label}"), shapes[0] if shapes else None
                yield replace(row, path=place, kind="input", operation="", shape=shape, shapes=shapes)

    def state(self, path: str, module: nn.Module) -> Iterator[Point]:
        """Yield the parameters and buffers of a module; they count as run if any module uses them."""
        tensors = [one for kind in ("parameter", "buffer") for one in state_of(module, kind).values()]
        for point, tensor in zip(self._inventory.state(path, module), tensors, strict=True):
            yield replace(point, ran=id(module) in self.first or id(tensor) in self._used)

    def code(self, path: str, module: nn.Module) -> Iterator[Point]:
        """Yield the methods, functions and variables of a module, and the operations of its functions."""
        variables: set[str] = set()
        for one in self._code[id(module)]:
            rows = [self._counted(point, module, one, path) for point in self._inventory.places(path, module, one)]
            yield from rows
            variables.update(row.path for row in rows)
            yield from self._in_function(module, one.name, variables)
        others = self._functions_run.get(id(module), {}).keys() - {one.name for one in self._code[id(module)]}
        for name in sorted(others):
            yield from self._in_function(module, name, variables)

    def _in_function(self, module: nn.Module, name: str, variables: set[str]) -> Iterator[Point]:
        """Yield the operations in a function, except those whose paths mean variables."""
        operations = self._operations.get((id(module), name), {})
        yield from (row for path, row in operations.items() if path not in variables)

    def _counted(self, point: Point, module: nn.Module, code: Code, path: str) -> Point:
        """Return the row of a variable or return value, with the shapes and calls that were observed."""
        within = under(path, code.name)
        name = RETURN if point.path == within else point.path.removeprefix(f"{within}.")
        seen = self._tally.of(module, code.name, name)
        return point if seen is None else _with(point, seen)


def _codes(functions: dict[str, FunctionType]) -> dict[str, ThisCode]:
    return {name: ThisCode(stands_for[function.__code__]) for name, function in functions.items()}


def _with(point: Point, seen: Seen) -> Point:
    shape = seen.shapes[0] if seen.shapes else None
    site = point.site or _site(seen.line)
    return replace(point, shape=shape, shapes=seen.shapes, calls=seen.calls, site=site, ran=seen.calls > 0)


def _site(line: Instruction | None) -> Site | None:
    return None if line is None else locate(*line).site
