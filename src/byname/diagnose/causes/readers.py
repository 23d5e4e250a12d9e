"""Readers: the functions of the program that may read the gradient of a variable, according to their source."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from types import CodeType, FunctionType
from typing import Any, NamedTuple

from torch import nn

from byname.diagnose.engine import ENGINE
from byname.naming.name import Name
from byname.naming.roots import codes_of_the_program
from byname.reading.frames import locals_of, running_frames
from byname.reading.modules import modules_in
from byname.reading.objects import found_in
from byname.source.code import CodeKey, compiles_to, parsed_file, source_of
from byname.source.location import is_library


class _NamesInFunction(NamedTuple):
    """The names in one function, or in the top level of a file; of attributes the last part."""

    called: frozenset[str]  # every name, among them all functions that it may call
    gradients: frozenset[str]  # each ``x`` in ``x.grad`` and ``x.register_hook``, and what is given to ``grad(...)``
    others: bool  # of an argument or a loop variable, or by `getattr`: any tensor may be meant
    asks: bool  # of any variable but those of loops over ``model.parameters()``, which `others` leaves out, too


def reads_gradient_of(names: Sequence[Name], models: Sequence[nn.Module]) -> bool:
    """Return whether the program may read a variable's gradient.

    It may do so under the variable's name in any file, or in a running function or one that such a function may call.
    Unless byname listens to the engine, a model or a function that has ended may have asked for it, too.
    """
    wanted = {name.path.rpartition(".")[2].partition("[")[0] for name in names}
    if any(wanted & function.gradients for function in _of_the_program()):
        return True
    if any(name.exact and name.rebound_at is None for name in names):
        return any(function.others for function in _in_reach(() if ENGINE.holders else models))
    return not ENGINE.holders and any(function.asks for function in _of_the_program())


def reads_gradients() -> bool:
    return any(function.gradients or function.others for function in _of_the_program())


def _of_the_program() -> Iterator[_NamesInFunction]:
    """Yield every function of the program's files as it was loaded, even if its file was edited meanwhile."""
    for file, codes in codes_of_the_program().items():
        source = parsed_file(file)
        if source.tree is not None and all(compiles_to(source, code) for code in codes):
            yield from _said_in(source).values()
        else:
            yield from filter(None, map(_said_by, codes))


def _said_by(code: CodeType) -> _NamesInFunction | None:
    """Return the names in one function; None for one without statements, such as a lambda."""
    source = source_of(code)
    return _without_text(code) if source is None else _said_in(source).get(_key(code))


def _without_text(code: CodeType) -> _NamesInFunction:
    """Return the names in code whose source is not available; if it names a gradient, any of its names may be meant."""
    names = _names_in(code)
    reads = not names.isdisjoint(("grad", "register_hook"))
    return _NamesInFunction(names, names if reads else frozenset(), reads, "grad" in names)


def _names_in(code: CodeType) -> frozenset[str]:
    """Return every name in some code and its inner functions, and every string, since `getattr` may be given one."""
    inside = [_names_in(const) for const in code.co_consts if isinstance(const, CodeType)]
    texts = [const for const in code.co_consts if type(const) is str]
    return frozenset([*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars, *texts]).union(*inside)


def _in_reach(models: Sequence[nn.Module]) -> Iterator[_NamesInFunction]:
    """Yield the running functions, the globals and own methods that they may call, and the models' forwards."""
    frames = [frame for frame, _, foreign in running_frames() if not foreign]
    waiting = [(frame.f_code, frame.f_globals, type(dict(locals_of(frame)).get("self"))) for frame in frames]
    for kind in {id(type(one)): type(one) for model in models for one in modules_in(model)}.values():
        if type(forward := found_in(kind, "forward")) is FunctionType:
            waiting.append((forward.__code__, forward.__globals__, kind))
    seen = {CodeKey(code) for code, _, _ in waiting}
    while waiting:
        code, variables, owner = waiting.pop()
        function = None if is_library(code.co_filename) else _said_by(code)
        if function is None:
            continue
        yield function
        for called in function.called:
            found = variables.get(called)
            if type(found) is not FunctionType:
                found = found_in(owner, called)
            if type(found) is FunctionType and CodeKey(found.__code__) not in seen:
                seen.add(CodeKey(found.__code__))
                waiting.append((found.__code__, found.__globals__, owner))


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_name, 0 if code.co_name == "<module>" else code.co_firstlineno


@lru_cache(maxsize=256)
def _said_in(source: Any) -> dict[tuple[str, int], _NamesInFunction]:
    """Return the functions of a file by name and first line; its top level is ``<module>`` at line 0."""
    tree = source.tree
    found: dict[tuple[str, int], _NamesInFunction] = {}
    if tree is not None:
        found["<module>", 0] = _function(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
                found[node.name, first] = _function(node)
    return found


def _function(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef) -> _NamesInFunction:
    inside = [part for statement in node.body for part in _own(statement)]
    called = {_last(part) for part in inside if isinstance(part, ast.Name | ast.Attribute)}
    read = [part.value for part in inside if isinstance(part, ast.Attribute) and part.attr in ("grad", "register_hook")]
    for part in inside:
        if isinstance(part, ast.Call) and _last(part.func) == "grad":
            given = [*part.args, *(keyword.value for keyword in part.keywords)]
            read += [one for argument in given for one in ast.walk(argument) if isinstance(one, ast.expr)]
    indirect = any(isinstance(part, ast.Call) and _last(part.func) in ("getattr", "attrgetter") for part in inside)
    of_lambdas = [_arguments(part) for part in inside if isinstance(part, ast.Lambda)]
    theirs = _arguments(node).union(_looped(inside), *of_lambdas)
    variables = {one.id for one in read if isinstance(one, ast.Name)}
    says_grad = any(isinstance(part, ast.Constant) and part.value == "grad" for part in inside)
    others = not variables.isdisjoint(theirs) or (indirect and says_grad)
    asks = bool(variables - _looped(inside, over_parameters=True))
    return _NamesInFunction(frozenset(called), frozenset(map(_last, read)) - {""}, others, asks)


def _own(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield a statement and its parts, without the functions and classes defined in it."""
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node
            waiting += ast.iter_child_nodes(node)


def _arguments(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Module):
        return set()
    return {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}  # type: ignore[attr-defined]


def _looped(inside: Iterable[ast.AST], *, over_parameters: bool = False) -> set[str]:
    """Return the variables of the loops over a module's own parameters, or else those of the other loops."""
    loops = [part for part in inside if isinstance(part, ast.For | ast.comprehension)]
    wanted = [loop for loop in loops if ("parameters()" in ast.unparse(loop.iter)) == over_parameters]
    return {one.id for loop in wanted for one in ast.walk(loop.target) if isinstance(one, ast.Name)}


def _last(node: ast.AST) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
