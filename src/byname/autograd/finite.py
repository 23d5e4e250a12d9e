"""Which operation first turned finite numbers into NaN or Inf?

In the forward pass a function mode follows them from the call that made them. In backward a hook on every node finds
the first whose incoming gradients are finite and whose outgoing ones are not.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from byname.autograd.finding import Finding
from byname.autograd.numbers import is_finite, kind_of, looking, not_finite
from byname.autograd.origins import Origin, Origins, OriginsMode
from byname.autograd.results import NamedResults
from byname.autograd.singular import operation_of, remedy_for, why
from byname.autograd.slots import Slot, slots_of
from byname.autograd.walk import Walk, node_name
from byname.card import fact, is_tensor
from byname.errors import NoGraphError, NotATensorError
from byname.naming.frames import caller
from byname.naming.name import Name
from byname.naming.names import find
from byname.naming.search import Targets
from byname.naming.sites import SiteLookup, name_at, name_of_output
from byname.quiet import eager, untouched
from byname.site import Site, Spot, locate

__all__ = ["FiniteWatch"]


class FiniteWatch:
    """Reports, once for each line, what first turned finite numbers into NaN or Inf.

    Args:
        report: is called with each finding, in the thread that ran backward.
    """

    def __init__(self, report: Callable[[Finding], None]) -> None:
        self._report = report
        self._origins = Origins()
        self._told: set[tuple[Any, ...]] = set()
        self._local = threading.local()

    @contextmanager
    def forward(self) -> Iterator[None]:
        """Follows what this thread computes."""
        mode = OriginsMode(self._origins)
        mode.start()
        try:
            yield
        finally:
            mode.stop()

    def before_backward(self, roots: Sequence[Any], inputs: Any = None) -> None:
        """To be called before each run of the engine, in its thread, and always followed by `after_backward`."""
        runs = self._runs()
        runs.append(None)
        walk = _walk(roots)
        if walk is None:
            return
        frame = caller()
        place = None if frame is None else locate(frame.f_code, frame.f_lasti)
        bad = [root for root in walk.tensors if not is_finite(root)]
        if bad:
            self._tell(*_of_forward(walk, bad[0], self._origins, place))
        else:
            runs[-1] = _Run(walk, place)

    def after_backward(self) -> None:
        """Takes the hooks away again, and reports."""
        run = self._runs().pop()
        if run is None:
            return
        run.remove_hooks()
        if run.offence is not None:
            for outer in self._runs():
                if outer is not None:
                    outer.done = True
            self._tell(*_of_backward(run, run.offence))

    def _tell(self, key: tuple[Any, ...], finding: Finding) -> None:
        if key not in self._told:
            self._told.add(key)
            self._report(finding)

    def _runs(self) -> list[_Run | None]:
        if not hasattr(self._local, "runs"):
            self._local.runs = []
        runs: list[_Run | None] = self._local.runs
        return runs


def _walk(roots: Sequence[Any]) -> Walk | None:
    compiled = sys.modules.get("torch._dynamo.compiled_autograd")
    if compiled is not None and compiled.compiled_autograd_enabled:
        return None  # hooks would be compiled into the graph
    try:
        return Walk(tuple(roots))
    except (NoGraphError, NotATensorError):  # the engine says so itself, and better
        return None


@dataclass(frozen=True, slots=True)
class _Offence:
    """What a hook saw: plain facts only.

    Attributes:
        number: the number of the node.
        how: ``turned``, ``came`` (what came in was not finite though no node made it so) or ``summed`` (into a leaf's
            gradient).
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


class _Run:
    """One run of the engine, watched by a hook on every node."""

    def __init__(self, walk: Walk, place: Spot | None) -> None:
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
        """Leaves the graph as it was."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def _hook(self, number: int) -> Any:
        @eager
        def look(outgoing: Any, incoming: Any) -> None:
            if not self.done and (bad := _first_bad(outgoing)) is not None:
                self._note(number, bad, incoming)

        return look

    def _leaf_hook(self, number: int) -> Any:
        @eager
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
    with untouched():
        gradient = fact(node.variable, "grad")
    return gradient is None or is_finite(gradient)


def _offence(walk: Walk, number: int, how: str, bad: torch.Tensor, incoming: Any) -> _Offence:
    """The facts of an offence, read while the node's saved tensors are there. To be called inside `untouched`."""
    mask, kind = not_finite(bad), kind_of(bad)
    count, of = int(mask.sum().item()), mask.numel()
    if how != "turned":
        return _Offence(number, how, kind, count, of)
    operation = operation_of(node_name(walk.nodes[number]))
    saved = {slot.name: slot.tensor for slot in _slots(walk, number) if slot.state == "live"}
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


class _OneNode:
    """As much of a walk as reading the slots of one node needs."""

    def __init__(self, node: Any) -> None:
        self.nodes = [None, node]


