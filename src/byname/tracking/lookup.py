"""Lookup: where a node or a tensor was made, according to the logs of the trackers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from types import CodeType
from typing import Any

import torch

from byname.reading.functions import is_in_place
from byname.reading.tensor import fact, memory_of
from byname.source.code import binds_alone
from byname.source.location import Expression, Site, statements_binding
from byname.tracking.log import TRACKERS, Call, CallFinder, CreationRecord, changes_of, logs


class SiteLookup:
    """Finds the calls that made the nodes of one graph.

    Each thread has its own sequence numbers, and a node does not record its thread. So a log is used for a graph only
    if a living result of one of its calls is in that graph. A node is matched with a call only if no other log claims
    it too and the call can have made such a node. Every other node has no location rather than a wrong one.

    Args:
        roots: the living tensors at the root of the graph.
        holds: a function that returns whether a node is in the graph.
    """

    def __init__(self, roots: Iterable[torch.Tensor] = (), holds: Callable[[Any], bool] | None = None) -> None:
        known = list(roots)
        finders = [CallFinder(log) for log in logs() if log.calls]
        self._logs = [log for log in finders if _belongs(log, known, holds)]
        if holds is not None:  # a whole graph
            for log in self._logs:
                log.index()
        self._calls: dict[Any, Call | None] = {}
        self._exprs: dict[tuple[int, int, int, int], Expression | None] = {}
        self._verdicts: dict[tuple[int, type], bool] = {}

    def __bool__(self) -> bool:
        return bool(self._logs)

    def call(self, node: Any) -> Call | None:
        if node not in self._calls:
            every = [log.at(node._sequence_nr()) for log in self._logs]
            found = [call for call in every if call is not None and self._can_make(call, node)]
            one_line = len(found) == 1 or len({call.line.place for call in found}) == 1
            self._calls[node] = found[0] if one_line else None
        return self._calls[node]

    def expr(self, node: Any) -> Expression | None:
        call = self.call(node)
        return None if call is None else self.expr_of(call)

    def expr_of(self, call: Call) -> Expression | None:
        code, instruction, caller = call.line
        key = (id(code), instruction, *((0, -1) if caller is None else (id(caller[0]), caller[1])))  # the log lives on
        if key not in self._exprs:
            self._exprs[key] = call.line.expr
        return self._exprs[key]

    def _can_make(self, call: Call, node: Any) -> bool:
        """Return whether a call can have made a node, judged by their names."""
        if call.after != call.before + 1:
            return True
        key = id(call.called), type(node)  # the log keeps what was called
        verdict = self._verdicts.get(key)
        if verdict is None:
            name = node.name().rpartition("::")[2]
            made = name.lower().rpartition("backward")[0]  # `mul` for a MulBackward0
            requested = call.name.strip("_").lower().replace("truediv", "div")
            verdict = requested == made or not (requested in _OWN_NODE and made in _OWN_NODE)
            if name == type(node).__name__:  # otherwise nodes of this class have various names
                self._verdicts[key] = verdict
        return verdict


def _belongs(log: CallFinder, roots: Sequence[torch.Tensor], holds: Callable[[Any], bool] | None) -> bool:
    """Return whether a log's thread is known to have made a part of the graph."""
    for root in roots:
        node = fact(root, "grad_fn")
        call = None if node is None else log.at(node._sequence_nr())
        first = None if call is None or call.first is None else call.first()
        if first is not None and fact(first, "grad_fn") is node:
            return True
    if holds is None:
        return False
    return any((node := fact(result, "grad_fn")) is not None and holds(node) for result in log.living_results())


_OWN_NODE = frozenset(
    "abs acos add asin atan bmm cat ceil clamp clone cos cosh cumsum div erf exp expm1 floor gelu log log10 log1p log2 "
    "logsumexp max mean min mm mul neg permute pow prod reciprocal relu round rsqrt select sigmoid sign silu sin sinh "
    "softmax softplus sort split sqrt squeeze stack std sub sum tan tanh transpose tril triu unbind unsqueeze var view "
    "where".split()
)
"""Functions that only make nodes of their own name: a call of one cannot have made the node of another."""


def site_of_tensor(tensor: torch.Tensor, lookup: SiteLookup | None = None) -> Site | None:
    """Return the location that made a tensor, if an existing tracker saw it. Callers hold `DisableTorchFunction`."""
    expr, _ = making_of(tensor, lookup)
    return None if expr is None or expr.in_place else expr.site


def made_last(tensor: torch.Tensor) -> Site | None:
    """Return the line that gave a tensor its values, by the last change in place or at its making."""
    changes = changes_of(memory_of(tensor))
    return changes[-1].line.site if changes else site_of_tensor(tensor)


def making_of(tensor: torch.Tensor, lookup: SiteLookup | None) -> tuple[Expression | None, CodeType | None]:
    """Return the expression that made a tensor and its code object, from its node's call or its creation record."""
    if not TRACKERS:
        return None, None
    node = fact(tensor, "grad_fn")
    if node is not None:
        lookup = lookup or SiteLookup([tensor])
        return _making_of_result(tensor, lookup.call(node), lookup)
    made = creation_record_of(tensor)
    if made is None:
        return None, None
    code, expr = made.line.code, made.line.expr
    if code is None or expr is None:
        return None, None
    if made.made_unseen:
        return _making_before(code, expr), code
    later = None if made.passed_on is None or expr.whole else made.passed_on.expr
    if later is not None and later.whole:
        expr = expr._replace(site=replace(expr.site, target=later.site.target), whole=True)
    return expr, code


def _making_of_result(
    tensor: torch.Tensor, call: Call | None, lookup: SiteLookup
) -> tuple[Expression | None, CodeType | None]:
    if call is None or (call.result is not None and call.result() is not tensor):
        return None, None
    expr = lookup.expr_of(call)
    if expr is None or call.inside:
        return (None if expr is None else expr._replace(whole=False)), call.line.code
    if is_in_place(call.name):
        return expr._replace(in_place=True), call.line.code
    if call.result is None:
        return output_expr(expr, fact(tensor, "output_nr")), call.line.code
    return expr, call.line.code


def output_expr(expr: Expression, output: int) -> Expression:
    """Return the location of one of several results, with the target that the statement unpacks this result into."""
    if output >= len(expr.parts):
        return expr._replace(whole=False)
    return expr._replace(site=replace(expr.site, target=expr.parts[output]), whole=True)


def creation_record_of(tensor: torch.Tensor) -> CreationRecord | None:
    return next((made for log in logs() if (made := log.made(tensor)) is not None), None)


def _making_before(code: CodeType, sight: Expression) -> Expression | None:
    """Return the assignment that made the object of a statement such as ``delta.requires_grad = True``.

    It is known if the expression itself makes the object, or if the object is a variable that only one statement binds,
    and binds to a new object. Statements that compute the new value from the old one do not count.
    """
    if sight.made_here:
        return sight
    variable = sight.receiver or (sight.operands[0] if sight.operands else None)
    if variable is None or not variable.isidentifier() or not binds_alone(code, variable):
        return None
    makers = [expr for expr in statements_binding(code, variable) if variable not in expr.reads]
    if len(makers) != 1 or makers[0].site.line > sight.site.line or not makers[0].made_here:
        return None
    return makers[0]._replace(whole=True)
