"""Not reached: no-grad-path, detached-parameter.

Each finding names the call that cut a tensor off from the graph and how sure that is, or the inputs and parameters that
a loss does not reach though the program expects it to.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType
from typing import Any, NamedTuple

import torch
from torch import nn

from byname.autograd.slots import slots_of
from byname.autograd.walk import has_graph, leaf_tensors, nodes_behind, opaque_reason, why_no_graph
from byname.diagnose.cause import Cause, Facts, Raised, any_of, is_before_backward, render, variable
from byname.diagnose.causes.cuts import DETACHES, MOST_PLACES, NUMBERS, cut_before, is_of_state, remedy_of, sentence_of
from byname.diagnose.context import FailureContext, node_of
from byname.diagnose.engine import first_run
from byname.diagnose.finding import Finding
from byname.naming.children.torch import gathered_parameters, is_sharded
from byname.naming.name import at, quote
from byname.reading.modules import modules_in, own_parameters, parameters_in, parameters_of
from byname.reading.objects import attributes_of, living
from byname.reading.tensor import fact, is_tensor
from byname.source.code import definition_of, enclosing_statement
from byname.source.location import Site, is_library, locate
from byname.tracking.log import Call, DetachPoint, Log, logs
from byname.tracking.lookup import site_of_tensor


def _without_graph(context: FailureContext) -> torch.Tensor | None:
    return next((root for root in context.roots if is_tensor(root) and not has_graph(root)), None)


def _cut(context: FailureContext) -> Iterator[Facts]:
    root = _without_graph(context)
    facts = None if root is None else cut_before(context, root)
    optimized = {id(one) for optimizer in living(torch.optim.Optimizer) for one in parameters_of(optimizer)}
    seen = [] if root is None else _seen_frozen(root)
    frozen = [one for _, _, one in seen if id(one) in optimized and not fact(one, "requires_grad")]
    if facts is not None and frozen and DETACHES[0] in facts["remedy"]:
        says = "{why}, and {names} {names:does|do} not require grad"
        facts["why"] = render(says, why=facts["why"], names=context.names(frozen))
        facts["remedy"] += _UNFREEZE
    return iter([] if facts is None else [facts])


_UNFREEZE = (
    "; if this loss should train parameters that were frozen for another, call requires_grad_(True) before its forward "
    "(in Lightning untoggle_optimizer() after toggle_optimizer())"
)


def _seen_frozen(root: torch.Tensor) -> list[tuple[CodeType | None, int, torch.Tensor]]:
    """Return the living tensors that the tracker of a loss saw frozen by ``requires_grad``, each with the place."""
    seen = [sight for log in logs() if log.made(root) is not None for sight in log.frozen]
    return [(code, at_, tensor) for code, at_, reference in seen if (tensor := reference()) is not None]


def _frozen(context: FailureContext) -> Iterator[Facts]:
    """Yield the frozen parameters, if nothing that requires grad went into the loss."""
    root = _without_graph(context)
    given: list[torch.Tensor] = [one for model in context.models for one in parameters_in(model)]
    if root is None or any(fact(one, "requires_grad") for one in given):
        return
    alive = _seen_frozen(root)
    frozen = given or [tensor for _, _, tensor in alive if not fact(tensor, "requires_grad")]
    names = tuple(context.names(frozen)) if frozen else ()
    if names:
        sites = list(dict.fromkeys(locate(code, where).site for code, where, _ in alive if code is not None))
        yield {"names": names, "where": at(sites[0] if sites else None), "sites": sites}


def _unseen(context: FailureContext) -> Iterator[Facts]:
    """Yield the tensor without a graph, for a cut that no tracker saw."""
    root = _without_graph(context)
    if root is not None:
        made, name = site_of_tensor(root), quote(context.name(root))
        why = why_no_graph(root, made)
        remedy = "" if made or logs() else "byname.explaining() around the forward remembers which line cut it off"
        held = {key for key, one in context.variables().items() if is_tensor(one) and fact(one, "grad_fn") is not None}
        names = tuple(map(variable, sorted(held - {*re.findall(r"\w+", getattr(made, "statement", ""))})))
        if names and made is not None and context.error_site and made.function == context.error_site.function:
            says = "{why}. {names} {names:has|have} a graph, and that line does not use {names:it|them}"
            why = render(says, why=why.partition(". Either")[0], names=names)
            remedy = "compute the loss from what the model gives"
        yield {"name": name, "why": why, "made": made, "remedy": remedy}


IS, PROBABLY, MAY_BE = "is", "is probably", "may be"
"""Degrees of certainty that a call cut a parameter off from a loss."""


class Unreached(NamedTuple):
    """Parameters that a loss does not reach, with the calls that cut them off."""

    parameters: list[torch.Tensor]
    cuts: list[DetachPoint]  # none if none was seen, several if any of them may be the one
    certainty: str  # IS, PROBABLY or MAY_BE

    def facts(self, context: FailureContext) -> Facts:
        names = tuple(context.names(self.parameters))
        remedy = "compute the loss with them, or freeze them with requires_grad_(False)"
        way = "" if logs() else "; byname.track() around the forward tells which line cuts the path, if one does"
        if self.cuts:
            places = dict.fromkeys(sentence_of(context, cut) for cut in self.cuts)  # several on a line may be the same
            way = f". The path {self.certainty} cut here: {'; or '.join(places)}"
            they = "it" if len(names) == 1 else "they"
            remedy = f"if {they} should learn, {remedy_of(self.cuts[0])}; if not, requires_grad_(False) says so"
        return {"names": names, "way": way, "cuts": [cut.line.site for cut in self.cuts], "remedy": remedy}

    def finding(self, context: FailureContext) -> Finding:
        return DETACHED.finding({"noticed": context.error_site, **self.facts(context)})


def unreached_parameters(context: FailureContext, missing: Sequence[torch.Tensor]) -> list[Unreached]:
    """Return the parameters that a loss does not reach, grouped by the calls that cut them off."""
    groups: dict[Any, Unreached] = {}
    for one, cuts, certainty in _cuts_behind(context, missing):
        key = (*(cut.line.place for cut in cuts), certainty)
        groups.setdefault(key, Unreached([], cuts, certainty)).parameters.append(one)
    return list(groups.values())


def _cuts_behind(
    context: FailureContext, parameters: Sequence[torch.Tensor]
) -> Iterator[tuple[torch.Tensor, list[DetachPoint], str]]:
    """Yield each of some parameters with the calls that can have cut it off from a loss, and how sure that is."""
    evidence = [_Evidence(context, log) for log in logs()] if parameters else []
    for one in parameters:
        found = (behind for log in evidence if (behind := log.cuts_behind(one))[0])
        yield one, *next(found, ([], MAY_BE))


def cuts_beside(context: FailureContext, parameters: Iterable[torch.Tensor]) -> list[tuple[DetachPoint, str]]:
    """Return the first call that detaches a result of parameters, and how sure that is; others may not detach it."""
    behind = [(cut, certainty) for _, cuts, certainty in _cuts_behind(context, [*parameters]) for cut in cuts]
    return [(cut, certainty) for cut, certainty in behind if cut.reason or cut.name in DETACHES][:1]


class Use(NamedTuple):
    """The last recorded use of some parameters: the line, and the call that cut the result off, if one did."""

    site: Site | None
    cut: DetachPoint | None


def last_use(parameters: Sequence[torch.Tensor]) -> Use | None:
    """Return the last recorded use of some parameters, without a line if there are several; None if there is none."""
    calls = {key: call for log in logs() for key, call in _last_uses(log, 0).items()}
    cuts = {id(one()): cut for log in logs() for cut in log.detaches for one, _ in cut.inputs}
    found: dict[Site | None, Use] = {}
    for one in parameters:
        call, cut = calls.get(id(one)), cuts.get(id(one))
        cut = None if cut is None or _is_of_copy(cut) else cut
        used = call or cut
        use = Use(None if used is None else used.line.site, cut if call is None else None)
        found[use.site] = use
    if len(found) == 1 and use.site is not None and not is_library(use.site.file):
        return use
    return None if None in found else Use(None, None)


class _Evidence:
    """The facts that one log has about the detach points before a loss, gathered once for all its parameters.

    Only calls of this forward pass count: an earlier evaluation under ``no_grad`` cuts nothing off from the loss.
    """

    def __init__(self, context: FailureContext, log: Log) -> None:
        saved = [slot.tensor for slot in slots_of(context.walk) if slot.tensor is not None]
        anew = [(one, cut) for one in context.leaves for cut in log.detaches_of(one) if not _is_of_library(cut)]
        held = [cut for one in saved for cut in log.detaches_of(one) if cut.name != "data" or not _is_of_library(cut)]
        self._carried = list({id(cut.inputs): cut for cut in [*held, *(cut for _, cut in anew)]}.values())
        self._anew = {fact(one, "shape"): cut for one, cut in anew}
        self._carried = [cut for cut in self._carried if cut.name != "grad"]  # as in an attack: meant to be constant
        begin = _begin(context)
        every = (cut for cut in log.detaches if cut.name != "grad")
        # A block under no_grad right before the first node may be an evaluation: its number does not tell.
        self._recent = [cut for cut in every if cut.number > begin or (cut.number == begin and not cut.reason)]
        self._uses = _last_uses(log, log.steps[-1].number if log.steps else 0)
        self._used, self._reached = {one._sequence_nr() for one in context.nodes}, {*map(id, context.leaves)}

    def cuts_behind(self, parameter: torch.Tensor) -> tuple[list[DetachPoint], str]:
        """Return the calls that can have cut a parameter off, and how sure that is."""
        direct = [cut for cut in self._carried if _takes(cut, parameter)]
        if direct:
            return direct[:1], IS
        used = self._uses.get(id(parameter))
        later = [cut for cut in self._carried if self._cuts(cut, used, parameter)]
        known = [cut for cut in later if _depends(cut, parameter)]
        if known:
            return known[:1], IS
        likely = [cut for cut in later if _depends(cut, parameter) is None]
        likely += [cut for shape, cut in self._anew.items() if shape == fact(parameter, "shape")]  # of fast weights
        if likely:
            return likely[:1], PROBABLY
        possible = [cut for cut in self._recent if _takes(cut, parameter) or self._cuts(cut, used, parameter)]
        likely = [cut for cut in possible if _depends(cut, parameter) is not False and not _is_of_copy(cut)]
        distinct = list({cut.line.place: cut for cut in likely}.values())
        return (distinct if len(distinct) <= MOST_PLACES else []), MAY_BE

    def _cuts(self, cut: DetachPoint, used: Call | None, parameter: torch.Tensor) -> bool:
        """Return whether a call after the use of a parameter cuts off what was made since, and no loss uses."""
        ways = () if id(parameter) in self._reached else self._used
        made = [number for _, number in cut.inputs if number not in ways]
        return used is not None and cut.number >= used.after and max(made, default=-1) >= used.before


def _is_of_library(cut: DetachPoint) -> bool:
    return cut.line.code is None or is_library(cut.line.code.co_filename)  # as copy.deepcopy() of a parameter


def _is_of_copy(cut: DetachPoint) -> bool:
    """Return whether a detach is that of ``state_dict()`` or ``copy.deepcopy()``, which cut no loss off."""
    code = cut.line.code
    return is_of_state(cut) or (cut.name in DETACHES and code is not None and code.co_name == "deepcopy")


def _begin(context: FailureContext) -> int:
    """Return the sequence number at which a forward began: that of the first node that no backward call has run."""
    fresh = (node for node in context.walk.nodes[1:] if node.next_functions and first_run(node) is None)
    return min((node._sequence_nr() for node in fresh), default=0)


def _last_uses(log: Log, since: int) -> dict[int, Call]:
    """Return for each parameter the last call since a number that made a node while a module owning it ran."""
    found: dict[int, Call] = {}
    seen: set[int] = set()
    for raw in reversed(log.calls):
        call = Call.of(raw)
        if call.before < since:
            break
        module = None if call.module is None else call.module()
        if module is not None and id(module) not in seen:
            seen.add(id(module))
            for one in own_parameters(module):
                found.setdefault(id(one), call)
    return found


def _takes(cut: DetachPoint, parameter: torch.Tensor) -> bool:
    return any(reference() is parameter for reference, _ in cut.inputs) or _converts(cut, parameter)


def _converts(cut: DetachPoint, parameter: torch.Tensor) -> bool:
    """Return whether the one line of a module's method that reads its own parameter converts a result to a number."""
    module = None if cut.module is None or cut.reason or cut.name not in NUMBERS else cut.module()
    own = () if module is None else attributes_of(module)["_parameters"].items()
    path = next((f"self.{name}" for name, held in own if held is parameter), None)
    code, node = cut.line.code, node_of(cut.line)
    if path is None or code is None or node is None:
        return False
    here, body = enclosing_statement(node), definition_of(code)
    reading = [one for one in ast.walk(body or here) if isinstance(one, ast.Attribute) and ast.unparse(one) == path]
    return bool(reading) and all(enclosing_statement(one) is here for one in reading)


