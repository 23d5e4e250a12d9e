"""Expressions of the program, read without running them: the values of their parts, and the assignments of a file."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any, NamedTuple

from torch import nn

from byname.diagnose.context import FailureContext
from byname.reading.frames import variables_of
from byname.reading.objects import attributes_of
from byname.reading.tensor import is_tensor
from byname.source.code import source_of
from byname.source.location import Site, locate


def value_of(node: ast.AST, variables: Mapping[str, Any]) -> Any:
    """Return the value of an expression such as ``self.layers[0].norm``; None if it is unknown.

    An item of a tensor, and the result of a method of one, such as ``w.view(-1)``, counts as the tensor itself.
    """
    if isinstance(node, ast.Name):
        return variables.get(node.id)
    if isinstance(node, ast.Attribute):
        return _attribute(value_of(node.value, variables), node.attr)
    if isinstance(node, ast.Subscript):
        holder = value_of(node.value, variables)
        key = node.slice.value if isinstance(node.slice, ast.Constant) else value_of(node.slice, variables)
        return holder if is_tensor(holder) else _item(holder, key)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        made_of = value_of(node.func.value, variables)  # w.view(-1), w.T.reshape(...): a view of w
        return made_of if is_tensor(made_of) else None
    return None


def _attribute(holder: Any, name: str) -> Any:
    if is_tensor(holder):
        return holder if name in ("T", "mT", "H", "mH", "data") else None
    if holder is None:
        return None
    own = attributes_of(holder)
    spaces = [own, *(_registry(own, key) for key in ("_parameters", "_buffers", "_modules"))]
    return next((dict.get(space, name) for space in spaces if dict.__contains__(space, name)), None)


def _registry(own: dict[str, Any], key: str) -> dict[str, Any]:
    found = dict.get(own, key)
    return found if type(found) is dict else {}


def _item(holder: Any, key: Any) -> Any:
    if issubclass(type(holder), nn.Module):
        own = attributes_of(holder)
        inside = _registry(own, "_modules") or _registry(own, "_parameters")
        holder = inside if type(key) is str else list(inside.values())
    if type(holder) is dict and type(key) in (str, int):
        return holder.get(key)
    if type(holder) in (list, tuple) and type(key) is int and -len(holder) <= key < len(holder):
        return holder[key]
    return None


class FailingExpression(NamedTuple):
    """The expression of the program at which an error came up.

    Attributes:
        node: its syntax tree.
        code: the code that it belongs to.
        variables: the variables that it can read, by name.
    """

    node: ast.AST
    code: CodeType
    variables: dict[str, Any]

    def value(self, node: ast.AST) -> Any:
        """Return the value of one of its parts; None if it is unknown."""
        return value_of(node, self.variables)


def failing_expression(context: FailureContext) -> FailingExpression | None:
    """Return the innermost expression of the program that an error passed; None if its source is not at hand."""
    failing = context.failing_frame
    node = None if failing is None else locate(failing.code, failing.instruction).node
    if failing is None or node is None:
        return None
    return FailingExpression(node, failing.code, variables_of(failing.frame))


def value_at(context: FailureContext, path: str) -> Any:
    """Return the value of an expression at the line of the program where an error came up; None if it is unknown."""
    try:
        node = ast.parse(path, mode="eval").body
    except SyntaxError:  # the name of a value that no expression reaches
        return None
    return value_of(node, context.variables())


def parsed(statement: str) -> ast.stmt | None:
    """Return the syntax tree of a statement, or None."""
    try:
        return ast.parse(statement).body[0]
    except (SyntaxError, IndexError):  # the head of a block, or a statement too long to be kept whole
        return None


def assignments(code: CodeType | None) -> Iterator[tuple[Site, ast.Assign]]:
    """Yield the assignments in the file of some code, with their lines."""
    source = None if code is None else source_of(code)
    nodes = ast.walk(source.tree) if source is not None and source.tree is not None else ()
    for node in nodes:
        if code is not None and isinstance(node, ast.Assign):
            yield Site(code.co_filename, node.lineno, statement=ast.unparse(node)), node
