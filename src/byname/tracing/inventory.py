"""What can be watched in a module, as far as it is known without running it? Its parameters, buffers and variables."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from types import FunctionType

from torch import nn

from byname.model.methods import function_of, methods_of, names_reached
from byname.model.module_tree import state_of, under
from byname.model.operations import is_elementary
from byname.model.scopes import variables_of
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact

__all__ = ["Inventory", "Point"]


@dataclass(frozen=True, slots=True)
class Point:
    """One place of a model.

    Attributes:
        path: what `attach`, `interject` and `record` take.
        kind: ``module`` (what its forward returns), ``operation``, ``argument`` and ``variable`` (of a method),
            ``method`` (what it returns), ``parameter`` or ``buffer``.
        operation: the class of a module, the name of a function; empty for anything else.
        module: the class of the module that is called or owns it.
        shape: the sizes; of a call, those of the first tensor that comes out. None where they are not known.
        calls: how many times the example came by; None without an example and where that is not counted.
        shapes: the sizes of all the tensors that come out of a call the first time.
    """

    path: str
    kind: str
    operation: str
    module: str
    shape: tuple[int, ...] | None = None
    calls: int | None = None
    shapes: tuple[tuple[int, ...], ...] = ()


class Inventory:
    """Lists what modules have; a method's variables are read once for all modules of its class.

    Args:
        modules: all modules of the model, to find the methods that they call of one another.
    """

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        self._variables: dict[FunctionType, list[tuple[str, str]]] = {}
        self._reached = names_reached(modules)

    def of(self, path: str, module: nn.Module) -> Iterator[Point]:
        """The parameters, buffers, variables and methods of one module."""
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

    def _of_function(self, function: FunctionType) -> list[tuple[str, str]]:
        """The arguments and variables of a function, without its first argument."""
        if function not in self._variables:
            code = function.__code__
            starred = bool(code.co_flags & 4) + bool(code.co_flags & 8)
            arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + starred]
            names = variables_of(function)
            self._variables[function] = [
                ("argument" if name in arguments else "variable", name)
                for name in names
                if not (code.co_argcount and name == code.co_varnames[0])
            ]
        return self._variables[function]


def _methods(module: nn.Module, reached: set[str]) -> Iterator[tuple[str, FunctionType]]:
    """The methods of a module that somebody else than PyTorch wrote, and that a forward may come to."""
    if is_elementary(module):
        return
    for name in dict.fromkeys(["forward", *methods_of(module)]):
        function = function_of(module, name) if name in reached else None
        if function is not None and not str(function.__module__).startswith("torch."):
            yield name, function