def _depends(cut: DetachPoint, parameter: torch.Tensor) -> bool | None:
    """Return whether a cut-off tensor was computed from a parameter; None if the tensors that would tell are gone."""
    inputs = [reference() for reference, _ in cut.inputs]
    alive = [one for one in inputs if one is not None and has_graph(one)]
    if any(leaf is parameter for leaf in leaf_tensors(nodes_behind(alive))):
        return True
    return False if len(alive) == len(inputs) else None


def _missing(context: FailureContext) -> list[torch.Tensor]:
    """Return the models' parameters that the loss does not reach; none if a node hides its part of the graph."""
    if any("parameters used in it" in opaque_reason(same[0]) for same in context.kinds.values()):
        return []
    wanted = {id(one): one for model in context.models for one in _learning(model)}
    reached = set(map(id, context.leaves))
    return [one for key, one in wanted.items() if key not in reached]


def _learning(model: nn.Module) -> list[torch.Tensor]:
    """Return the parameters of a model that require grad; for a sharded module, those that its forward used."""
    modules = modules_in(model)
    kinds = set(filter(is_sharded, set(map(type, modules))))
    sharded = [module for module in modules if type(module) in kinds] if kinds else []
    gathered = {id(one.sharded): one.gathered for module in sharded for one in gathered_parameters(module)}
    return [gathered.get(id(one), one) for one in parameters_in(model) if fact(one, "requires_grad")]


