"""Roots: the starting points of names.

These are variables of running functions, globals of modules, objects that the user gave, and objects that Python holds
without a variable: tasks, the last error, global hooks.
"""

from __future__ import annotations

import dis
import os
import sys
import threading
from collections.abc import Iterable, Iterator, Mapping, Set
from functools import lru_cache, partial
from types import CodeType, FrameType, FunctionType, GeneratorType, ModuleType
from typing import Any, NamedTuple

import torch

from byname.errors import BadArgumentError
from byname.naming.children.reference import ATOMS, writable
from byname.naming.children.torch import hooks_for_all
from byname.naming.name import tag_of, tagged
from byname.reading.frames import is_module_body, locals_of, running_frames
from byname.reading.objects import namespace_of, steady
from byname.source.location import is_library, is_torch, scope_of

OWN, PRIVATE, LOOP, FOREIGN = range(4)
"""Quality of a name's first variable, best first: the program's own, a private one, a loop variable, a library's."""


class Root(NamedTuple):
    """The start of a path: a variable (or a given object) with its value.

    Attributes:
        text: its source, such as ``trainer``.
        how: ``local``, ``global``, ``tag`` or ``given``.
        scope: a module's name, or a function with its file and line.
        evaluates: whether the text, evaluated in the scope, is the value.
        quality: OWN, PRIVATE, LOOP or FOREIGN; lower is better.
        distance: how many calls away the variable is; globals are further than any local.
        code: the function's code for a local variable, the module's for a global of a running module; else None.
        foreign: whether that function runs in another thread.
    """

    text: str
    value: object
    how: str
    scope: str
    evaluates: bool = True
    quality: int = OWN
    distance: int = 0
    code: CodeType | None = None
    foreign: bool = False


def all_roots() -> list[Root]:
    """Return tags, variables of running functions, globals of user modules, and objects that no variable holds."""
    tags = [Root(name, value, "tag", "tag") for name, value in tagged()]
    return [*tags, *_frame_roots(), *_user_module_roots(), *_hidden_places()]


def given_roots(roots: Any) -> list[Root]:
    """Return the roots for ``roots=``: objects, modules, or the name of a variable that a module must define."""
    found: list[Root] = []
    requested = roots if type(roots) in (list, tuple) else [roots]
    if not requested or any(type(root) in ATOMS - {str, ModuleType} for root in requested):
        raise BadArgumentError(
            "roots= says where to look: an object, a module, the name of a variable that a module defines, or a list "
            "of these; numbers, bytes and an empty list hold no tensor"
        )
    for root in requested:
        if type(root) is str:
            found += _modules_defining(root)
        elif type(root) is ModuleType:
            found += module_roots(root.__name__, vars(root))
        else:
            variables = [one for one in (*_frame_roots(), *_user_module_roots()) if one.value is root]
            found += variables or [given_root(root)]
    return found


def module_roots(name: str, namespace: dict[str, Any], quality: int = OWN, code: CodeType | None = None) -> list[Root]:
    """Return the globals of a module; `code` is the module's own code if it is running."""
    loaded = sys.modules.get(name)
    known = type(loaded) is ModuleType and vars(loaded) is namespace
    return [
        Root(text, value, "global", name, known, max(quality, _quality(variable, code)), _FAR, code)
        for variable, value in _globals_of(name, namespace)
        for text in [variable if writable(variable) else f"globals()[{variable!r}]"]
    ]


def _globals_of(module: str, namespace: dict[str, Any]) -> Iterator[tuple[str, object]]:
    for variable, value in list(namespace.items()):
        if type(variable) is str and _may_hold(value, module) and not _is_dunder(variable):
            yield variable, value


def _may_hold(value: object, module: str) -> bool:
    """Return whether a global can lead to a tensor of this module: it is no atom and no class of another module."""
    if type(value) in ATOMS:
        return False
    return not issubclass(type(value), type) or namespace_of(value).get("__module__") == module  # type: ignore[arg-type]


def ids_of_globals() -> set[int]:
    """Return the ids of the globals of every loaded module, libraries included, except PyTorch's and byname's own."""
    return {id(value) for name, module in _loaded() for _, value in _globals_of(name, vars(module))}


def globals_among(wanted: Set[int]) -> list[Root]:
    """Return those of `ids_of_globals` that have these ids."""
    return [
        root
        for name, module in _loaded()
        if not wanted.isdisjoint(map(id, list(vars(module).values())))
        for root in module_roots(name, vars(module), FOREIGN)
        if id(root.value) in wanted
    ]


def module_of(code: CodeType) -> str | None:
    """Return the name of the loaded module with the file of a code object; None if it is not known."""
    for name, module in _loaded()[::-1]:
        if vars(module).get("__file__") == code.co_filename:
            return name
    return None if os.path.exists(code.co_filename) else "__main__"  # noqa: PTH110 - a notebook's cell is no file


