"""Inventory: the places of each module that are known without running it, and the place as a row of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NamedTuple

from torch import nn

from byname.model.called_functions import functions_called
from byname.model.methods import function_of, methods_of, names_reached
from byname.model.module_tree import is_script, state_of, under
from byname.model.operations import is_elementary, is_operation, taken
from byname.model.scopes import sites_of, variables_of
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact
from byname.source.location import Site
from byname.table import Column, Tabled


@dataclass(frozen=True, slots=True)
class Point(Tabled):
    """One place of a model.

    Attributes:
        path: the path that `attach`, `interject` and `record` accept.
        kind: ``module`` (the output of its forward), ``input`` (what it is called with), ``operation``, ``argument``
            and ``variable`` (of a method or function), ``method`` or ``function`` (what a method of the module returns,
            or a function that it calls), ``parameter`` or ``buffer``.
        operation: the class name of a module or the name of a function; empty for other kinds.
        module: the class name of the module that is called or that owns the place.
        shape: the shape of a parameter or buffer, or of the first tensor in the first value; None if unknown.
        calls: the number of values in the example run; None without an example, or if they are not counted.
        shapes: the shapes of all tensors in the first value.
        site: the line of the first call of a module, an operation, a method or a function, known with an example; the
            first line that assigns a variable; the line that defines an argument. None if there is no such line.
        ran: whether the example came to the place; for a parameter or buffer whether its module ran, or an operation
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
        Column("operation", spare=4),
        Column("module", spare=3),
        Column("shape"),
        Column("calls", spare=2),
        Column("site", spare=5),
        Column("source", spare=1, read=lambda one: one.source or None, show=lambda one: _shortened(one.source)),
    )


_LONG = 48
"""The number of characters of source that are printed; ``rows()`` has all of it."""


def _shortened(source: str) -> str:
    return source if len(source) <= _LONG else f"{source[: _LONG - 1]}…"


class Code(NamedTuple):
    """A method of a module, or a function that it calls.

    Attributes:
        name: its name in paths.
        function: the innermost Python function behind it.
        kind: ``forward``, ``method`` or ``function``.
    """

    name: str
    function: Any
    kind: str


class Inventory:
    """Lists the places that modules have without running. Reads the variables of each method once.

    Args:
        modules: all modules of the model; a method is listed only if the code of these modules mentions it.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._variables: dict[tuple[FunctionType, bool], list[tuple[str, str]]] = {}
        self._reached = names_reached(modules)

    def state(self, path: str, module: nn.Module) -> Iterator[Point]:
        """Yield the parameters and buffers of one module."""
        for kind in ("parameter", "buffer"):
            for name, tensor in state_of(module, kind).items():
                with DisableTorchFunction():
                    yield Point(under(path, name), kind, "", type(module).__name__, tuple(fact(tensor, "shape")))

    def code(self, module: nn.Module) -> Iterator[Code]:
        """Yield the methods of a module that a forward may call, and the functions that these call.

        PyTorch's own are left out, and functions that are only in tables: most of those never run.
        """
        if is_elementary(module) or is_script(module):
            return
        for name in dict.fromkeys(["forward", *methods_of(module)]):
            function = function_of(module, name) if name in self._reached else None
            if function is not None and not str(function.__module__).startswith("torch."):
                yield Code(name, function, "forward" if name == "forward" else "method")
        own = taken(module)
        for name, function in functions_called(module).items():
            if name not in own and not is_operation(name):
                yield Code(name, function, "function")

    def places(self, path: str, module: nn.Module, code: Code) -> Iterator[Point]:
        """Yield what a method or function returns, its arguments and its variables; a forward returns the output."""
        owner, sites = type(module).__name__, sites_of(code.function)
        within = under(path, code.name)
        if code.kind != "forward":
            yield Point(within, code.kind, "", owner)
        for kind, name in self.variables(code):
            yield Point(f"{within}.{name}", kind, "", owner, site=sites.get(name))

    def variables(self, code: Code) -> list[tuple[str, str]]:
        """Return (kind, name) of each argument and variable of a function, except the module as its first argument."""
        key = code.function, code.kind != "function"
        if key not in self._variables:
            made = code.function.__code__
            starred = bool(made.co_flags & 4) + bool(made.co_flags & 8)
            arguments = made.co_varnames[: made.co_argcount + made.co_kwonlyargcount + starred]
            itself = made.co_varnames[:1] if made.co_argcount and code.kind != "function" else ()
            self._variables[key] = [
                ("argument" if name in arguments else "variable", name)
                for name in variables_of(code.function)
                if name not in itself
            ]
        return self._variables[key]
