"""Example run: the row of a place, and how often each place got a value in one run of an example."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import FrameType, FunctionType
from typing import Any, NamedTuple

from torch import nn

from byname.errors import BadArgumentError
from byname.model.call_graph import ModelCall
from byname.model.called_functions import functions_called, functions_named, is_of_program
from byname.model.methods import function_of, methods_of
from byname.model.module_tree import is_script, join_path
from byname.model.operations import is_leaf_module, is_operation, taken
from byname.model.scopes import watchable_variables
from byname.reading.modules import state_of as named_state
from byname.reading.quiet import DisableTorchFunction
from byname.source.code import CodeKey, original_code
from byname.source.location import Instruction, Site, locate
from byname.table import Column, Tabled
from byname.tracing.eager import EAGERLY
from byname.tracing.preserve import distinct_tensors
from byname.tracing.tensor_ids import shape_of
from byname.tracing.tracer import model_instruction, trace
from byname.undo import Undo
from byname.watch.variables.subscribe import RETURN, FunctionReceiver, Subscription


@dataclass(frozen=True, slots=True)
class Point(Tabled):
    """One place of a model.

    Attributes:
        path: the path that `attach`, `interject` and `record` accept.
        kind: ``module`` (the output of its forward), ``input`` (its arguments), ``operation``, ``argument``
            and ``variable`` (of a method or function), ``method`` or ``function`` (what a method of the module returns,
            or a function that it calls), ``parameter`` or ``buffer``.
        operation: the class name of a module or the name of a function; empty for other kinds.
        module: the class name of the module that is called or that owns the place.
        shape: the shape of a parameter or buffer, or of the first tensor in the first value; None if unknown.
        calls: the number of values in the example run; None without an example, or if they are not counted.
        shapes: the shapes of all tensors in the first value.
        site: the line of the first call of a module, an operation, a method or a function, known with an example; the
            first line that assigns a variable; the line that defines an argument. None if there is no such line.
        ran: whether the example reached the place; for a parameter or buffer whether its module ran, or an operation
            got it. None without an example, or if that is not known.
    """

    path: str
    kind: str
    operation: str
    module: str
    shape: tuple[int, ...] | None = None
    calls: int | None = None
    shapes: tuple[tuple[int, ...], ...] = ()
    site: Site | None = None
    ran: bool | None = None

    @property
    def source(self) -> str:
        """The statement at `site`, on one line; empty if it is not known."""
        return "" if self.site is None else self.site.statement

    columns = (
        Column("path"),
        Column("kind"),
        Column("operation", drop_order=4),
        Column("module", drop_order=3),
        Column("shape"),
        Column("calls", drop_order=2),
        Column("site", drop_order=5),
        Column("source", drop_order=1, read=lambda one: one.source or None, show=lambda one: _shortened(one.source)),
    )


_LONG = 48
"""The number of characters of source that are printed; ``rows()`` has all of it."""


def _shortened(source: str) -> str:
    return source if len(source) <= _LONG else f"{source[: _LONG - 1]}…"


class Code(NamedTuple):
    """A method of a module, or a function that it calls: a ``forward``, ``method`` or ``function``.

    Attributes:
        function: the innermost Python function behind it.
        variables: (kind, name) of each argument and variable, except the module as the first argument.
    """

    name: str
    function: Any
    kind: str
    variables: list[tuple[str, str]]

    @classmethod
    def of(cls, name: str, function: FunctionType, kind: str) -> Code:
        made = function.__code__
        starred = bool(made.co_flags & 4) + bool(made.co_flags & 8)
        arguments = made.co_varnames[: made.co_argcount + made.co_kwonlyargcount + starred]
        itself = made.co_varnames[:1] if made.co_argcount and kind != "function" else ()
        variables = [one for one in watchable_variables(function) if one not in itself]
        kinds = ["argument" if one in arguments else "variable" for one in variables]
        return cls(name, function, kind, list(zip(kinds, variables, strict=True)))


def code_of(module: nn.Module, reached: set[str]) -> Iterator[Code]:
    """Yield the methods of a module that a forward may call, and the functions that these call.

    PyTorch's own are left out, and functions that are only in tables: most of those never run.
    """
    if is_leaf_module(module) or is_script(module):
        return
    for name in dict.fromkeys(["forward", *methods_of(module)]):
        function = function_of(module, name) if name in reached else None
        if function is not None and not str(function.__module__).startswith("torch."):
            yield Code.of(name, function, "forward" if name == "forward" else "method")
    own = taken(module)
    for name, function in functions_called(module).items():
        if name not in own and not is_operation(name):
            yield Code.of(name, function, "function")


@dataclass(slots=True)
class _ValueCount:
    """The number of values of one variable or return value, the shapes of the first, and the line of the call."""

    calls: int = 0
    shapes: tuple[tuple[int, ...], ...] = ()
    line: Instruction | None = None


class ExampleRun:
    """One run of an example: its calls and, if `counting`, how many values each variable got. It keeps no tensor.

    Functions that are only in a table, such as the attention functions of `transformers`, are counted as well; those
    that ran are added to the code of their module.

    Attributes:
        counts: the number of calls of each place.
        first: the first call of each module that ran, by ``id``.
        used: the ``id``s of the parameters and buffers that calls got.
        operations: the operations in functions, by the ``id`` of the module and the name of the function, by path.
        listed: the paths of the operations in functions that the table lists: one each, in the innermost listed one.
    """

    def __init__(
        self,
        root: nn.Module,
        modules: dict[str, nn.Module],
        code: dict[int, list[Code]],
        example: Any,
        *,
        counting: bool,
    ) -> None:
        self._paths = {id(module): path for path, module in modules.items()}
        self._seen: dict[tuple[int, str, str], _ValueCount] = {}
        self._counted: set[tuple[int, str]] = set()
        written = [one for one in modules.values() if not (is_leaf_module(one) or is_script(one))]
        named = {id(one): found for one in written if (found := functions_named(one))}
        in_tables = {id(one): _in_tables(one, code[id(one)], named.get(id(one), {})) for one in written}
        counted = [(one, each) for one in written for each in (*code[id(one)], *in_tables[id(one)].values())]
        with self._counting(counted if counting else ()):
            codes = {
                key: {name: CodeKey(original_code[one.__code__]) for name, one in named[key].items()} for key in named
            }
            self.flow = trace(root, example, codes)
        sources = set(self.flow.sources.values())
        self.used = {id(tensor) for name, tensor in named_state(root) if name in sources}
        self.counts = Counter(call.path for call in self.flow.calls)
        self.first: dict[int, ModelCall] = {}
        self.operations: dict[int, dict[str, dict[str, Point]]] = {}
        for call in self.flow.calls:
            if call.kind == "module":
                self.first.setdefault(id(call.module), call)
            for path in reversed(call.inside):
                self._note_in_function(call, path)
        for key, others in in_tables.items():
            code[key] += [others[name] for name in self.operations.get(key, ()) if name in others]
        self.listed = set()
        for call in self.flow.calls:
            names = {one.name for one in code[id(call.module)]} if call.inside else ()
            self.listed.update([path for path in call.inside if self._function_of(call, path) in names][:1])

    def _note_in_function(self, call: ModelCall, path: str) -> None:
        found = self.operations.setdefault(id(call.module), {}).setdefault(self._function_of(call, path), {})
        point = found.get(path) or replace(self.called(call, 0), path=path)
        found[path] = replace(point, calls=(point.calls or 0) + 1)

    def _function_of(self, call: ModelCall, path: str) -> str:
        return path.removeprefix(f"{self._paths[id(call.module)]}.").partition(".")[0]

    @contextmanager
    def _counting(self, wanted: Iterable[tuple[nn.Module, Code]]) -> Iterator[None]:
        """Count the values that `attach` would report of these functions inside the block."""
        with EAGERLY.held():
            undo = Undo()
            try:
                for module, code in wanted:
                    names = [name for _, name in code.variables] + [RETURN] * (code.kind != "forward")
                    receive = FunctionReceiver(partial(self._count, id(module), code))
                    by_caller = code.kind == "function"
                    one = Subscription(code.function, module, names, receive, exits=False, by_caller=by_caller)
                    undo.add(one.remove)
                    try:
                        one.begin()
                    except BadArgumentError:  # a generator without source: its variables cannot be read
                        continue
                    self._counted.add((id(module), code.name))
                yield
            finally:
                undo()

    def _count(self, key: int, code: Code, run: Any, variable: str, value: Any, moment: str) -> Any:
        """Count a value of a function, and return it."""
        seen = self._seen.get((key, code.name, variable))
        if seen is None:
            seen = self._seen[key, code.name, variable] = _ValueCount()
            with DisableTorchFunction():
                seen.shapes = tuple(shape_of(one) or () for one in distinct_tensors(value))
            if variable == RETURN:
                seen.line = _line_of_the_call(code.function, sys._getframe(1))
        seen.calls += 1
        return value

    def with_counts(self, point: Point, module: nn.Module, code: Code, variable: str) -> Point:
        """Return the row of a variable or return value, with the shapes and calls that were observed."""
        if (id(module), code.name) not in self._counted:
            return point
        seen = self._seen.get((id(module), code.name, variable), _NEVER)
        shape, site = seen.shapes[0] if seen.shapes else None, point.site or _site(seen.line)
        return replace(point, shape=shape, shapes=seen.shapes, calls=seen.calls, site=site, ran=seen.calls > 0)

    def called(self, call: ModelCall, calls: int) -> Point:
        """Return the row of a module or operation, from its first call and the number of its calls."""
        shape = call.shapes[0] if call.shapes else None
        owner, path = type(call.module).__name__, call.path or "forward"
        return Point(path, call.kind, call.operation, owner, shape, calls, call.shapes, _site(call.line), ran=True)

    def inputs(self, path: str, call: ModelCall) -> Iterator[Point]:
        """Yield the first argument of the first call of a module, and the others that hold tensors."""
        row = replace(self.called(call, self.counts[path]), kind="input", operation="")
        for label, shapes in call.given:
            if shapes or not label:
                shape = shapes[0] if shapes else None
                yield replace(row, path=join_path(path, f"input{label}"), shape=shape, shapes=shapes)


_NEVER = _ValueCount()


def _in_tables(module: nn.Module, code: list[Code], named: dict[str, FunctionType]) -> dict[str, Code]:
    """Return the program's functions that only a table names."""
    known = {one.name for one in code}
    found = {name: one for name, one in named.items() if name not in known and is_of_program(one, type(module))}
    return {name: Code.of(name, one, "function") for name, one in found.items()}


def _site(line: Instruction | None) -> Site | None:
    return None if line is None else locate(*line).site


def _line_of_the_call(function: FunctionType, frame: FrameType | None) -> Instruction | None:
    """Return the instruction of the model that called a function; the frame is that of the function or inside it."""
    own = original_code[function.__code__]
    while frame is not None and original_code[frame.f_code] is not own:
        frame = frame.f_back
    return None if frame is None else model_instruction(frame.f_back)
