"""What does a statement bind, store into, or perhaps change in place? Read from its syntax tree."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Any

from byname.model.scopes import Function, captured_by

__all__ = [
    "CHANGING_STATEMENTS",
    "first_of",
    "has_blocks",
    "may_change",
    "name_of",
    "names_of_handlers",
    "root_of",
    "targets",
    "yields",
]


def targets(statement: Any) -> Iterator[Any]:
    """What a statement or its head binds: names, items and attributes, patterns, imports, a handler's name."""
    if isinstance(statement, ast.Assign | ast.Delete):
        for target in statement.targets:
            yield from _flat(target)
    elif isinstance(statement, ast.AugAssign | ast.For | ast.AsyncFor):
        yield from _flat(statement.target)
    elif isinstance(statement, ast.AnnAssign):
        yield from _flat(statement.target) if statement.value is not None else ()
    elif isinstance(statement, ast.With | ast.AsyncWith):
        for item in statement.items:
            yield from targets(item)
    elif isinstance(statement, ast.withitem):
        yield from _flat(statement.optional_vars) if statement.optional_vars is not None else ()
    elif isinstance(statement, ast.Import | ast.ImportFrom):
        yield from statement.names
    elif isinstance(statement, ast.ExceptHandler):
        yield statement
    elif isinstance(statement, ast.match_case):
        yield from _captures(statement.pattern)
    elif hasattr(ast, "TypeAlias") and isinstance(statement, ast.TypeAlias):
        yield statement.name


def _flat(target: ast.expr) -> Iterator[ast.expr]:
    if isinstance(target, ast.Tuple | ast.List):
        for part in target.elts:
            yield from _flat(part)
    else:
        yield from _flat(target.value) if isinstance(target, ast.Starred) else [target]


def _captures(pattern: ast.AST) -> Iterator[ast.AST]:
    """The patterns that capture, in the order in which they do."""
    for part in ast.iter_child_nodes(pattern):
        yield from _captures(part)
    if captured_by(pattern):
        yield pattern


def name_of(part: Any) -> str:
    """The name that a target, an import, a handler or a pattern binds."""
    if isinstance(part, ast.Name):
        return part.id
    if isinstance(part, ast.alias):
        return part.asname or part.name.partition(".")[0]
    return captured_by(part) or getattr(part, "name", None) or ""


def root_of(part: ast.AST) -> str | None:
    """The variable whose item or attribute is assigned or deleted: ``cache`` of ``cache['k'].x = 1``."""
    if not isinstance(part, ast.Attribute | ast.Subscript) or isinstance(part.ctx, ast.Load):
        return None
    node: ast.expr = part
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


_CHANGING = (ast.Call, ast.AugAssign, ast.Await, ast.Yield, ast.YieldFrom)


def may_change(head: ast.AST) -> bool:
    """Whether evaluating this can change a tensor in place: it calls something, or stores into something."""
    if isinstance(head, ast.Lambda):
        return False
    stores = isinstance(head, ast.Attribute | ast.Subscript) and not isinstance(head.ctx, ast.Load)
    return stores or isinstance(head, _CHANGING) or any(may_change(part) for part in ast.iter_child_nodes(head))


CHANGING_STATEMENTS = (ast.AugAssign, ast.For, ast.AsyncFor, ast.With, ast.AsyncWith)


def names_of_handlers(node: Function) -> set[str]:
    """The names that Python itself deletes where an ``except`` block ends; exceptions are no tensors."""
    return {part.name for part in ast.walk(node) if isinstance(part, ast.ExceptHandler) and part.name}


def has_blocks(statement: ast.stmt) -> bool:
    """Whether other statements stand inside of this one."""
    return hasattr(statement, "body") or hasattr(statement, "cases")


def yields(node: Function) -> bool:
    """Whether a function is a generator: a yield of its own, not of a function inside."""
    waiting: list[ast.AST] = [*node.body]
    while waiting:
        part = waiting.pop()
        if isinstance(part, ast.Yield | ast.YieldFrom):
            return True
        if not isinstance(part, Function | ast.ClassDef | ast.Lambda):
            waiting += ast.iter_child_nodes(part)
    return False


def first_of(node: Function) -> str:
    """What stands for the first argument in the function's own code."""
    one = node.args
    positional = [*one.posonlyargs, *one.args]
    if positional:
        return positional[0].arg
    return f"{one.vararg.arg}[0] if {one.vararg.arg} else None" if one.vararg else "None"
