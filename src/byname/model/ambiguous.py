"""Could the path of a child module also mean a function of that name? Told by the code of its owner's forward."""

from __future__ import annotations

import dis
import re
from collections.abc import Callable, Mapping

from torch import nn

from byname.model.operations import is_operation, operation_path, taken
from byname.model.reachable import function_of

__all__ = ["calls_function", "note_on_function"]

_LOADS = frozenset({"LOAD_METHOD", "LOAD_ATTR", "LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"})


def note_on_function(path: str, modules: Callable[[], Mapping[str, nn.Module]]) -> str | None:
    """What to say of a path that was read as a child, where the owner's forward calls such a function, too.

    Args:
        path: of the child.
        modules: gives every module by its path.
    """
    around, _, name = path.rpartition(".")
    plain, number = _NUMBERED.fullmatch(name).groups("0")  # type: ignore[union-attr]
    if not is_operation(plain):
        return None
    owner = modules().get(around)
    if owner is None or not calls_function(owner, plain):
        return None
    other = operation_path(around, plain, int(number), taken(owner))
    return f"`{path}` was read as the module; the call of the function {plain} that could also be meant is `{other}`"


_NUMBERED = re.compile(r"(.*?)(?:_([1-9]\d*))?")


def calls_function(owner: nn.Module, name: str, method: str = "forward") -> bool:
    """Whether a method of a module reads a name from anywhere but the module itself."""
    function = function_of(owner, method)
    if function is None:
        return False
    itself, before = function.__code__.co_varnames[:1], None
    for one in dis.get_instructions(function.__code__):
        if one.argval == name and one.opname in _LOADS and before not in itself:
            return True
        before = one.argval[-1] if isinstance(one.argval, tuple) and one.argval else one.argval
    return False
