"""Returns: whether a module's forward returns a tensor or a container, as far as its source says so."""

from __future__ import annotations

import ast
from typing import Literal, TypeAlias

from torch import nn

from byname.errors import BadArgumentError
from byname.model.methods import method_of
from byname.source.code import Function, definition_of, original_code, statements_in

Returned: TypeAlias = Literal["tuple", "dict", "tensor", ""]
"""Empty where it is not known."""

_DEEPEST = 5
"""The number of modules that are followed, one from the other."""


def returned_by(module: nn.Module) -> Returned:
    """Return the kind of value that the forward of a module returns, by its source; nothing runs.

    >>> returned_by(nn.LSTM(1, 1)), returned_by(nn.Linear(1, 1)), returned_by(nn.Sequential())
    ('tuple', 'tensor', '')
    """
    return _of_module(module, 0)


def items_returned(module: nn.Module) -> int | None:
    """Return the length of the tuple that the forward of a module returns; None if its source does not show it.

    >>> items_returned(nn.LSTM(1, 1)), items_returned(nn.Linear(1, 1))
    (2, None)
    """
    definition = _definition(module)
    body = definition.body if definition else []
    returned = [one.value for one in statements_in(body) if isinstance(one, ast.Return)]
    lengths = {_length(one) for one in returned}
    return lengths.pop() if len(lengths) == 1 else None


def _length(node: ast.expr | None) -> int | None:
    """Return the number of items of a tuple as it is written; None for anything else."""
    if not isinstance(node, ast.Tuple) or any(isinstance(one, ast.Starred) for one in node.elts):
        return None
    return len(node.elts)


def _definition(module: nn.Module) -> Function | None:
    """Return the syntax tree of a module's forward; None where it has no Python code, or no source."""
    try:
        function = method_of(module, "forward")
    except BadArgumentError:
        return None
    return None if function is None else definition_of(original_code[function.__code__])


def _of_module(module: nn.Module, depth: int) -> Returned:
    if type(module) is nn.Sequential and len(module):
        return _of_module(module[-1], depth + 1)
    definition = _definition(module)
    return "" if definition is None or depth > _DEEPEST else _Forward(module, definition, depth).returned()


class _Forward:
    """The source of a forward; `depth` is the number of modules that were followed to this one."""

    def __init__(self, module: nn.Module, definition: Function, depth: int) -> None:
        self._module = module
        self._definition = definition
        self._depth = depth
        self._own = list(statements_in(definition.body))
        self._seen: set[str] = set()

    def returned(self) -> Returned:
        """Return the kind: as written in a return, else as annotated, else as its variables and calls show."""
        values = [one.value for one in self._own if isinstance(one, ast.Return) and one.value is not None]
        plain = [kind for one in values if (kind := _display(one))]
        annotation = self._definition.returns
        if plain or not values:
            return plain[0] if plain else ""
        if annotation is not None and ast.unparse(annotation) in ("Tensor", "torch.Tensor"):
            return "tensor"
        return _either([self._kind(one) for one in values])

    def _kind(self, node: ast.expr) -> Returned:
        if isinstance(node, ast.IfExp):
            return _either([self._kind(node.body), self._kind(node.orelse)])
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            kinds = [self._kind(node.left), self._kind(node.right)]
            return next((kind for kind in kinds if kind), "")  # both sides are of one kind
        if isinstance(node, ast.Name) and node.id not in self._seen:
            self._seen.add(node.id)
            return _either([self._kind(one) for one in self._assigned(node.id)])
        inner = self._called(node)
        return _display(node) if inner is None else _of_module(inner, self._depth + 1)

    def _assigned(self, name: str) -> list[ast.expr]:
        assignments = [one for one in self._own if isinstance(one, ast.Assign)]
        return [one.value for one in assignments if any(_is(target, name) for target in one.targets)]

    def _called(self, node: ast.expr) -> nn.Module | None:
        function = node.func if isinstance(node, ast.Call) else None
        if not isinstance(function, ast.Attribute) or not _is(function.value, "self"):
            return None
        inner: nn.Module | None = self._module.__dict__["_modules"].get(function.attr)
        return inner


def _display(node: ast.expr) -> Returned:
    return "tuple" if isinstance(node, ast.Tuple) else "dict" if isinstance(node, ast.Dict) else ""


def _either(kinds: list[Returned]) -> Returned:
    """Return the kind of one of several values: a container if any is one, a tensor if all are."""
    containers = [kind for kind in kinds if kind in ("tuple", "dict")]
    if containers:
        return containers[0]
    return "tensor" if kinds and all(kind == "tensor" for kind in kinds) else ""


def _is(target: ast.expr, name: str) -> bool:
    return isinstance(target, ast.Name) and target.id == name