_FAR = 1000


def given_root(value: object) -> Root:
    """Return a root for an object given by hand, named by its tag or else its class until a variable is found."""
    is_module = issubclass(type(value), torch.nn.Module)
    text = tag_of(value) or ("model" if is_module else type(value).__name__.lower())
    return Root(text, value, "given", "given", evaluates=False, quality=PRIVATE)


def _frame_roots() -> Iterator[Root]:
    for frame, distance, foreign in running_frames():
        if not is_module_body(frame):
            yield from _variables_of(frame, distance + 100 * foreign, foreign)


def roots_of_suspended(objects: Iterable[object]) -> list[Root]:
    """Return the variables of the suspended generators among some objects, which a ``for`` may hold by itself."""
    frames = [one.gi_frame for one in objects if type(one) is GeneratorType and not one.gi_running]
    return [root for frame in frames if frame is not None for root in _variables_of(frame, _FAR, False)]


def _variables_of(frame: FrameType, distance: int, foreign: bool) -> Iterator[Root]:
    code = frame.f_code
    library = is_library(code.co_filename)
    scope = scope_of(code)
    for variable, value in locals_of(frame):
        if type(value) not in ATOMS and not _is_dunder(variable) and writable(variable):
            quality = FOREIGN if library else _quality(variable, code)
            yield Root(variable, value, "local", scope, True, quality, distance, code, foreign)


def _user_module_roots() -> Iterator[Root]:
    """Yield the globals of user modules and of running frames, each once; ``__main__`` before its alias."""
    running = {id(frame.f_globals): frame.f_code for frame, _, _ in running_frames() if is_module_body(frame)}
    seen: set[int] = set()
    for name, module in user_modules():
        namespace = vars(module)
        if id(namespace) not in seen:
            seen.add(id(namespace))
            yield from module_roots(name, namespace, code=running.get(id(namespace)))
    for frame, _, _ in running_frames():
        if id(frame.f_globals) not in seen and not is_library(frame.f_code.co_filename):
            seen.add(id(frame.f_globals))
            yield from module_roots(str(frame.f_globals.get("__name__", "?")), frame.f_globals)


def user_modules() -> Iterator[tuple[str, ModuleType]]:
    """Yield the user's modules with their names, ``__main__`` first."""
    for name in _names_of_users(len(sys.modules), next(reversed(sys.modules))):
        module = sys.modules.get(name)
        if type(module) is ModuleType:
            yield name, module


@lru_cache(maxsize=1)
def _names_of_users(count: int, last: str) -> list[str]:
    """Return the names of the user's modules; cached until a module is added or removed."""
    found = [name for name, module in list(sys.modules.items()) if type(module) is ModuleType and _is_users(module)]
    return sorted(found, key=lambda name: name != "__main__")


def is_of_a_library(kind: type) -> bool:
    """Return whether a class is defined in an installed module."""
    module = sys.modules.get(str(namespace_of(kind).get("__module__")))
    return type(module) is ModuleType and not _is_users(module)


def _is_users(module: ModuleType) -> bool:
    file = vars(module).get("__file__")
    if type(file) is not str:
        name = str(vars(module).get("__name__"))
        return name == "__main__" or (vars(module).get("__spec__") is None and name.partition(".")[0] != "torch")
    return not is_library(file)


def codes_of_the_program() -> dict[str, list[CodeType]]:
    """Return the files of the user's modules and running functions, each with its loaded functions."""
    found: dict[str, dict[int, CodeType]] = {}
    for code in [frame.f_code for frame, _, _ in running_frames()]:
        if not is_library(code.co_filename):
            found.setdefault(code.co_filename, {})[id(code)] = code
    for name, module in user_modules():
        file = vars(module).get("__file__")
        if type(file) is str:
            codes = [code for code in _codes_in(vars(module), name) if code.co_filename == file]
            found.setdefault(file, {}).update((id(code), code) for code in codes)
    return {file: list(codes.values()) for file, codes in found.items()}


def _codes_in(namespace: Mapping[str, Any], module: str) -> Iterator[CodeType]:
    for value in list(namespace.values()):
        if type(value) in (staticmethod, classmethod):
            value = value.__func__
        for one in (value.fget, value.fset) if type(value) is property else (value,):
            if type(one) is FunctionType:
                yield one.__code__
        if issubclass(type(value), type) and namespace_of(value).get("__module__") == module:
            methods = {name: one for name, one in namespace_of(value).items() if not issubclass(type(one), type)}
            yield from _codes_in(methods, module)


