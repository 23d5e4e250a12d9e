"""How is a way to a tensor said in a sentence?"""

from __future__ import annotations

import gc
import types
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping

from byname.naming.names import Named
from byname.naming.search import Ours
from byname.table import printable

__all__ = ["end_of", "holders_among", "where"]


def where(named: Named) -> str:
    """From what a way begins: ``a variable of train (train.py:14)``, ``a global of __main__``."""
    root = named.way.root
    begins = f"from `{root.text}`, " if named.way.steps else ""
    if root.how == "local":
        return f"{begins}a variable of {root.scope}" + (" in another thread" if root.foreign else "")
    if root.how == "global":
        return f"{begins}a global of {root.scope}"
    return f"{begins}{_BEGINNINGS.get(root.how, root.how)}"


_BEGINNINGS = {"tag": "a tag", "given": "what was given", "task": "a task", "error": "an error", "graph": "of autograd"}


def holders_among(met: Mapping[int, object]) -> Mapping[int, list[object]]:
    """For each object, by its id, those among some holders that refer to it."""
    found: dict[int, list[object]] = {}
    for holder in met.values():
        for ident in set(map(id, gc.get_referents(holder))):
            found.setdefault(ident, Ours()).append(holder)
    return found


def end_of(tensors: Iterable[object], holders: Mapping[int, list[object]]) -> str | None:
    """The holder of tensors that a person can best recognise: a variable of a function, or an object of some class.

    Args:
        tensors: the tensors.
        holders: who refers to what, as `holders_among` tells.
    """
    wanted = set(map(id, tensors))
    passed = set(wanted)
    while wanted:
        above = Ours(one for ident in wanted for one in holders.get(ident, ()) if id(one) not in passed)
        functions = [_in_function(one, passed) for one in above if type(one) is types.FunctionType]
        classes = [_name_of(type(one)) for one in above if type(one) not in _COMMON]
        if functions:
            return printable(min(functions))
        if classes:
            return f"an object of class {printable(min(classes))}"
        wanted = set(map(id, above))
        passed |= wanted
    return None


def _in_function(function: types.FunctionType, passed: Collection[int]) -> str:
    """Where in a function what was passed on the way up to it is."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    variables = [name for name, cell in cells if id(cell) in passed]
    return (
        f"`{variables[0]}` in the closure of {function.__qualname__}"
        if variables
        else f"the function {function.__qualname__}"
    )


_name_of: Callable[[type], str] = type.__dict__["__name__"].__get__
_COMMON = (list, tuple, dict, set, frozenset, types.CellType, types.FrameType, OrderedDict)
