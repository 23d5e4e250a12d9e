"""Backward to NaN: the node that first turned finite gradients into NaN or Inf, found by a hook on every node."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from byname.autograd.slots import has_freed_slot, slots_in
from byname.autograd.walk import Node, Walk, node_name
from byname.diagnose.cause import Cause, Facts, Raised, Sentence, always, render
from byname.diagnose.context import FailureContext
from byname.diagnose.finding import Finding
from byname.diagnose.nonfinite.reasons import (
    Numbers,
    call_of,
    is_finite,
    not_finite,
    numbers_of,
    operation_of,
    reading_values,
    remedy_for,
    why,
)
from byname.naming.names import name
from byname.reading.frames import NO_LINE, Line
from byname.reading.quiet import DisableTorchFunction, dynamo_skip
from byname.reading.tensor import fact, is_tensor
from byname.source.location import Site


@dataclass(frozen=True, slots=True)
class _BadGradient:
    """Facts about a gradient that is not finite, as a hook saw it, and the number of its node."""

    number: int
    how: str  # "turned" by the node, "came" in though no node made it, or "summed" where a leaf adds its gradients
    numbers: Numbers
    why: str = ""
    remedy: str = ""
    masked: bool = False  # the incoming gradient is 0 wherever the outgoing one is not finite
    from_forward: bool = False  # the node has saved NaN or Inf, which the forward pass has made


class WatchedRun:
    """One backward call, watched by a hook on every node until one was `found` whose gradient is not finite."""

    bad_gradient: _BadGradient  # set when it is found

    def __init__(self, walk: Walk, site: Site | None) -> None:
        self.walk, self.site = walk, site
        self.context = FailureContext(walk.tensors)
        self.context.walk = walk
        self.done = self.found = False
        with reading_values():
            self._summed = {number for number in walk.leaf_numbers if not _grad_is_finite(walk.nodes[number])}
        leaves = set(walk.leaf_numbers)
        self._handles = [
            node.register_hook(self._hook(number, number in leaves))
            for number, node in enumerate(walk.nodes)
            if node is not None
        ]

    @property
    def known(self) -> Facts:
        return {"noticed": self.site, "numbers": self.bad_gradient.numbers}

    @property
    def node(self) -> Node:
        """The node whose gradient is not finite."""
        return self.walk.nodes[self.bad_gradient.number]

    @property
    def made(self) -> Line:
        call = self.context.lookup.call(self.node) if self.context.lookup else None
        return NO_LINE if call is None else call.line

    def remove_hooks(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _hook(self, number: int, is_leaf: bool) -> Any:
        @dynamo_skip
        def look(outgoing: Any, incoming: Any) -> None:
            if self.done:
                return
            bad = _first_bad(incoming if is_leaf else outgoing)
            if bad is not None:
                self._note(number, bad, incoming)
            elif is_leaf and number not in self._summed and not _grad_is_finite(self.walk.nodes[number]):
                self._note(number, fact(self.walk.nodes[number].variable, "grad"), ())

        return look

    def _note(self, number: int, bad: torch.Tensor, incoming: Any) -> None:
        self.done = True
        with reading_values():
            came = _first_bad(incoming)
            leaf = not self.walk.inputs[number]
            how = "came" if came is not None else "summed" if leaf and not incoming else "turned"
            self.bad_gradient = _describe_gradient(self.walk, number, how, bad if came is None else came, incoming)
            self.found = True


def _first_bad(gradients: Any) -> torch.Tensor | None:
    return next((one for one in gradients if one is not None and is_tensor(one) and not is_finite(one)), None)


def _grad_is_finite(node: Any) -> bool:
    with DisableTorchFunction():
        gradient = fact(node.variable, "grad")
    return gradient is None or is_finite(gradient)


def _describe_gradient(walk: Walk, number: int, how: str, bad: torch.Tensor, incoming: Any) -> _BadGradient:
    """Return the facts about a gradient, while the node's tensors are there. Callers hold `DisableTorchFunction`."""
    numbers = numbers_of(bad)
    if how != "turned":
        return _BadGradient(number, how, numbers)
    operation = operation_of(node_name(walk.nodes[number]))
    saved = {slot.name: slot.tensor for slot in slots_in(walk.nodes[number]) if slot.state == "live"}
    same = [one for one in incoming if one is not None and one.shape == bad.shape and one.layout is torch.strided]
    masked = bool(same) and not bool((same[0].detach()[not_finite(bad)] != 0).any().item())
    remedy = remedy_for(operation, bad.dtype, numbers.kind == "Inf")
    reason = why(operation, saved, bad)
    from_forward = not reason and any(one is not None and not is_finite(one) for one in saved.values())
    return _BadGradient(number, how, numbers, reason, remedy, masked, from_forward)


