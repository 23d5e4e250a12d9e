"""Functions of a program: the places of paths without a model, and the calls that are counted as iterations."""

from __future__ import annotations

import difflib
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import nn

from byname.errors import BadArgumentError, NoMatchError
from byname.model.methods import FUNCTIONS, Namespace, innermost, method_of, methods_of
from byname.model.module_tree import join_path, modules_by_path
from byname.model.resolve import resolve
from byname.model.scopes import watchable_variables
from byname.model.spot import Spot
from byname.naming.roots import user_modules
from byname.place import NameSegment, Place
from byname.reading.frames import locals_of, program_frame, running_frames
from byname.reading.objects import attributes_of, found_in, name_of_class, namespace_of, snapshot
from byname.source.code import original_code
from byname.source.tracebacks import walk_frames
from byname.table import listed
from byname.watch.variables.subscribe import Subscription


class ProgramFunctions:
    """The functions of a program, and the places in them that paths name.

    A name is looked up where `record` is called, as Python would; then among the functions of the script, the modules
    of the program and all imported modules by their names, and the functions of the program's modules.

    Args:
        root: the functions of a program that has not begun; None for those of this program.

    Attributes:
        root: functions of the script by their names, others under the names of their modules and classes.
        spots: the places found so far, in the order of the paths.
        near: the variables that are close to the first path that neither a model nor the program has, in words.
    """

    def __init__(self, root: Namespace | None = None) -> None:
        self.root = root or Namespace()
        self.spots: list[Spot] = []
        self.near: str | None = None
        self._begun = root is None
        self._caller = program_frame(sys._getframe()) if self._begun else None
        for name, module in user_modules() if self._begun else ():
            node = self.root.child(*(() if name == "__main__" else name.split(".")))
            _fill(node, attributes_of(module), name)

    def find(self, place: Place) -> None:
        """Find the places that a path means, or raise an error that names the closest."""
        found = self._found(place)
        if not found:
            self._put_near(place)
            raise NoMatchError(_unmatched(place, self.root))
        for spot in found:
            _check_running(spot)
        self.spots += found

    def find_unless_in(self, model: nn.Module, place: Place) -> bool:
        """Find the places of a path that a model does not have; return whether there are any."""
        if _spots(place, model) or str(place) in modules_by_path(model):  # such as a list of modules, which never runs
            return False
        try:
            self.find(place)
        except NoMatchError:  # the error of the model is raised
            self.near = _near(place, self.root, 0.7) if self.near is None else self.near
            return False
        return True

    def calls(self) -> Subscription:
        """Return the subscription that counts the outermost calls of the function of the first place."""
        function = _function_of(self.spots[0])
        return Subscription(
            function, self.root, (), lambda: None, order=-1, entered=functools.partial(_called, function)
        )

    def _found(self, place: Place) -> list[Spot]:
        first = place.segments[0]
        if self._begun and isinstance(first, NameSegment) and not first.wild:
            for candidates in self._candidates(first.plain):
                if (raw := _fitting(place, candidates)) is not None:
                    _put(self.root, _names(place), raw)
                    break
        return _spots(place, self.root)

    def _put_near(self, place: Place) -> None:
        """Add the variables where `record` is called whose names are like the first of a path, for the error."""
        frames = [frame for frame in walk_frames(self._caller) if program_frame(frame) is frame]
        known = dict(one for frame in reversed(frames) for one in [*frame.f_globals.items(), *locals_of(frame)])
        first, *after = _names(place) or [""]
        for name in difflib.get_close_matches(first, known, 3, 0.7):
            _put(self.root, [name, *after], known[name])

    def _candidates(self, name: str) -> Iterator[list[tuple[Any, str]]]:
        """Yield the objects that a name may stand for, each with the name of its module, the nearest first."""
        for frame in walk_frames(self._caller):
            if program_frame(frame) is frame:
                yield [(raw, "") for known, raw in locals_of(frame) if known == name]
        if self._caller is not None and name in self._caller.f_globals:
            yield [(self._caller.f_globals[name], "")]
        spaces = {one: attributes_of(module) for one, module in user_modules()}
        main = spaces.get("__main__", {})
        yield [(main[name], "")] if name in main else []
        yield [(sys.modules["__main__"], "")] if name == Path(str(main.get("__file__", ""))).stem else []
        yield [(sys.modules[name], "")] if name in sys.modules else []
        yield [(sys.modules[one], one.rpartition(".")[0]) for one in spaces if one.rpartition(".")[2] == name]
        yield [(space[name], one) for one, space in spaces.items() if name in space]


def _names(place: Place) -> list[str]:
    return [one.plain for one in place.segments if isinstance(one, NameSegment)]


