"""Failing expression: the expression of the program at which an error came up, with the values of its parts."""

from __future__ import annotations

import ast
from types import CodeType
from typing import Any, NamedTuple

from torch import nn

from byname.diagnose.context import FailureContext
from byname.reading.frames import locals_of
from byname.reading.objects import attributes_of
from byname.reading.tensor import is_tensor
from byname.source.location import locate


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
        """Return the value of one of its parts, read without running anything; None if it is unknown.

        An item of a tensor, and the result of a method of one, such as ``w.view(-1)``, counts as the tensor itself.
        """
        if isinstance(node, ast.Name):
            return self.variables.get(node.id)
        if isinstance(node, ast.Attribute):
            return _attribute(self.value(node.value), node.attr)
        if isinstance(node, ast.Subscript):
            holder = self.value(node.value)
            return holder if is_tensor(holder) else _item(holder, self._key(node.slice))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            made_of = self.value(node.func.value)  # w.view(-1), w.T.reshape(...): a view of w
            return made_of if is_tensor(made_of) else None
        return None

    def _key(self, node: ast.AST) -> Any:
        return node.value if isinstance(node, ast.Constant) else self.value(node)


def failing_expression(context: FailureContext) -> FailingExpression | None:
    """Return the innermost expression of the program that an error passed; None if its source is not at hand."""
    place = context.failing_place
    node = None if place is None else locate(place.frame.f_code, place.instruction).node
    if place is None or node is None:
        return None
    variables = {**place.frame.f_globals, **dict(locals_of(place.frame))}
    return FailingExpression(node, place.frame.f_code, variables)


def _attribute(holder: Any, name: str) -> Any:
    if is_tensor(holder):
        return holder if name in ("T", "mT", "H", "mH", "data") else None
    if holder is None:
        return None
    spaces = [attributes_of(holder)]
    spaces += [spaces[0].get(key) or {} for key in ("_parameters", "_buffers", "_modules")]
    return next((space[name] for space in spaces if type(space) is dict and name in space), None)


def _item(holder: Any, key: Any) -> Any:
    if issubclass(type(holder), nn.Module):
        inside = attributes_of(holder)
        holder = list((inside.get("_modules") or inside.get("_parameters") or {}).values())
    if type(holder) is dict and type(key) in (str, int):
        return holder.get(key)
    if type(holder) in (list, tuple) and type(key) is int and -len(holder) <= key < len(holder):
        return holder[key]
    return None


def value_at(context: FailureContext, path: str) -> Any:
    """Return the value of an expression at the line of the program where an error came up; None if it is unknown."""
    try:
        node = ast.parse(path, mode="eval").body
    except SyntaxError:  # the name of a value that no expression reaches
        return None
    return FailingExpression(node, _NOWHERE, context.variables()).value(node)


_NOWHERE = compile("", "<nowhere>", "exec")
