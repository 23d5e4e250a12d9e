"""Backward to NaN: the node that first turned finite gradients into NaN or Inf, found by a hook on every node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from byname.autograd.slots import has_freed_slot, slots_in
from byname.autograd.walk import Walk, node_name
from byname.diagnose.cause import Cause, Facts, Raised
from byname.diagnose.context import FailureContext
from byname.diagnose.finding import Finding, quote_operation, site_of
from byname.diagnose.nonfinite.reasons import is_finite, kind_of, looking, not_finite, operation_of, remedy_for, why
from byname.naming.describe import Describer
from byname.naming.name import Name, at
from byname.naming.names import find
from byname.naming.search import Targets
from byname.reading.quiet import DisableTorchFunction, dynamo_skip
from byname.reading.tensor import fact, is_tensor
from byname.source.location import Expression, Site
from byname.tracking.lookup import SiteLookup


@dataclass(frozen=True, slots=True)
class _Offence:
    """Facts about a gradient that is not finite, as a hook saw it.

    Attributes:
        number: the number of the node.
        how: ``turned`` if the node made it, ``came`` if it came in though no node made it, ``summed`` if it arose in
            the sum of a leaf's gradients.
        masked: whether the incoming gradient is 0 wherever the outgoing one is not finite.
    """

    number: int
    how: str
    kind: str
    count: int
    of: int
    why: str = ""
    remedy: str = ""
    masked: bool = False


class WatchedRun:
    """One backward call, watched by a hook on every node."""

    def __init__(self, walk: Walk, place: Expression | None) -> None:
        self.walk = walk
        self.place = place
        self.offence: _Offence | None = None
        self.done = False
        with looking():
            self._summed = {number for number in walk.leaf_numbers() if not _grad_is_finite(walk.nodes[number])}
        leaves = set(walk.leaf_numbers())
        self._handles = [
            node.register_hook(self._leaf_hook(number) if number in leaves else self._hook(number))
            for number, node in enumerate(walk.nodes)
            if node is not None
        ]

    def remove_hooks(self) -> None:
        """Remove the hooks from the graph."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _hook(self, number: int) -> Any:
        @dynamo_skip
        def look(outgoing: Any, incoming: Any) -> None:
            if not self.done and (bad := _first_bad(outgoing)) is not None:
                self._note(number, bad, incoming)

        return look

    def _leaf_hook(self, number: int) -> Any:
        @dynamo_skip
        def look(outgoing: Any, incoming: Any) -> None:
            if self.done:
                return
            bad = _first_bad(incoming)
            if bad is not None:
                self._note(number, bad, incoming)
            elif number not in self._summed and not _grad_is_finite(self.walk.nodes[number]):
                self._note(number, fact(self.walk.nodes[number].variable, "grad"), ())

        return look

    def _note(self, number: int, bad: torch.Tensor, incoming: Any) -> None:
        self.done = True
        with looking():
            came = _first_bad(incoming)
            leaf = not self.walk.inputs(number)
            how = "came" if came is not None else "summed" if leaf and not incoming else "turned"
            self.offence = _offence(self.walk, number, how, bad if came is None else came, incoming)


def _first_bad(gradients: Any) -> torch.Tensor | None:
    return next((one for one in gradients if one is not None and is_tensor(one) and not is_finite(one)), None)


def _grad_is_finite(node: Any) -> bool:
    with DisableTorchFunction():
        gradient = fact(node.variable, "grad")
    return gradient is None or is_finite(gradient)


def _offence(walk: Walk, number: int, how: str, bad: torch.Tensor, incoming: Any) -> _Offence:
    """Return the facts about a gradient, read while the node's saved tensors are there.

    Callers hold `DisableTorchFunction`.
    """
    mask, kind = not_finite(bad), kind_of(bad)
    count, of = int(mask.sum().item()), mask.numel()
    if how != "turned":
        return _Offence(number, how, kind, count, of)
    operation = operation_of(node_name(walk.nodes[number]))
    saved = {slot.name: slot.tensor for slot in slots_in(walk.nodes[number]) if slot.state == "live"}
    same = [one for one in incoming if one is not None and one.shape == bad.shape and one.layout is torch.strided]
    masked = bool(same) and not bool((same[0].detach()[mask] != 0).any().item())
    return _Offence(
        number,
        how,
        kind,
        count,
        of,
        why(operation, saved, bad),
        remedy_for(operation, bad.dtype, kind == "Inf"),
        masked,
    )


def of_backward(run: WatchedRun, offence: _Offence) -> tuple[tuple[Any, ...], Finding]:
    """Return a key under which to report the finding once, and the finding."""
    walk = run.walk
    node = walk.nodes[offence.number]
    lookup = walk.lookup()
    call = lookup.call(node) if lookup else None
    spot = None if call is None else call.line.spot
    mask = _mask(walk, offence.number, lookup) if offence.masked else None
    if offence.how == "turned":
        culprit = _result_name(walk, offence.number)
        message = _turned_in_backward(offence, operation_of(node_name(node)), spot, culprit, mask)
        remedy = _where_remedy(operation_of(node_name(node)), offence.remedy) if mask else offence.remedy
    else:
        culprit = _leaf_name(walk, offence.number) if not walk.inputs(offence.number) else None
        message, remedy = _came(offence, walk, node_name(node), culprit), _CAME[offence.how]
    sites = [None if spot is None else spot.site, mask[1] if mask else None, site_of(run.place)]
    finding = Finding(
        "non-finite-gradient",
        message,
        () if culprit is None else (culprit,),
        tuple(one for one in sites if one is not None),
        remedy,
    )
    where = (call.line.code, call.line.instruction) if call is not None else (node_name(node), site_of(run.place))
    return (*where, offence.how), finding


