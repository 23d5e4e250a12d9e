"""Non-leaf tensors: the result of an operation whose ``.grad`` was read, or which was given to an optimizer."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from types import CodeType

import torch

from byname.diagnose.context import FailureContext, made_at
from byname.diagnose.failing_expression import FailingExpression, failing_expression
from byname.diagnose.finding import Finding, culprits_of, known_sites
from byname.naming.name import at, quote
from byname.reading.frames import locals_of
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact, is_tensor
from byname.source.location import Expression, locate, statements_binding
from byname.tracking.tracker import logs


def non_leaf_grad(context: FailureContext, error: BaseException) -> Finding | None:
    """Return a finding about the non-leaf tensor whose ``.grad`` was read, or which was given to an optimizer."""
    asked = _given_to_optimizer(context) if type(error) is ValueError else _asked_for_grad(context)
    tensor = next(asked, None)
    if tensor is None:
        return None
    name, made = context.name(tensor), made_at(tensor)
    why = (
        f"it was made{at(made)} by an operation on another tensor"
        if made
        else "it is the result of an operation on another tensor"
    )
    wanted = "an optimizer takes only leaves" if type(error) is ValueError else "only leaves get a .grad"
    it = quote(name)
    remedy = (
        f"compute the values first, then make them a leaf: {name.path or 'w'} = (...).detach().requires_grad_() or "
        "nn.Parameter(...); to see the gradient of a result, call .retain_grad() on it before backward"
    )
    message = f"{it} is not a leaf: {why}, and {wanted}"
    return Finding("non-leaf-grad", message, culprits_of(name), known_sites(made, context.noticed), remedy)


def _given_to_optimizer(context: FailureContext) -> Iterator[torch.Tensor]:
    """Yield the non-leaf tensors that ``add_param_group`` refused, from the frame that refused them."""
    for place in context.places:
        if place.frame.f_code.co_name == "add_param_group":
            group = dict(locals_of(place.frame)).get("param_group")
            params = group.get("params", ()) if type(group) is dict else ()
            yield from (one for one in params if is_tensor(one) and _is_result(one))


def _asked_for_grad(context: FailureContext) -> Iterator[torch.Tensor]:
    """Yield the non-leaf tensors whose ``.grad`` the failing expression reads and which retain none."""
    failing = failing_expression(context)
    if failing is None:
        return
    for node in _gradients_in(failing):
        value = failing.value(node.value)
        if value is None:
            yield from _read_there(failing.code, node.lineno)
        elif is_tensor(value) and _is_result(value):
            yield value


def _gradients_in(failing: FailingExpression) -> Iterator[ast.Attribute]:
    """Yield each ``x.grad`` in an expression, and each that one of its variables was assigned: ``g = x.grad``."""
    variables = failing.variables
    for part in ast.walk(failing.node):
        if isinstance(part, ast.Attribute) and part.attr == "grad":
            yield part
        if isinstance(part, ast.Name) and part.id in variables and variables[part.id] is None:
            for spot in statements_binding(failing.code, part.id):
                value = _assigned_in(spot)
                if isinstance(value, ast.Attribute) and value.attr == "grad":
                    yield value


def _assigned_in(spot: Expression) -> ast.expr | None:
    """Return the value of a simple assignment, parsed from its source."""
    try:
        statement = ast.parse(spot.site.statement).body[0]
    except (SyntaxError, IndexError):  # the head of a block, or a statement too long to be kept whole
        return None
    return statement.value if isinstance(statement, ast.Assign) else None


def _read_there(code: CodeType, line: int) -> Iterator[torch.Tensor]:
    """Yield the tensors whose missing ``.grad`` a tracker saw read on this line, the last one first."""
    for log in logs():
        for where, instruction, reference in reversed(log.grad_reads):
            tensor = reference()
            if where is code and tensor is not None and locate(code, instruction).site.line == line:
                yield tensor


def _is_result(tensor: torch.Tensor) -> bool:
    with DisableTorchFunction():
        return fact(tensor, "grad_fn") is not None and not fact(tensor, "retains_grad")
