"""History: the former names of tensors that no variable holds now, from the logs of the trackers."""

from __future__ import annotations

from dataclasses import replace
from types import CodeType
from typing import NamedTuple

import torch

from byname.naming.name import Name
from byname.naming.roots import module_of
from byname.reading.tensor import fact
from byname.source.location import Expression, Site, scope_of, statements_binding
from byname.tracking.log import Call
from byname.tracking.lookup import SiteLookup, making_of, note_of, output_spot


class Past(NamedTuple):
    """The site that made a tensor, and the name that its statement gave it, though no variable holds it now.

    The name is not `exact`: its variable is gone or holds another value. With a statement that read this tensor and
    rebound the variable, `rebound_by` gives an exact name.
    """

    site: Site | None
    former: Name | None


def history_of(tensor: torch.Tensor, lookup: SiteLookup | None = None) -> Past:
    """Return the history of a tensor, according to the trackers. Callers hold `DisableTorchFunction`."""
    spot, code = making_of(tensor, lookup)
    return UNKNOWN if spot is None else history_at(spot, code)


def history_at(spot: Expression, code: CodeType | None) -> Past:
    """Return the history of the tensors that an expression of this code made."""
    named = None if code is None else name_at(spot, code)
    if spot.in_place:
        return Past(None, None if named is None else replace(named, site=None))
    return Past(spot.site, named)


UNKNOWN = Past(None, None)


def name_at(spot: Expression, code: CodeType) -> Name | None:
    """Return the name that a statement gave the value of an expression."""
    target = spot.site.target
    if not spot.whole or target is None:
        return None
    how, scope = _kept_as(target, code)
    return Name(target, how, scope or spot.site.file, exact=False, site=spot.site)


def name_around(spot: Expression, code: CodeType) -> Name | None:
    """Return the variable that a statement assigns, as the name of an expression's value or of a part of that value."""
    named = name_at(spot._replace(whole=True), code)
    return named if named is None or spot.whole else replace(named, relation="part of")


def rebound_by(tensor: torch.Tensor, call: Call, inputs: int, index: int | None = None) -> Name | None:
    """Return the exact name that a tensor had, if this call took it from a variable that its statement then rebound.

    Args:
        tensor: a tensor without a node.
        call: a call that used the tensor; its node has `inputs` inputs.
        index: the position of the tensor among them, or None if it is not known.
    """
    spot = call.line.spot
    if spot is None or call.line.code is None:
        return None
    variable = spot.site.target
    if variable is None:
        return None
    taken = None if index is None else _taken(call, spot, inputs, index)
    if taken != variable and not (taken is None and _was_called(tensor, variable, call, spot)):
        return None
    if variable.endswith("]") and fact(tensor, "_base") is not None:
        return None  # perhaps an item of a tensor: a view of what the statement then writes into
    how, scope = _kept_as(variable, call.line.code)
    return None if scope is None else Name(variable, how, scope, True, rebound_at=spot.site)


def _taken(call: Call, spot: Expression, inputs: int, index: int) -> str | None:
    """Return the variable from which a call took one of its node's inputs, if that operand is certain."""
    operands = list(spot.operands)
    if spot.receiver is not None and call.is_method:
        operands.insert(0, spot.receiver)
    if call.after != call.before + 1 or len(operands) != inputs:
        return None
    return operands[index]


def _was_called(tensor: torch.Tensor, variable: str, call: Call, spot: Expression) -> bool:
    """Return whether the variable certainly held the tensor just before a statement rebound it.

    It did if the same function made the tensor as the value of that variable, and no third statement binds it.
    """
    if not variable.isidentifier() or variable not in spot.reads:
        return False
    made = note_of(tensor)
    if made is None or made.line.code is not call.line.code or call.line.code is None:
        return False
    making, _ = making_of(tensor, None)
    if making is None or not making.whole or making.site.target != variable:
        return False
    binding = {one.site.line for one in statements_binding(call.line.code, variable)}
    return binding <= {making.site.line, spot.site.line}


def _kept_as(target: str, code: CodeType) -> tuple[str, str | None]:
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
    spot = call.line.spot
    if spot is None or call.line.code is None or call.inside or number != call.after - 1:
        return None
    return name_at(spot if call.result is not None else output_spot(spot, output), call.line.code)
