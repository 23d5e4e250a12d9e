"""Inventory: the places of each module that are known without running it, and the place as a row of a table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FunctionType

from torch import nn

from byname.model.called_functions import functions_called
from byname.model.methods import function_of, methods_of, names_reached
from byname.model.module_tree import state_of, under
from byname.model.operations import is_elementary, is_operation
from byname.model.scopes import variables_of
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact

__all__ = ["Inventory", "Point"]


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