def _reduced(context: FailureContext) -> set[int]:
    """Return the ids of the parameters whose gradients some DistributedDataParallel wrapper waits for."""
    wrappers = [one for one in context.models if type(one) is nn.parallel.DistributedDataParallel]
    return {id(one) for wrapper in wrappers if not wrapper.find_unused_parameters for one in _reduced_by(wrapper)}


def _reduced_by(wrapper: nn.Module) -> list[torch.Tensor]:
    """Return the parameters that a wrapper reduces, in the order of its reducer."""
    ignored: set[str] = getattr(wrapper, "parameters_to_ignore", set())
    found: dict[int, torch.Tensor] = {}
    for prefix, module in wrapper.module.named_modules():  # type: ignore[union-attr]
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and f"{prefix}.{name}" not in ignored:
                found.setdefault(id(parameter), parameter)
    return list(found.values())


def _missing_in_ddp(context: FailureContext) -> Iterator[Facts]:
    """Yield the parameters that DistributedDataParallel lacks, or will lack: of an error by the indices in it."""
    if context.error is None:
        theirs = [one for one in context.once(_missing) if id(one) in context.once(_reduced)]
    else:
        wrapper = next(context.selves(nn.parallel.DistributedDataParallel), None)
        every, indices = [] if wrapper is None else _reduced_by(wrapper), list(map(int, context.match[1].split()))
        theirs = [every[index] for index in indices] if max(indices) < len(every) else []
    if theirs:
        yield {"names": tuple(context.names(theirs)), "which": "the" if context.error is None else "the last"}


