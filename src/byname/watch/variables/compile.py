"""Compile: rewrite and compile the source of a function, so that it reports its variables."""

from __future__ import annotations
import __future__

import ast
import inspect
import warnings
from collections.abc import Callable, Iterable
from functools import lru_cache
from types import CodeType
from typing import Any

from byname.model.scopes import Function, definition_of
from byname.source.code import ThisCode, one_at_a_time, stands_for
from byname.watch.variables.transform import rewrite

_FUTURE = 0
for _name in __future__.all_feature_names:
    _FUTURE |= getattr(__future__, _name).compiler_flag

_SHELL = "_byname_shell"
"""The name of a function around the recompiled one, if that has free variables."""


def recompiled(code: CodeType, wanted: Iterable[str], key: int) -> CodeType | None:
    """Return code that reports these variables; None if the source is missing or may not be that of the code.

    The new code has the file name, lines, columns, name and free variables of the original, so that it can replace it
    in a function. It is cached, since compiling takes milliseconds and an attachment may be disabled and enabled often.

    Args:
        code: the original code.
        wanted: the variables, as in `transform.rewrite`.
        key: the number by which the new code finds its subscriptions.
    """
    try:
        with one_at_a_time:
            made = _recompiled(ThisCode(code), frozenset(wanted))
    except NoSourceError:  # not cached, since the source may be found later
        return None
    consts = [key if type(const) is int and const == _KEY else const for const in made.co_consts]
    fitted = made.replace(co_consts=tuple(consts))
    _note(fitted, code)
    return fitted


_KEY = 0x6279_6E61_6D65_0001
"""A placeholder for the key in cached code."""


class NoSourceError(Exception):
    """The source is missing, or may not be that of the code."""


@lru_cache(maxsize=256)
def _recompiled(this: ThisCode, wanted: frozenset[str]) -> CodeType:
    """Return the code that reports these variables, with the placeholder instead of its key."""
    assert this.code is not None
    return changed(this.code, lambda node: rewrite(node, wanted, _KEY))


def changed(code: CodeType, change: Callable[[Function], None]) -> CodeType:
    """Return the code of a function whose syntax tree was changed.

    Args:
        code: the original code.
        change: a function that changes a copy of the tree.

    Raises:
        NoSourceError: the source is missing, or may not be that of the code.
    """
    definition = definition_of(code)
    if definition is None:
        raise NoSourceError
    node = _copy(definition)
    _without_signature(node)
    change(node)
    tree = _in_its_shell(node, code, _class_around(definition))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Python gave the warnings already when it compiled the user's file
        try:
            made: Any = compile(tree, code.co_filename, "exec", flags=code.co_flags & _FUTURE, dont_inherit=True)
        except SyntaxError as error:  # too many nested blocks
            raise NoSourceError from error
    inner = _find(made, code)
    if inner is None or inner.co_freevars != code.co_freevars:
        raise NoSourceError
    return _fitted(inner, code)


def _note(made: CodeType, original: CodeType) -> None:
    """Note in ``stands_for`` the original of the new code, and the originals of the functions inside it."""
    stands_for[made] = original
    inside = {(one.co_name, one.co_firstlineno): one for one in original.co_consts if isinstance(one, CodeType)}
    for one in (const for const in made.co_consts if isinstance(const, CodeType)):
        if (own := inside.get((one.co_name, one.co_firstlineno))) is not None:
            _note(one, own)


def _copy(node: Any) -> Any:
    """Return a copy of a syntax tree without the attributes that other code has set on its nodes."""
    if isinstance(node, list):
        return [_copy(part) for part in node]
    if not isinstance(node, ast.AST):
        return node
    new = type(node)(**{name: _copy(value) for name, value in ast.iter_fields(node)})
    return ast.copy_location(new, node)


def _without_signature(node: Function) -> None:
    """Remove defaults and annotations, which a definition evaluates; keep decorators, which have the first line."""
    node.args.defaults = []
    node.args.kw_defaults = [None] * len(node.args.kwonlyargs)
    node.returns = None
    for part in ast.walk(node.args):
        if isinstance(part, ast.arg):
            part.annotation = None
    if hasattr(node, "type_params"):
        node.type_params = []


def _class_around(node: Any) -> str | None:
    """Return the name of the class around a function, for its private names and ``super()``; None without a class."""
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
    """Return the statement in a text, at the position `place` of the source, with a body."""
    statement: Any = ast.parse(text).body[0]
    for part in ast.walk(statement):
        if "lineno" in part._attributes:
            vars(part).update(place, end_lineno=place["lineno"], end_col_offset=place["col_offset"])
    if body:
        statement.body = body
    return statement


def _find(made: CodeType, original: CodeType) -> CodeType | None:
    """Return the code of the function inside compiled code, or None."""
    for inner in (const for const in made.co_consts if isinstance(const, CodeType)):
        if inner.co_name == original.co_name and inner.co_flags & inspect.CO_OPTIMIZED:
            return inner
        if (found := _find(inner, original)) is not None:
            return found
    return None


def _fitted(made: CodeType, original: CodeType) -> CodeType:
    """Return the new code with the qualified name of the original; functions inside it are renamed accordingly."""
    nested = (made.co_flags & ~inspect.CO_NESTED) | (original.co_flags & inspect.CO_NESTED)
    return _renamed(made, made.co_qualname, original.co_qualname).replace(co_flags=nested)


def _renamed(code: CodeType, old: str, new: str) -> CodeType:
    consts = tuple(_renamed(one, old, new) if isinstance(one, CodeType) else one for one in code.co_consts)
    name = new + code.co_qualname.removeprefix(old) if code.co_qualname.startswith(old) else code.co_qualname
    return code.replace(co_consts=consts, co_qualname=name)