def _slots(walk: Walk, number: int) -> list[Slot]:
    return list(slots_of(_OneNode(walk.nodes[number])))  # type: ignore[arg-type]


def _of_backward(run: _Run, offence: _Offence) -> tuple[tuple[Any, ...], Finding]:
    """The finding of an offence, and the key under which it is told once."""
    walk = run.walk
    node = walk.nodes[offence.number]
    lookup = walk.lookup()
    call = lookup.call(node) if lookup else None
    spot = None if call is None else call.spot()
    mask = _mask(walk, offence.number, lookup) if offence.masked else None
    if offence.how == "turned":
        culprit = _result_name(walk, offence.number, lookup)
        message = _turned_in_backward(offence, operation_of(node_name(node)), spot, culprit, mask)
        remedy = _where_remedy(operation_of(node_name(node)), offence.remedy) if mask else offence.remedy
    else:
        culprit = _leaf_name(walk, offence.number) if not walk.inputs(offence.number) else None
        message, remedy = _came(offence, walk, node_name(node), culprit), _CAME[offence.how]
    sites = [None if spot is None else spot.site, mask[1] if mask else None, _site(run.place)]
    finding = Finding(
        "non-finite-gradient",
        message,
        () if culprit is None else (culprit,),
        tuple(one for one in sites if one is not None),
        remedy,
    )
    where = (call.code, call.instruction) if call is not None else (node_name(node), _site(run.place))
    return (*where, offence.how), finding


_CAME = {
    "came": "look at the gradient given to backward(), at hooks on tensors, and at the size of the gradients that are "
    "summed",
    "summed": "call optimizer.zero_grad() before each backward, or scale the loss down",
}