def _detached(context: FailureContext) -> Iterator[Facts]:
    others = [one for one in context.once(_missing) if id(one) not in context.once(_reduced)]
    yield from (group.facts(context) for group in unreached_parameters(context, others))


_NO_GRAPH = any_of(
    Raised(RuntimeError, r"element \d+ of (tensors|the tensors) does not require grad"), is_before_backward
)

_NOT_REDUCED = Raised(
    RuntimeError, r"finished reduction in the prior iteration.*not receive grad for rank \d+: ([\d ]+)"
)

# fmt: off
NO_GRAD_PATH: tuple[Cause[FailureContext], ...] = (
    Cause("no-grad-path", _NO_GRAPH, _cut, "{off:-}{why}", "{remedy}"),
    Cause("no-grad-path", _NO_GRAPH, _frozen,
        "nothing that requires grad went into this loss. {names} {names:does|do} not require grad: {names:it was|they "
        "were} frozen{where}{sites:-}",
        "call requires_grad_() on the parameters that should learn"),
    Cause("no-grad-path", _NO_GRAPH, _unseen, "backward cannot start from {name}: {why}{made:-}", "{remedy}"),
)
DDP_UNUSED: Cause[FailureContext] = Cause("ddp-unused", any_of(_NOT_REDUCED, is_before_backward), _missing_in_ddp,
    "{names:-}{which} loss of this rank does not reach {names}, and DistributedDataParallel waits for the gradient of "
    "every parameter before it starts the next iteration",
    "use them in the loss, freeze them with requires_grad_(False), or pass find_unused_parameters=True to "
    "DistributedDataParallel, which costs a walk through the graph each step")
DETACHED: Cause[FailureContext] = Cause("detached-parameter", is_before_backward, _detached,
    "{names:-}this loss does not reach {names}: {names:it gets|they get} no gradient from it{way}{cuts:-}", "{remedy}")