def _modules_defining(variable: str) -> list[Root]:
    namespaces = {id(vars(module)): (name, vars(module)) for name, module in _loaded() if variable in vars(module)}
    for frame, _, _ in running_frames():
        if variable in frame.f_globals:
            namespaces.setdefault(id(frame.f_globals), (str(frame.f_globals.get("__name__", "?")), frame.f_globals))
    if not namespaces:
        raise BadArgumentError(
            f"no loaded module defines a variable {variable!r}; a string in roots= stands for the modules that do. "
            "To search an object, pass the object itself"
        )
    return [root for name, namespace in namespaces.values() for root in module_roots(name, namespace)]


def _loaded() -> list[tuple[str, ModuleType]]:
    """Return the loaded modules, each once, ``__main__`` last."""
    found = {id(module): (name, module) for name, module in list(sys.modules.items()) if type(module) is ModuleType}
    main = sys.modules.get("__main__")
    if id(main) in found:
        found[id(main)] = ("__main__", main)  # type: ignore[assignment]  # rather than its alias __mp_main__
    return sorted(
        [(name, module) for name, module in found.values() if not is_torch(str(vars(module).get("__file__") or ""))],
        key=lambda pair: pair[0] == "__main__",
    )


def _is_dunder(variable: str) -> bool:
    return variable.startswith("__") and variable.endswith("__") and variable.strip("_") != ""


def _quality(variable: str, code: CodeType | None) -> int:
    if variable.strip("_") == "" or (code is not None and variable in loop_variables(code)):
        return LOOP
    if variable.startswith("_") or variable in ("self", "cls"):
        return PRIVATE
    return OWN


@lru_cache(maxsize=1024)
def loop_variables(code: CodeType) -> frozenset[str]:
    """Return the variables that a ``for`` of this code assigns, read from its instructions."""
    found: set[str] = set()
    pending = 0
    for instruction in dis.get_instructions(code):
        if instruction.opname.startswith("FOR_ITER"):
            pending = 1
        elif pending and instruction.opname.startswith("UNPACK_SEQUENCE"):
            pending += int(instruction.arg or 0) - 1
        elif pending and instruction.opname.startswith("STORE_"):
            names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
            found.update(map(str, names))
            pending -= len(names)
        elif instruction.opname not in ("CACHE", "NOP", "EXTENDED_ARG", "RESUME"):
            pending = 0
    return frozenset(found)


def _hidden_places() -> Iterator[Root]:
    """Yield what no variable holds: tasks, global hooks, the last uncaught error, and errors that are being handled."""
    hidden = partial(Root, how="global", quality=LOOP, distance=_FAR)
    for name, task in _tasks():
        yield hidden(f"task {name}", task, scope="asyncio", evaluates=False)
    for module, source, hooks in hooks_for_all():
        yield hidden(source, hooks, scope=module)
    for name in ("last_exc", "last_value"):  # of an interactive session
        if (error := vars(sys).get(name)) is not None:
            known = vars(sys.modules["__main__"]).get("sys") is sys
            yield hidden(f"sys.{name}", error, scope="__main__", evaluates=known)
    handled: Any = getattr(sys, "_current_exceptions", dict)()
    for ident, error in handled.items():
        error = error[1] if type(error) is tuple else error  # up to Python 3.11: class, error, traceback
        if error is not None:
            yield hidden(_handled_in(ident), error, scope="sys", evaluates=False)


def _handled_in(ident: int) -> str:
    if ident == threading.get_ident():
        return "sys.exc_info()[1]"
    threads = {thread.ident: thread.name for thread in list(vars(threading)["_active"].values())}
    return f"the error handled in {threads.get(ident, 'a thread')}"


def _tasks() -> Iterator[tuple[str, object]]:
    """Yield every task of `asyncio` with its name; since Python 3.14 only those of running event loops."""
    asyncio: Any = sys.modules.get("asyncio")
    complete = getattr(asyncio, "BaseEventLoop", None) is not None  # it may be under import
    for task in _every_task(asyncio) if complete else ():
        kinds = (kind for kind in (asyncio.Task, asyncio.tasks._PyTask) if issubclass(type(task), kind))
        yield next((str(kind.get_name(task)) for kind in kinds), "?"), task


def _every_task(asyncio: Any) -> Iterator[object]:
    """Yield the tasks. Before Python 3.14 `asyncio.all_tasks` would call ``done()`` of a class of the program's."""
    if sys.version_info >= (3, 14):
        for frame, _, _ in running_frames():
            if frame.f_code is asyncio.BaseEventLoop.run_forever.__code__:
                yield from asyncio.all_tasks(dict(locals_of(frame))["self"])
        return
    known = vars(asyncio.tasks)
    for reference in steady(iter, known.get("_scheduled_tasks", known.get("_all_tasks")).data):
        task = reference()
        if task is not None:
            yield task