def _turned_in_backward(
    offence: _Offence, operation: str, spot: Spot | None, culprit: Name | None, mask: tuple[str, Site | None] | None
) -> str:
    words = (
        f"the backward of {_said(operation, spot, culprit)} turned finite gradients into {offence.kind} "
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
        return f"the gradient of `{culprit}` became {numbers} when a finite gradient was added to the finite one there."
    if offence.number in walk.roots:
        return (
            f"the gradient that came to the root ({name}) holds {numbers} though no operation of this backward made "
            "it: it was given to backward(), or put there by a hook."
        )
    whose = f"`{culprit}`" if culprit is not None else name
    return (
        f"the gradient that came to {whose} holds {numbers} though every operation gave finite ones: several "
        "overflowed in their sum, or a hook changed one."
    )


def _where_remedy(operation: str, remedy: str) -> str:
    return (
        f"put a safe value inside as well, before `{operation}`: "
        f"torch.where(ok, {operation}(torch.where(ok, x, safe)), other); or {remedy}"
    )


def _said(operation: str, spot: Spot | None, culprit: Name | None) -> str:
    words = f"`{operation}`"
    if spot is not None:
        words += f" at {spot.site}" + (f" (`{spot.site.statement}`)" if spot.site.statement else "")
    if culprit is not None and culprit.path:
        words += f", which made `{culprit.path}`,"
    return words


def _site(place: Spot | None) -> Site | None:
    return None if place is None else place.site


def _mask(walk: Walk, number: int, lookup: SiteLookup) -> tuple[str, Site | None] | None:
    """The mask nearest above a node: its operation, and where it stands."""
    above: list[list[int]] = [[] for _ in walk.nodes]
    for user, row in enumerate(walk.rows):
        for below in row:
            above[below].append(user)
    level, seen = [number], {number}
    while level:
        level = list(dict.fromkeys(user for below in level for user in above[below] if user not in seen))
        seen.update(level)
        for user in level:
            kind = node_name(walk.nodes[user])
            if kind in _MASKS:
                spot = lookup.spot(walk.nodes[user]) if lookup else None
                return _MASKS[kind], _site(spot)
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


def _result_name(walk: Walk, number: int, lookup: SiteLookup) -> Name | None:
    """The name of a node's result: of the living tensor, else what its statement called it."""
    node = walk.nodes[number]
    findings = find(Targets([]), deep=False)
    with untouched():
        named = NamedResults(walk, findings).name(number)
        call = lookup.call(node) if lookup else None
        return named or (None if call is None else name_of_output(call, node._sequence_nr(), 0))


def _leaf_name(walk: Walk, number: int) -> Name | None:
    leaf = walk.nodes[number].variable
    return find(Targets([leaf])).names(leaf)[0]


def _of_forward(
    walk: Walk, root: torch.Tensor, origins: Origins, place: Spot | None
) -> tuple[tuple[Any, ...], Finding]:
    """The finding for a root that is not finite itself."""
    origin = origins.of(root)
    if origin is None:
        tensor, origin = _earliest(walk, root, origins)
    else:
        tensor = None if origin.source is None else origin.source()
    if origin is not None and origin.turned:
        return (origin.code, origin.instruction, "forward"), _turned_in_forward(origin, place)
    return _was_there(walk, tensor, origin, place)


def _earliest(walk: Walk, root: torch.Tensor, origins: Origins) -> tuple[torch.Tensor | None, Origin | None]:
    """The first tensor in the graph that is not finite, where nobody followed the forward pass."""
    order = sorted(range(1, len(walk.nodes)), key=lambda number: walk.nodes[number]._sequence_nr())
    leaves = set(walk.leaf_numbers())
    with untouched():
        held = [walk.nodes[number].variable for number in sorted(leaves)]
        saved = (slot.tensor for number in order if number not in leaves for slot in _slots(walk, number))
        for tensor in (*held, *saved, root):
            if tensor is not None and not is_finite(tensor):
                return tensor, origins.of(tensor)
    return None, None


def _turned_in_forward(origin: Origin, place: Spot | None) -> Finding:
    spot = None if origin.code is None else locate(origin.code, origin.instruction)
    culprit = _called(origin, spot)
    message = (
        f"{_said(origin.operation, spot, culprit)} turned {origin.was} into {origin.kind} in the forward pass "
        f"({origin.count} of {origin.of})" + (f": {origin.why}." if origin.why else ".")
    )
    sites = tuple(one for one in (_site(spot), _site(place)) if one is not None)
    return Finding("non-finite-gradient", message, () if culprit is None else (culprit,), sites, origin.remedy)


def _called(origin: Origin, spot: Spot | None) -> Name | None:
    """The name of the call's result."""
    result = None if origin.result is None else origin.result()
    if result is not None:
        named = find(Targets([result]), deep=False).own_names(result)
        if named:
            return named[0]
    return None if spot is None or origin.code is None else name_at(spot, origin.code)


def _was_there(
    walk: Walk, tensor: torch.Tensor | None, origin: Origin | None, place: Spot | None
) -> tuple[tuple[Any, ...], Finding]:
    """The finding for values that were not finite before any operation that was seen."""
    spot = None if origin is None or origin.code is None else locate(origin.code, origin.instruction)
    used = f", first used by {_said(origin.operation, spot, None)}" if origin is not None and spot is not None else ""
    sites = tuple(one for one in (_site(spot), _site(place)) if one is not None)
    key: tuple[Any, ...]
    if tensor is None and origin is not None and origin.source is None:
        return (origin.code, origin.instruction, "given"), _given(origin, spot, sites)
    if tensor is None:
        kind = origin.kind if origin is not None else "NaN or Inf"
        message = f"the root holds {kind}, and it is not known which operation made it{used}."
        key = (None if origin is None else (origin.code, origin.instruction), _site(place))
        return key, Finding("non-finite-gradient", message, (), sites, _UNKNOWN)
    named = find(Targets([tensor])).names(tensor)[0]
    with looking():
        mask, kind, node = not_finite(tensor), kind_of(tensor), fact(tensor, "grad_fn")
        is_leaf = node is None and fact(tensor, "requires_grad")
    numbers = f"{kind} ({int(mask.sum().item())} of {mask.numel()})"
    whose = f"`{named.path}`" if named.path else f"a tensor that has no name, of shape {tuple(mask.shape)},"
    if node is not None:
        message = f"{whose}, the result of {node_name(node)}, holds {numbers}{used}; what happened inside was not seen."
        remedy = f"look into the forward of {node_name(node).removesuffix('Backward')}: its operations are hidden"
    elif is_leaf:
        message = f"{whose} holds {numbers} already{used}: no operation of this forward pass turned it."
        remedy = "look at an earlier optimizer step, at what was loaded into it, or at how it was initialised"
    else:
        message = f"{whose} holds {numbers} already{used}: it is the data, no operation seen here turned it."
        remedy = "look at where the data comes from; torch.nan_to_num or a mask takes such values out"
    key = ("there", named.path, named.scope) if named.path else ("there", spot and spot.site, _site(place))
    return key, Finding("non-finite-gradient", message, (named,) if named.path else (), sites, remedy)


def _given(origin: Origin, spot: Spot | None, sites: tuple[Site, ...]) -> Finding:
    """The finding for numbers that the program itself wrote or read as NaN or Inf."""
    culprit = _called(origin, spot)
    message = (
        f"{_said(origin.operation, spot, culprit)} was given {origin.kind} ({origin.count} of {origin.of}), and this "
        "reached the root: no operation turned it."
    )
    remedy = "look at where these numbers come from; torch.nan_to_num or a mask takes them out"
    return Finding("non-finite-gradient", message, () if culprit is None else (culprit,), sites, remedy)


_UNKNOWN = "run the forward pass inside byname.explaining(non_finite=True), so that its operations are followed"