_CAME = {
    "came": "look at the gradient given to backward(), at hooks on tensors, and at the size of the gradients that are "
    "summed",
    "summed": "call optimizer.zero_grad() before each backward, or scale the loss down",
}


def _turned_in_backward(
    offence: _Offence,
    operation: str,
    spot: Expression | None,
    culprit: Name | None,
    mask: tuple[str, Site | None] | None,
) -> str:
    words = (
        f"the backward of {quote_operation(operation, spot, culprit)} turned finite gradients into {offence.kind} "
        f"({offence.count} of {offence.of})"
    )
    if offence.why:
        words += f": {offence.why}"
    if mask is not None:
        at = "" if mask[1] is None else f" at {mask[1]}"
        words += (
            f". The `{mask[0]}`{at} lies between it and the root, and the gradient that reached these elements is 0: "
            "the mask hides their values, and 0 times an infinite slope is NaN"
        )
    return words + "."


def _came(offence: _Offence, walk: Walk, name: str, culprit: Name | None) -> str:
    numbers = f"{offence.kind} ({offence.count} of {offence.of})"
    if offence.how == "summed":
        return f"the gradient of `{culprit}` became {numbers} when a finite gradient was added to a finite one there."
    if offence.number in walk.roots:
        return (
            f"the gradient that arrived at the root ({name}) holds {numbers}, though no operation of this backward "
            "made it: it was given to backward(), or put there by a hook."
        )
    whose = f"`{culprit}`" if culprit is not None else name
    return (
        f"the gradient that arrived at {whose} holds {numbers}, though every operation returned finite ones: the "
        "sum of several overflowed, or a hook changed one."
    )


def _where_remedy(operation: str, remedy: str) -> str:
    return (
        f"put a safe value inside as well, before `{operation}`: "
        f"torch.where(ok, {operation}(torch.where(ok, x, safe)), other); or {remedy}"
    )


def _mask(walk: Walk, number: int, lookup: SiteLookup) -> tuple[str, Site | None] | None:
    """Return the operation and the line of the nearest mask between a node and the root."""
    level, seen = [number], {number}
    while level:
        level = list(dict.fromkeys(user for below in level for user in walk.users[below] if user not in seen))
        seen.update(level)
        for user in level:
            kind = node_name(walk.nodes[user])
            if kind in _MASKS:
                spot = lookup.spot(walk.nodes[user]) if lookup else None
                return _MASKS[kind], site_of(spot)
    return None


_MASKS = {
    "WhereBackward0": "where",
    "MaskedFillBackward0": "masked_fill",
    "MaskedFillBackward1": "masked_fill",
    "MaskedSelectBackward0": "masked_select",
    "MaskedScatterBackward0": "masked_scatter",
    "IndexBackward0": "indexing",
    "IndexPutBackward0": "indexing",
}


def _result_name(walk: Walk, number: int) -> Name | None:
    """Return the name of a node's result: that of the living tensor, or else the name that its statement gave it."""
    findings = find(Targets([]), deep=False)
    with DisableTorchFunction():
        return Describer(walk, findings).result(number)


def _leaf_name(walk: Walk, number: int) -> Name | None:
    leaf = walk.nodes[number].variable
    return find(Targets([leaf])).names(leaf)[0]


def _returned_nan(context: FailureContext) -> Iterator[Facts]:
    """Yield the node that anomaly mode names: the last node of that name that the engine has run."""
    if not context.has_graph:
        return
    with DisableTorchFunction():
        named = [number for number in context.order() if node_name(context.walk.nodes[number]) == context.match[1]]
        ran = [number for number in named if has_freed_slot(context.walk.nodes[number])]
        mask = _mask(context.walk, (ran or named)[-1], context.lookup) if named else None
    if len(named) == 1 or ran:
        number = (ran or named)[-1]
        operation = context.match[1].rstrip("0123456789").removesuffix("Backward").lower()
        remedy = "byname run --non-finite tells which values cause it; exclude them before the operation, not after it"
        hides = ""
        if mask is not None:
            hides = f". The `{mask[0]}`{at(mask[1])} comes after it: a mask there hides its values, not their gradient"
            remedy = _where_remedy(operation, remedy)
        variable, made = context.variable(number), context.site(number)
        yield {"operation": operation, "variable": variable, "made": made, "hides": hides, "remedy": remedy}


ANOMALY: Cause[FailureContext] = Cause(
    "non-finite-gradient",
    Raised(RuntimeError, r"Function '(?:.*::)?(\w+)' returned nan values in its \d+th output"),
    _returned_nan,
    "the backward of {operation}, the operation that made {variable}{made:at}, returned NaN{hides}",
    "{remedy}",
)
