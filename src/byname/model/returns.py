"""Returns: whether a module's forward returns a tensor or a container, as far as its source says so."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Literal, TypeAlias

from torch import nn

from byname.errors import BadArgumentError
from byname.model.methods import method_of
from byname.model.scopes import Function, definition_of
from byname.source.code import stands_for

__all__ = ["returned_by"]

Returned: TypeAlias = Literal["tuple", "dict", "tensor", ""]
"""Empty where it is not known."""

_DEEPEST = 5
"""The number of modules and variables that are followed, one from the other."""


def returned_by(module: nn.Module) -> Returned:
    """Return what the forward of a module returns, by its source; nothing runs.

    >>> returned_by(nn.LSTM(1, 1)), returned_by(nn.Linear(1, 1)), returned_by(nn.Sequential())
    ('tuple', 'tensor', '')

    Args:
        module: the module.
    """
    return _of_module(module, 0)


def _of_module(module: nn.Module, depth: int) -> Returned:
    if type(module) is nn.Sequential and len(module):
        return _of_module(module[-1], depth + 1)
    try:
        function = method_of(module, "forward")
    except BadArgumentError:  # it has no Python code
        return ""
    definition = None if function is None else definition_of(stands_for[function.__code__])
    if definition is None or depth > _DEEPEST:
        return ""
    found = {_kind(one, definition, module, depth) for one in _returns(definition) if one is not None}
    if len(found) == 1 and (kind := found.pop()):
        return kind
    containers: list[Returned] = [kind for kind in ("tuple", "dict") if kind in found]
    if containers:
        return containers[0]
    annotated = "" if definition.returns is None else ast.unparse(definition.returns)
    return "tensor" if annotated in ("Tensor", "torch.Tensor") else ""


def _returns(definition: Function) -> Iterator[ast.expr | None]:
    """Yield what the function itself returns, not a function inside it."""
    waiting: list[ast.AST] = list(definition.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Return):
            yield node.value
        elif not isinstance(node, Function | ast.Lambda | ast.ClassDef):
            waiting += ast.iter_child_nodes(node)


def _kind(node: ast.expr, definition: Function, module: nn.Module, depth: int) -> Returned:
    """Return what an expression is."""
    if depth > _DEEPEST:
        return ""
    if isinstance(node, ast.Tuple):
        return "tuple"
    if isinstance(node, ast.Dict):
        return "dict"
    parts = _parts(node, definition)
    if parts is not None:
        kinds: set[Returned] = {_kind(one, definition, module, depth + 1) for one in parts}
        added = isinstance(node, ast.BinOp)  # to a tensor nothing but a tensor can be added
        certain: list[Returned] = [kind for kind in ("tuple", "dict", "tensor")[: 2 + added] if kind in kinds]
        return certain[0] if certain else kinds.pop() if len(kinds) == 1 else ""
    inner = _called(node, module)
    return "" if inner is None else _of_module(inner, depth + 1)


def _parts(node: ast.expr, definition: Function) -> list[ast.expr] | None:
    """Return the expressions one of which decides what this one is; None if there are none."""
    if isinstance(node, ast.IfExp):
        return [node.body, node.orelse]
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        return [node.left, node.right]
    if isinstance(node, ast.Name):
        found = [one for one in ast.walk(definition) if isinstance(one, ast.Assign)]
        values = [one.value for one in found if any(_is(target, node.id) for target in one.targets)]
        return values or None
    return None


def _is(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Name) and target.id == name


def _called(node: ast.expr, module: nn.Module) -> nn.Module | None:
    """Return the module that ``self.name(...)`` calls."""
    function = node.func if isinstance(node, ast.Call) else None
    if isinstance(function, ast.Attribute) and _is(function.value, "self"):
        inner: nn.Module | None = module.__dict__["_modules"].get(function.attr)
        return inner
    return None