def _fitting(place: Place, candidates: Iterable[tuple[Any, str]]) -> Any:
    """Return which of several things of one name has a place; None if none has."""
    fitting: dict[int, tuple[Any, str]] = {}
    for raw, where in candidates:
        alone = Namespace()
        _put(alone, _names(place), raw)
        if spots := _spots(place, alone):
            fitting.setdefault(id(_function_of(spots[0])), (raw, where))
    if len(fitting) > 1:
        ways = [f"`{where}.{place}`" for _, where in fitting.values()]
        raise BadArgumentError(f"`{place}` may mean {listed(ways, 8)}: write one of them")
    return next((raw for raw, _ in fitting.values()), None)


def _called(function: FunctionType, root: Namespace) -> None:
    """Count a call of a function, unless it calls itself: it is a forward of the program."""
    code = original_code[function.__code__]
    if sum(original_code[frame.f_code] is code for frame in walk_frames(sys._getframe())) > 1:
        return
    for hook in [*root._forward_pre_hooks.values()]:
        hook(root, (), {})
    for key in [*root._forward_hooks_always_called]:  # the others report places that the first forward did not reach
        root._forward_hooks[key](root, (), None)


def _spots(place: Place, root: nn.Module) -> list[Spot]:
    try:
        return resolve(place, root).spots
    except NoMatchError:
        return []


_KINDS = (*FUNCTIONS, MethodType, property, staticmethod, classmethod, functools.cached_property)


def _fill(node: Namespace, space: Mapping[str, Any], module: str, *, of_class: bool = False) -> None:
    """Add the functions and classes that a module or class defines itself."""
    for name, raw in snapshot(dict(space)):
        if issubclass(type(raw), type):
            names = namespace_of(raw)
            if names.get("__module__") == module and name not in node._modules and name_of_class(raw) == name:
                _fill(node.child(name), names, module, of_class=True)
        elif type(raw) in _KINDS:
            inner = innermost(raw, name)
            if type(inner) is FunctionType and (of_class or inner.__globals__ is space):
                node.functions[name] = inner


def _put(node: Namespace, names: list[str], raw: Any) -> None:
    """Add an object of the program under the first of these names, and what the other names lead to in it."""
    name, *after = names
    if issubclass(type(raw), ModuleType):
        space, child = attributes_of(raw), node.child(name)
        _fill(child, space, str(space.get("__name__")))
        further = space.get(after[0], sys.modules.get(f"{space.get('__name__')}.{after[0]}")) if after else None
    elif issubclass(type(raw), type):
        child = node.child(name)
        _fill(child, namespace_of(raw), str(namespace_of(raw).get("__module__")), of_class=True)
        further = found_in(raw, after[0]) if after else None
    else:
        if callable(raw) or type(raw) in _KINDS:
            node.functions[name] = innermost(raw, name)
        return
    if further is not None and after[0] not in child.functions:
        _put(child, after, further)


def _function_of(spot: Spot) -> FunctionType:
    function = method_of(spot.module, spot.method)
    assert function is not None, "it was found"
    return function


def _check_running(spot: Spot) -> None:
    """Refuse a function that already runs, if the path has no wildcard."""
    function = _function_of(spot)
    code = original_code[function.__code__]
    if spot.exact and any(original_code[frame.f_code] is code for frame, _, _ in running_frames()):
        raise BadArgumentError(
            f"`{spot.full}`: {function.__qualname__} is already running, and cannot be recorded. Record before it is "
            "called, or move the body of its loop to a function; `byname run --record` records from the start"
        )


def _unmatched(place: Place, root: Namespace) -> str:
    near = _near(place, root, 0.5)
    return (
        f"`{place}` matches no variable of a function of this program{near and f'; close to it: {near}'}. Without a "
        "model, write `module.function.variable`; the module must have been imported"
    )


def _near(place: Place, root: Namespace, cutoff: float) -> str:
    """Return the variables of functions that are close to a path, in words; empty if none is."""
    wanted, functions = str(place), [*_functions(root)]
    paths = {path: None for path, _ in functions}
    near = {*difflib.get_close_matches(wanted.rpartition(".")[0], paths, 5, 0.6)} or {wanted.rpartition(".")[0]}
    for path, function in functions:
        if path in near and type(function) is FunctionType:
            paths |= {f"{path}.{name}": None for name in watchable_variables(function)}
    return listed([f"`{one}`" for one in difflib.get_close_matches(wanted, paths, 3, cutoff)], 3)


def _functions(root: Namespace) -> Iterable[tuple[str, Any]]:
    for path, node in modules_by_path(root).items():
        if isinstance(node, Namespace):
            yield from ((join_path(path, name), node.functions[name]) for name in methods_of(node))
