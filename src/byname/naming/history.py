"""History: the former names of tensors that no variable holds now, from the logs of the trackers."""

from __future__ import annotations

from dataclasses import replace
from types import CodeType

import torch

from byname.naming.name import Name
from byname.naming.roots import module_of
from byname.reading.tensor import fact
from byname.source.location import Expression, Site, scope_of, statements_binding
from byname.tracking.log import Call
from byname.tracking.lookup import creation_record_of, making_of, output_expr


def history_at(expr: Expression | None, code: CodeType | None) -> tuple[Site | None, Name | None]:
    """Return the site that made some tensors, and the name that its statement gave them, as `making_of` found them.

    The name is not `exact`: its variable is gone or holds another value. With a statement that read the tensor and
    rebound the variable, `rebound_by` gives an exact name.
    """
    if expr is None:
        return None, None
    named = None if code is None else name_at(expr, code)
    if expr.in_place:
        return None, None if named is None else replace(named, site=None)
    return expr.site, named


def name_at(expr: Expression, code: CodeType) -> Name | None:
    """Return the name that a statement gave the value of an expression."""
    target = expr.site.target
    if not expr.whole or target is None:
        return None
    how, scope = _kind_and_scope(target, code)
    return Name(target, how, scope or expr.site.file, exact=False, site=expr.site)


def name_around(expr: Expression, code: CodeType) -> Name | None:
    """Return the variable that a statement assigns, as the name of an expression's value or of a part of that value."""
    named = name_at(expr._replace(whole=True), code)
    return named if named is None or expr.whole else replace(named, relation="part of")


def rebound_by(tensor: torch.Tensor, call: Call, inputs: int, index: int | None = None) -> Name | None:
    """Return the exact name that a tensor had, if this call took it from a variable that its statement then rebound.

    Args:
        tensor: a tensor without a node.
        call: a call that used the tensor; its node has `inputs` inputs.
        index: the position of the tensor among them, or None if it is not known.
    """
    expr = call.line.expr
    if expr is None or call.line.code is None:
        return None
    variable = expr.site.target
    if variable is None:
        return None
    taken = None if index is None else _taken(call, expr, inputs, index)
    if taken != variable and not (taken is None and _was_named(tensor, variable, call, expr)):
        return None
    if variable.endswith("]") and fact(tensor, "_base") is not None:
        return None  # perhaps an item of a tensor: a view of what the statement then writes into
    how, scope = _kind_and_scope(variable, call.line.code)
    return None if scope is None else Name(variable, how, scope, True, rebound_at=expr.site)


def _taken(call: Call, expr: Expression, inputs: int, index: int) -> str | None:
    """Return the variable from which a call took one of its node's inputs, if that operand is certain."""
    operands = list(expr.operands)
    if expr.receiver is not None and call.is_method:
        operands.insert(0, expr.receiver)
    if call.after != call.before + 1 or len(operands) != inputs:
        return None
    return operands[index]


def _was_named(tensor: torch.Tensor, variable: str, call: Call, expr: Expression) -> bool:
    """Return whether the variable certainly held the tensor just before a statement rebound it.

    It did if the same function made the tensor as the value of that variable, and no third statement binds it.
    """
    if not variable.isidentifier() or variable not in expr.reads:
        return False
    made = creation_record_of(tensor)
    if made is None or made.line.code is not call.line.code or call.line.code is None:
        return False
    making, _ = making_of(tensor, None)
    if making is None or not making.whole or making.site.target != variable:
        return False
    binding = {one.site.line for one in statements_binding(call.line.code, variable)}
    return binding <= {making.site.line, expr.site.line}


def _kind_and_scope(target: str, code: CodeType) -> tuple[str, str | None]:
    """Return the kind (`Name.how`) and scope of a target of this code; no scope if the code is of no loaded module."""
    at_top = code.co_name == "<module>"
    scope = module_of(code) if at_top else scope_of(code)
    if not target.isidentifier():
        return "item" if target.endswith("]") else "attribute", scope
    if at_top or target not in (*code.co_varnames, *code.co_cellvars, *code.co_freevars):
        return "global", module_of(code)
    return "closure" if target in code.co_freevars else "local", scope


def name_of_output(call: Call, number: int, output: int) -> Name | None:
    """Return the name that its statement gave a result of a call, though the result itself is gone.

    Args:
        number: the sequence number of the node whose output to name; the last node that a call makes is its result's.
        output: the position among the node's outputs.
    """
    expr = call.line.expr
    if expr is None or call.line.code is None or call.inside or number != call.after - 1:
        return None
    return name_at(expr if call.result is not None else output_expr(expr, output), call.line.code)
