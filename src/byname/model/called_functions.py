"""Called functions: the Python functions that a module's methods name in their code, at any depth.

Nothing runs to find them. The code names a function as a global or as a name from around it, as an attribute of a
Python module (``ops.rotate``), or through a table of functions, such as the kinds of attention that a library has. The
code of a decorator of the forward may do so too.
"""

from __future__ import annotations

import dis
from collections.abc import Iterator, Mapping
from functools import partial
from itertools import chain
from types import CodeType, FunctionType, ModuleType
from typing import Any

from torch import nn

from byname.model.methods import content_of, decorators_of_forward, function_of, method_of, methods_of, unwrap_function
from byname.model.operations import is_operation, taken
from byname.reading.objects import attributes_of, namespace_of, parents_of, snapshot
from byname.source.code import original_code
from byname.source.location import is_library, is_torch


def called_function(module: nn.Module, name: str) -> FunctionType | None:
    """Return the function of a name that a module's methods call, or functions that these call; None if there is none.

    Of several with one name it is the nearest of those that the code names, else of those in tables. Functions of
    PyTorch count too where the program calls them itself.

    >>> called_function(nn.MultiheadAttention(4, 1), "multi_head_attention_forward").__module__
    'torch.nn.functional'
    """
    named = (function for known, function in _functions(module, tables=False) if known == name)
    in_tables = (function for known, function in _functions(module) if known == name)
    return next(chain(named, in_tables), None)


def functions_called(module: nn.Module) -> dict[str, FunctionType]:
    """Return the functions, by their names, that the code of a module's methods names, at any depth.

    They are those of the program and of the package that the module's class is from. Functions in tables are left out,
    since most of them are other choices than the one taken, and so are names that the module's methods have, and
    functions that a nearer one has the name of.
    """
    methods = set(methods_of(module))
    found: dict[str, FunctionType] = {}
    for name, function in _functions(module, tables=False):
        found.setdefault(name, function)
    return {name: one for name, one in found.items() if name not in methods and is_of_program(one, type(module))}


def shadows_an_operation(module: nn.Module, name: str) -> bool:
    """Return whether a name that PyTorch has too is that of a function of the program in the code of a forward."""
    code = getattr(function_of(module, "forward"), "__code__", None)
    if code is None or name not in (*code.co_names, *code.co_freevars):
        return False
    loads = {one.opname for one in dis.get_instructions(code) if one.argval == name}  # not as an attribute: `F.gelu`
    own = functions_called(module).get(name) if loads <= {"LOAD_GLOBAL", "LOAD_DEREF"} else None
    return own is not None and name not in own.__code__.co_names


def is_of_program(function: FunctionType, kind: type) -> bool:
    """Return whether a function is the program's, or of the package that a class is from, and not PyTorch's."""
    file = function.__code__.co_filename
    return not is_torch(file) and (_package(function) == _package(kind) or not is_library(file))


def functions_named(module: nn.Module) -> dict[str, FunctionType]:
    """Return all functions that `called_function` knows, by name, except PyTorch's and names of the module's own.

    Most functions in tables never run.
    """
    own = taken(module)
    found: dict[str, FunctionType] = {}
    for name, function in chain(_functions(module, tables=False), _functions(module)):
        found.setdefault(name, function)
    return {
        name: function
        for name, function in found.items()
        if name not in own and not is_operation(name) and not is_torch(function.__code__.co_filename)
    }


def _package(one: Any) -> str:
    return str(getattr(one, "__module__", "")).partition(".")[0]


def function_at(module: nn.Module, name: str) -> FunctionType | None:
    """Return the function whose variables a place names: a method of the module, or else a function that it calls."""
    function = method_of(module, name)
    return called_function(module, name) if function is None else function


def _functions(module: nn.Module, *, tables: bool = True) -> Iterator[tuple[str, FunctionType]]:
    """Yield the functions that a module calls with their names, the nearer ones first; methods are only looked into.

    So are decorators, along with tables: they may call another function in the place of the method.
    """
    methods = set(methods_of(module))
    waiting = [forward] if (forward := function_of(module, "forward")) is not None else []
    waiting += [one for one in decorators_of_forward(module) if not is_torch(one.__code__.co_filename)] * tables
    seen = {id(function) for function in waiting}
    for function in waiting:  # which grows meanwhile
        names = _names_in(original_code[function.__code__])
        inner = [one for name in names if name in methods and (one := function_of(module, name)) is not None]
        called = [*_named(function, names, tables)]
        yield from ((one.__name__, one) for one in called)
        for one in (*inner, *called):
            if id(one) not in seen and not is_torch(one.__code__.co_filename):
                seen.add(id(one))
                waiting.append(one)


def _names_in(code: CodeType) -> list[str]:
    """Return the names that code reads from outside of itself, also in the functions inside it, each once."""
    names = dict.fromkeys([*code.co_names, *code.co_freevars])
    for one in code.co_consts:
        if isinstance(one, CodeType):
            names.update(dict.fromkeys(_names_in(one)))
    return [*names]


def _named(function: FunctionType, names: list[str], tables: bool) -> Iterator[FunctionType]:
    """Yield the functions that these names may mean in the code of a function."""
    captured = _captured(function)
    for name in names:
        value = captured[name] if name in captured else function.__globals__.get(name)
        if issubclass(type(value), ModuleType):
            held = attributes_of(value)
            found = [(one, held.get(one)) for one in names]
        else:
            found = [(name, value), *(_in_table(value) if tables else ())]
        yield from (inner for called, one in found if (inner := unwrap_function(one, called)) is not None)


def _captured(function: FunctionType) -> dict[str, Any]:
    """Return the variables of functions around it that a function reads."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=False)
    return {name: content_of(cell) for name, cell in cells}


def _in_table(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the functions of a table, with names: a dict, or a mapping of the program that has dicts as attributes."""
    kinds = parents_of(type(value))
    if dict in kinds:
        tables = [value]
    elif Mapping in kinds:
        spaces = [attributes_of(value), *(namespace_of(kind) for kind in kinds)]
        tables = [one for space in spaces for _, one in snapshot(dict(space)) if type(one) is dict]
    else:
        return
    for table in tables:
        if dict.__len__(table) <= _LARGEST_TABLE:
            yield from ((_own_name(one), one) for _, one in snapshot(table))


def _own_name(function: Any) -> str:
    """Return the name of a function in a table; empty for anything else."""
    inner = function.func if type(function) is partial else function
    return inner.__name__ if type(inner) is FunctionType else ""


_LARGEST_TABLE = 1000
"""Entries of a table that is looked into; larger ones hold data."""
