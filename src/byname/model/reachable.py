"""Which methods of a model's modules may a forward come to? Those that it names, and those that these name."""

from __future__ import annotations

from collections.abc import Iterable
from types import CodeType, FunctionType
from typing import Any

from torch import nn

from byname.errors import BadArgumentError
from byname.model.methods import method_of
from byname.model.operations import is_elementary
from byname.reading.objects import namespace_of, parents_of

__all__ = ["callable_instead", "function_of", "methods_of", "names_reached"]


def methods_of(module: nn.Module) -> list[str]:
    """The methods and properties that the classes of a module's own define, other than those between underscores."""
    held: dict[str, None] = {}
    for kind in parents_of(type(module)):
        if kind is nn.Module:
            break
        for name, one in namespace_of(kind).items():
            if not name.startswith("__") and (callable(one) or isinstance(one, property)):
                held.setdefault(name)
    return [*held]


def callable_instead(module: nn.Module) -> list[str]:
    """The methods of its own that a program may call instead of the module: none that PyTorch's classes have, too."""
    kinds = [namespace_of(kind) for kind in parents_of(type(module))]
    of_torch = {name for kind in kinds if str(kind.get("__module__")).split(".")[0] == "torch" for name in kind}
    return [name for name in methods_of(module) if name not in of_torch]


def function_of(module: nn.Module, name: str) -> FunctionType | None:
    """The Python function of a method; None where it has none."""
    try:
        return method_of(module, name)
    except BadArgumentError:  # it has no Python code
        return None


def names_reached(modules: Iterable[nn.Module]) -> set[str]:
    """The names of the methods that forwards call, and those that these call.

    A class may have hundreds of methods that have nothing to do with running it, such as those for loading a file. What
    every module has, such as ``float``, is called on tensors.
    """
    kinds: dict[type, nn.Module] = {type(module): module for module in modules if not is_elementary(module)}
    known = {name for module in kinds.values() for name in methods_of(module)} - set(vars(nn.Module))
    reached: set[str] = set()
    waiting = ["forward"]
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        for module in kinds.values():
            function = function_of(module, name)
            if function is not None:
                waiting += [one for one in _names_in(function.__code__) if one in known]
    return reached


def _names_in(code: CodeType) -> set[str]:
    """The attributes that code reads, also in the functions inside it."""
    inside: list[Any] = [one for one in code.co_consts if isinstance(one, CodeType)]
    return set(code.co_names).union(*map(_names_in, inside))