def of_backward(run: WatchedRun) -> tuple[tuple[Any, ...], Finding]:
    """Return a key under which to report the finding once, and the finding."""
    finding = next(finding for cause in IN_BACKWARD for finding in cause.findings(run))
    where = (node_name(run.node), run.site) if run.made.code is None else run.made.place
    return (*where, run.bad_gradient.how), finding


def _turned(run: WatchedRun) -> Iterator[Facts]:
    """Yield the operation whose backward made NaN or Inf, and the mask that hides its values."""
    bad_gradient, operation = run.bad_gradient, operation_of(node_name(run.node))
    mask, hides = _mask(run.context, bad_gradient.number) if bad_gradient.masked else None, ""
    if mask is not None:
        hides = render(
            ". The {mask} lies between it and the root, and the gradient that reached these elements is 0: the mask "
            "hides their values, and 0 times an infinite slope is NaN",
            mask=mask,
        )
    yield {
        "operation": call_of(operation, run.made.site, run.context.describer.result(bad_gradient.number)),
        "why": bad_gradient.why and f": {bad_gradient.why}",
        "hides": hides,
        "remedy": _where_remedy(operation, bad_gradient.remedy) if mask is not None else bad_gradient.remedy,
    }


def _arrived(run: WatchedRun) -> Iterator[Facts]:
    """Yield the leaf, or the node, at which NaN or Inf arrived."""
    leaf = None if run.walk.inputs[run.bad_gradient.number] else run.node.variable
    kind = node_name(run.node)
    yield {"node": kind, "where": kind if leaf is None else name(leaf), "made": run.made.site}


def _where_remedy(operation: str, remedy: str) -> str:
    return (
        f"put a safe value inside as well, before `{operation}`: "
        f"torch.where(ok, {operation}(torch.where(ok, x, safe)), other); or {remedy}"
    )


def _mask(context: FailureContext, number: int) -> Sentence | None:
    """Return the operation and the line of the nearest mask between a node and the root."""
    level, seen = [number], {number}
    while level:
        users = [user for below in level for user in context.walk.users[below]]
        level = [user for user in dict.fromkeys(users) if user not in seen]
        seen.update(level)
        for user in level:
            kind = node_name(context.walk.nodes[user])
            if kind in _MASKS:
                return render("`{kind}`{made:at}", kind=_MASKS[kind], made=context.site(user))
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


def _returned_nan(context: FailureContext) -> Iterator[Facts]:
    """Yield the node that anomaly mode names: the last node of that name that the engine has run."""
    if not context.has_graph:
        return
    named = [number for number in context.order() if node_name(context.walk.nodes[number]) == context.match[1]]
    ran = [number for number in named if has_freed_slot(context.walk.nodes[number])]
    mask = _mask(context, (ran or named)[-1]) if named else None
    if len(named) == 1 or ran:
        number = (ran or named)[-1]
        operation = context.match[1].rstrip("0123456789").removesuffix("Backward").lower()
        remedy = "byname run --non-finite tells which values cause it; exclude them before the operation, not after it"
        hides = ""
        if mask is not None:
            hides = f". The {mask} comes after it: a mask there hides its values, not their gradient"
            remedy = _where_remedy(operation, remedy)
        variable, made = context.variable(number), context.site(number)
        yield {"operation": operation, "variable": variable, "made": made, "hides": hides, "remedy": remedy}


_HOOKED = (
    "look at the gradient given to backward(), at hooks on tensors, and at the size of the gradients that are summed"
)

# fmt: off
IN_BACKWARD: tuple[Cause[WatchedRun], ...] = (
    Cause("non-finite-gradient", lambda run: run.bad_gradient.how == "turned", _turned,
        "the backward of {operation} turned finite gradients into {numbers}{why}{hides}", "{remedy}"),
    Cause("non-finite-gradient", lambda run: run.bad_gradient.how == "summed", _arrived,
        "the gradient of {where} became {numbers} when a finite gradient was added to a finite one there{made:-}",
        "call optimizer.zero_grad() before each backward, or scale the loss down"),
    Cause("non-finite-gradient", lambda run: run.bad_gradient.number in run.walk.roots, _arrived,
        "the gradient that arrived at the root ({node}) holds {numbers}, though no operation of this backward made it: "
        "it was given to backward(), or put there by a hook{made:-}",
        _HOOKED),
    Cause("non-finite-gradient", always, _arrived,
        "the gradient that arrived at {where} holds {numbers}, though every operation returned finite ones: the sum of "
        "several overflowed, or a hook changed one{made:-}",
        _HOOKED),
)
"""The causes of a gradient that is not finite, in the order in which they are looked for; there is always one."""

ANOMALY: Cause[FailureContext] = Cause("non-finite-gradient",
    Raised(RuntimeError, r"Function '(?:.*::)?(\w+)' returned nan values in its \d+th output"),
    _returned_nan,
    "the backward of {operation}, the operation that made {variable}{made:at}, returned NaN{hides}", "{remedy}")
