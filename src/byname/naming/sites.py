"""Where does a node or a tensor come from, and what was it called there? Answers from the logs of the trackers held."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace
from types import CodeType
from typing import Any

import torch

from byname.naming.log import Call, Log, Made
from byname.naming.name import Name
from byname.naming.roots import scope_of
from byname.naming.track import TRACKERS
from byname.site import Site, Spot, locate, statements_binding

__all__ = ["SiteLookup", "history_of", "name_at", "name_of_output", "rebound_by", "site_of_tensor"]


class SiteLookup:
    """Finds the calls behind the nodes of one graph.

    Sequence numbers are counted by each thread for itself, and a node does not tell its thread. A log is used for a
    graph only when the graph's root, where it is alive, is known to be, or may be, a result of that log's thread.

    Args:
        roots: the living tensors at the root of the graph.
    """

    def __init__(self, roots: Iterable[torch.Tensor] = ()) -> None:
        logs = [log for tracker in list(TRACKERS) for log in tracker.logs if log.calls]
        verdicts = [_verdict(log, list(roots)) for log in logs]
        wanted = _CONFIRMED if _CONFIRMED in verdicts else _POSSIBLE
        self._logs = [log for log, verdict in zip(logs, verdicts, strict=True) if verdict == wanted]
        self._certain = wanted == _CONFIRMED or len({log.thread for log in self._logs}) == 1

    def __bool__(self) -> bool:
        return bool(self._logs)

    def call(self, node: Any) -> Call | None:
        """The call that made a node, or None when that is not known for certain."""
        number = node._sequence_nr()
        found = [call for log in self._logs if (call := log.call_at(number)) is not None]
        places = {(id(call.code), call.instruction) for call in found}
        if not found or (len(places) > 1 and not self._certain):
            return None
        return found[0]

    def spot(self, node: Any) -> Spot | None:
        """Where the call stands that made a node."""
        call = self.call(node)
        return None if call is None else call.spot()


_CONFIRMED, _POSSIBLE, _IMPOSSIBLE = range(3)


def _verdict(log: Log, roots: Sequence[torch.Tensor]) -> int:
    verdict = _POSSIBLE
    known = False
    for root in roots:
        node = root.grad_fn
        call = None if node is None else log.call_at(node._sequence_nr())
        if call is None:
            continue
        known = True
        if call.result is not None and call.result() is root:
            return _CONFIRMED
        if call.result is not None:
            verdict = _IMPOSSIBLE
    if not known and threading.get_ident() != log.thread:
        return _IMPOSSIBLE
    return verdict


def site_of_tensor(tensor: torch.Tensor, lookup: SiteLookup | None = None) -> Site | None:
    """Where a tensor was made, as far as the trackers that are held know. To be called inside `untouched`."""
    spot, _ = _making(tensor, lookup)
    return None if spot is None else spot.site


def history_of(tensor: torch.Tensor, lookup: SiteLookup | None = None) -> Name | None:
    """The name that a tensor was given where it was made, though no variable holds it now.

    The name is not `exact`: it was that of a variable which has gone or holds something else. Whoever knows a statement
    that read this tensor and rebound the variable can say more.
    """
    spot, code = _making(tensor, lookup)
    return None if spot is None or code is None else name_at(spot, code)


def name_at(spot: Spot, code: CodeType) -> Name | None:
    """The name that the value of an expression was given by its statement."""
    target = spot.site.target
    if not spot.whole or target is None:
        return None
    at_module_level = code.co_name == "<module>"
    how = "global" if at_module_level else "local"
    if not target.isidentifier():
        how = "item" if target.endswith("]") else "attribute"
    return Name(target, how, "__main__" if at_module_level else scope_of(code), exact=False, site=spot.site)


def rebound_by(former: Name | None, call: Call, operand: int | None = None) -> Name | None:
    """The exact name that a tensor had, if this call took it from a variable and its statement rebound that variable.

    Args:
        former: the name that the tensor was given where it was made, if that is known.
        call: a call that used the tensor.
        operand: as which of the operands, where that is known.
    """
    spot = call.spot()
    if spot is None or call.code is None or spot.site.target is None:
        return None
    variable = former.path if former is not None else None if operand is None else _taken(call, spot, operand)
    if variable is None or variable != spot.site.target or variable not in spot.reads:
        return None
    at_module_level = call.code.co_name == "<module>"
    how, scope = ("global", "__main__") if at_module_level else ("local", scope_of(call.code))
    return Name(variable, how, scope, True, rebound_at=spot.site, site=None if former is None else former.site)


def _making(tensor: torch.Tensor, lookup: SiteLookup | None) -> tuple[Spot | None, CodeType | None]:
    """Where a tensor came from: the call that made its node, or the note of its making."""
    if not TRACKERS:
        return None, None
    node = tensor.grad_fn
    if node is not None:
        return _making_of_result(tensor, (lookup or SiteLookup([tensor])).call(node))
    made = _made(tensor)
    if made is None:
        return None, None
    spot = locate(made.code, made.instruction)
    if made.first_sight:
        return _making_before(made.code, spot), made.code
    if made.passed_on is not None and not spot.whole:
        later = locate(*made.passed_on)
        if later.whole:
            spot = replace(spot, site=replace(spot.site, target=later.site.target), whole=True)
    return spot, made.code


def _making_of_result(tensor: torch.Tensor, call: Call | None) -> tuple[Spot | None, CodeType | None]:
    if call is None or (call.result is not None and call.result() is not tensor):
        return None, None
    spot = call.spot()
    if spot is None or call.inside:
        return (None if spot is None else replace(spot, whole=False)), call.code
    if call.result is None:
        return _unpacked(spot, tensor.output_nr), call.code
    return spot, call.code


def name_of_output(call: Call, number: int, output: int) -> Name | None:
    """The name that a result of a call was given, though the result itself is gone.

    Args:
        call: the call.
        number: the sequence number of the node whose output is meant; the last that a call makes is its result's.
        output: which of the node's outputs is meant.
    """
    spot = call.spot()
    if spot is None or call.code is None or call.inside or number != call.after - 1:
        return None
    return name_at(spot if call.result is not None else _unpacked(spot, output), call.code)


def _unpacked(spot: Spot, output: int) -> Spot:
    """The spot of one of several results: its target is one of those that the statement unpacks into."""
    if output >= len(spot.parts):
        return replace(spot, whole=False)
    return replace(spot, site=replace(spot.site, target=spot.parts[output]), whole=True)


def _made(tensor: torch.Tensor) -> Made | None:
    for tracker in list(TRACKERS):
        for log in tracker.logs:
            made = log.made.get(id(tensor))
            if made is not None and made() is tensor:
                return made
    return None


def _making_before(code: CodeType, sight: Spot) -> Spot | None:
    """The assignment that made the object of a statement such as ``delta.requires_grad = True``.

    Known when the object is made in the expression itself, or is a variable that one statement of the function binds to
    a new object, apart from those that compute the new value from the old.
    """
    if sight.made_here:
        return sight
    variable = sight.receiver or (sight.operands[0] if sight.operands else None)
    if variable is None or not variable.isidentifier():
        return None
    makers = [spot for spot in statements_binding(code, variable) if variable not in spot.reads]
    if len(makers) != 1 or makers[0].site.line > sight.site.line or not makers[0].made_here:
        return None
    return replace(makers[0], whole=True)


def _taken(call: Call, spot: Spot, operand: int) -> str | None:
    """The variable that a call took one of its node's inputs from, where the order of both is known to be the same."""
    name = getattr(call.function, "__name__", "")
    operands = list(spot.operands)
    if spot.receiver is not None and getattr(torch.Tensor, name, None) is call.function:
        operands.insert(0, spot.receiver)
    return operands[operand] if operand < len(operands) and call.after == call.before + 1 else None
