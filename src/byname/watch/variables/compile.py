"""Compile: code that reports a function's variables, from the function's own source, rewritten and compiled."""

from __future__ import annotations
import __future__

import ast
import inspect
import warnings
from collections.abc import Iterable
from functools import lru_cache
from types import CodeType
from typing import Any

from byname.model.scopes import Function, definition_of
from byname.source.code import ThisCode, one_at_a_time, stands_for
from byname.watch.variables.transform import rewrite

__all__ = ["recompiled"]

_FUTURE = 0
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag

_SHELL = "_byname_shell"
"""The function around the recompiled one, where it has variables from outside."""


def recompiled(code: CodeType, wanted: Iterable[str], key: int) -> CodeType | None:
    """The code of a function that reports these variables; None where there is no source that can be believed.

    It has the file name, lines and columns of the original, its name and its variables from outside, so that it can
    take the original's place in a function. What was made once is kept: an attachment may be switched off and on again
    all the time, and the making takes milliseconds.
    """
    try:
        with one_at_a_time:
            made = _recompiled(ThisCode(code), frozenset(wanted))
    except _NoSourceError:  # which is not kept: the source may be found later
        return None
    consts = [key if type(const) is int and const == _KEY else const for const in made.co_consts]
    fitted = made.replace(co_consts=tuple(consts))
    _note(fitted, code)
    return fitted


_KEY = 0x6279_6E61_6D65_0001
"""Stands for the key in code that is kept."""


class _NoSourceError(Exception):
    """There is no source that can be believed."""


@lru_cache(maxsize=256)
def _recompiled(this: ThisCode, wanted: frozenset[str]) -> CodeType:
    """The code that reports these variables, but for its key."""
    code = this.code
    assert code is not None
    definition = definition_of(code)
    if definition is None:
        raise _NoSourceError
    node = _copy(definition)
    _without_signature(node)
    rewrite(node, wanted, _KEY)
    tree = _in_its_shell(node, code, _class_around(definition))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the user's file was compiled, and warned about, when the program began
        try:
            made: Any = compile(tree, code.co_filename, "exec", flags=code.co_flags & _FUTURE, dont_inherit=True)
        except SyntaxError as error:  # too many blocks inside of each other
            raise _NoSourceError from error
    inner = _find(made, code)
    if inner is None or inner.co_freevars != code.co_freevars:
        raise _NoSourceError
    return _fitted(inner, code)


def _note(made: CodeType, original: CodeType) -> None:
    """Notes which code the new one stands for, and so for the functions inside."""
    stands_for[made] = original
    inside = {(one.co_name, one.co_firstlineno): one for one in original.co_consts if isinstance(one, CodeType)}
    for one in (const for const in made.co_consts if isinstance(const, CodeType)):
        if (own := inside.get((one.co_name, one.co_firstlineno))) is not None:
            _note(one, own)


def _copy(node: Any) -> Any:
    """A copy of a tree without what others have written on its nodes."""
    if isinstance(node, list):
        return [_copy(part) for part in node]
    if not isinstance(node, ast.AST):
        return node
    new = type(node)(**{name: _copy(value) for name, value in ast.iter_fields(node)})
    return ast.copy_location(new, node)


def _without_signature(node: Function) -> None:
    """Takes away what was evaluated at the definition; the decorators stay, for they hold the first line."""
    node.args.defaults = []
    node.args.kw_defaults = [None] * len(node.args.kwonlyargs)
    node.returns = None
    for part in ast.walk(node.args):
        if isinstance(part, ast.arg):
            part.annotation = None
    if hasattr(node, "type_params"):
        node.type_params = []


def _class_around(node: Any) -> str | None:
    """The class whose name is in the function's private names, and to which its ``super()`` refers."""
    while not isinstance(node, ast.Module):
        node = node.parent
        if isinstance(node, ast.ClassDef):
            return node.name
    return None


def _in_its_shell(node: Function, code: CodeType, owner: str | None) -> ast.Module:
    body: list[ast.stmt] = [node]
    place = {"lineno": node.lineno, "col_offset": node.col_offset}
    if owner is not None:
        body = [_parsed(f"class {owner}: pass", body, place)]
    outside = [name for name in code.co_freevars if name != "__class__"]
    if outside:
        shell = _parsed(f"def {_SHELL}(): pass", body, place)
        shell.body[:0] = [_parsed(f"{name} = None", [], place) for name in outside]
        body = [shell]
    return ast.Module(body, [])


def _parsed(text: str, body: list[ast.stmt], place: dict[str, int]) -> Any:
    """A statement at a place, with a body."""
    statement: Any = ast.parse(text).body[0]
    for part in ast.walk(statement):
        if "lineno" in part._attributes:
            vars(part).update(place, end_lineno=place["lineno"], end_col_offset=place["col_offset"])
    if body:
        statement.body = body
    return statement


def _find(made: CodeType, original: CodeType) -> CodeType | None:
    """The function's code inside of what was compiled."""
    for inner in (const for const in made.co_consts if isinstance(const, CodeType)):
        if inner.co_name == original.co_name and inner.co_flags & inspect.CO_OPTIMIZED:
            return inner
        if (found := _find(inner, original)) is not None:
            return found
    return None


def _fitted(made: CodeType, original: CodeType) -> CodeType:
    """The new code under the qualified name of the original, and so the functions inside."""
    nested = (made.co_flags & ~inspect.CO_NESTED) | (original.co_flags & inspect.CO_NESTED)
    return _renamed(made, made.co_qualname, original.co_qualname).replace(co_flags=nested)


def _renamed(code: CodeType, old: str, new: str) -> CodeType:
    consts = tuple(_renamed(one, old, new) if isinstance(one, CodeType) else one for one in code.co_consts)
    name = new + code.co_qualname.removeprefix(old) if code.co_qualname.startswith(old) else code.co_qualname
    return code.replace(co_consts=consts, co_qualname=name)
