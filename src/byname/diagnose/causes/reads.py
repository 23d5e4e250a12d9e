"""Does the program read the gradient of a variable? Looked up in the source of the functions that it has loaded."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from types import CodeType, FrameType, FunctionType
from typing import Any, NamedTuple

from byname.naming.name import Name
from byname.naming.roots import codes_of_the_program
from byname.reading.frames import locals_of, running_frames
from byname.reading.objects import found_in
from byname.source.code import ThisCode, is_what_ran, source_of, text_of
from byname.source.location import is_library

__all__ = ["reads_gradient_of"]


class _Function(NamedTuple):
    """What one function, or the top level of a file, says.

    Attributes:
        called: the last part of every name and attribute in it: the functions that it may call are among them.
        gradients: the last part of each ``x.grad`` in it, and of what ``grad(...)`` is given.
        others: whether it reads the gradient of something that it has as an argument or in a loop, so that any tensor
            may be meant; the loop over ``model.parameters()`` aside.
    """

    called: frozenset[str]
    gradients: frozenset[str]
    others: bool


def reads_gradient_of(names: Sequence[Name]) -> bool:
    """Whether the gradient of a variable may be read: under its name in any file, or by a function in reach."""
    wanted = {name.path.rpartition(".")[2].partition("[")[0] for name in names}
    if any(wanted & function.gradients for function in _of_the_program()):
        return True
    is_held = any(name.exact and name.rebound_at is None for name in names)
    return is_held and any(function.others for function in _in_reach())


def _of_the_program() -> Iterator[_Function]:
    """Every function of the program's files, as it is loaded: a file edited meanwhile says something else."""
    for file, codes in codes_of_the_program().items():
        source = text_of(file)
        if source.tree is not None and all(is_what_ran(source, code) for code in codes):
            yield from _said_in(source).values()
        else:
            yield from filter(None, map(_said_by, codes))


def _said_by(code: CodeType) -> _Function | None:
    """What one function says; None for one that has no statements, as a lambda has none."""
    source = source_of(code)
    return _without_text(code) if source is None else _said_in(source).get(_key(code))


def _without_text(code: CodeType) -> _Function:
    """The same of code whose text is not to be had: if it names a gradient, any of its names may be meant."""
    names = _names_in(code)
    reads = not names.isdisjoint(("grad", "register_hook"))
    return _Function(names, names if reads else frozenset(), reads)


def _names_in(code: CodeType) -> frozenset[str]:
    """Every name in some code and in the functions inside, and every text: one may be given to `getattr`."""
    inside = [_names_in(const) for const in code.co_consts if isinstance(const, CodeType)]
    texts = [const for const in code.co_consts if type(const) is str]
    return frozenset([*code.co_names, *code.co_varnames, *code.co_freevars, *code.co_cellvars, *texts]).union(*inside)


def _in_reach() -> Iterator[_Function]:
    """The functions that are running, and those that these may call: globals of theirs, and methods of their own."""
    waiting = [
        (frame.f_code, frame.f_globals, _class_of_self(frame)) for frame, _, foreign in running_frames() if not foreign
    ]
    seen = {ThisCode(code) for code, _, _ in waiting}
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
            if type(found) is FunctionType and ThisCode(found.__code__) not in seen:
                seen.add(ThisCode(found.__code__))
                waiting.append((found.__code__, found.__globals__, owner))


def _class_of_self(frame: FrameType) -> type:
    return type(dict(locals_of(frame)).get("self"))


def _key(code: CodeType) -> tuple[str, int]:
    return code.co_name, 0 if code.co_name == "<module>" else code.co_firstlineno


@lru_cache(maxsize=256)
def _said_in(source: Any) -> dict[tuple[str, int], _Function]:
    """The functions of a file by name and first line; its top level as ``<module>`` at 0."""
    tree = source.tree
    found: dict[tuple[str, int], _Function] = {}
    if tree is not None:
        found["<module>", 0] = _function(tree)
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                first = min([node.lineno, *(mark.lineno for mark in node.decorator_list)])
                found[node.name, first] = _function(node)
    return found


def _function(node: ast.Module | ast.FunctionDef | ast.AsyncFunctionDef) -> _Function:
    inside = [part for statement in node.body for part in _own(statement)]
    called = {_last(part) for part in inside if isinstance(part, ast.Name | ast.Attribute)}
    read = [part.value for part in inside if isinstance(part, ast.Attribute) and part.attr in ("grad", "register_hook")]
    for part in inside:
        if isinstance(part, ast.Call) and _last(part.func) == "grad":
            given = [*part.args, *(keyword.value for keyword in part.keywords)]
            read += [one for argument in given for one in ast.walk(argument) if isinstance(one, ast.expr)]
    indirect = any(isinstance(part, ast.Call) and _last(part.func) in ("getattr", "attrgetter") for part in inside)
    theirs = _arguments(node) | _looped(inside)
    others = any(isinstance(one, ast.Name) and one.id in theirs for one in read) or (indirect and _says_grad(inside))
    return _Function(frozenset(called), frozenset(map(_last, read)) - {""}, others)


def _own(statement: ast.stmt) -> Iterator[ast.AST]:
    """A statement and its parts, without the functions and classes defined in it."""
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    waiting: list[ast.AST] = [statement]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [
            child
            for child in ast.iter_child_nodes(node)
            if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        ]


def _arguments(node: ast.AST) -> set[str]:
    if isinstance(node, ast.Module):
        return set()
    return {one.arg for one in ast.walk(node.args) if isinstance(one, ast.arg)}  # type: ignore[attr-defined]


def _looped(inside: Iterable[ast.AST]) -> set[str]:
    """The variables of loops, but for those over a module's own parameters."""
    loops = [part for part in inside if isinstance(part, ast.For | ast.comprehension)]
    others = [loop for loop in loops if "parameters()" not in ast.unparse(loop.iter)]
    return {one.id for loop in others for one in ast.walk(loop.target) if isinstance(one, ast.Name)}


def _says_grad(inside: Iterable[ast.AST]) -> bool:
    return any(isinstance(part, ast.Constant) and part.value == "grad" for part in inside)


def _last(node: ast.AST) -> str:
    while isinstance(node, ast.Subscript):
        node = node.value
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
