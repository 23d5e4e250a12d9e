"""unused-input, ddp-unused, detached-parameter: what does a loss not reach, though somebody expects it to?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn

from byname.autograd.causes.cut import Snip, why_cut
from byname.autograd.causes.words import at, lines, said
from byname.autograd.finding import Finding, listed
from byname.autograd.order import node_of_input
from byname.autograd.scene import Scene
from byname.autograd.slots import slots_of
from byname.card import STORAGE, facts_of, is_tensor
from byname.naming.frames import locals_of
from byname.naming.log import Call, Cut, Log
from byname.naming.name import Name
from byname.naming.track import logs
from byname.quiet import untouched

__all__ = ["ddp_unused", "unreached", "unused_input"]


def unused_input(scene: Scene, error: BaseException) -> Finding | None:
    """Every input of ``autograd.grad`` that the outputs do not depend on."""
    with untouched():
        unused = [one for one in scene.inputs if is_tensor(one) and node_of_input(one) not in scene.walk.numbers]
        if not unused:
            return None
        names = tuple(scene.names(unused))
        named = scene.names([root for root in scene.roots if is_tensor(root)])
    outputs = listed([name for name in named if name.path]) or "the outputs"
    message = f"{listed(map(str, names))} {'is' if len(names) == 1 else 'are'} not used in computing {outputs}"
    remedy = (
        "pass allow_unused=True (their gradient is then None) or materialize_grads=True (it is then zeros), or leave "
        "them out"
    )
    return Finding("unused-input", message, names, lines(scene.noticed), remedy)


def ddp_unused(scene: Scene, error: BaseException) -> Finding | None:
    """The parameters for which DistributedDataParallel waits in vain, by the indices in its error."""
    told = re.search(r"did not receive grad for rank \d+: ([\d ]+)", str(error))
    found = [
        dict(locals_of(place.frame)).get("self")
        for place in scene.places
        if "distributed" in place.frame.f_code.co_filename
    ]
    wrapper = next((one for one in found if isinstance(one, nn.parallel.DistributedDataParallel)), None)
    if told is None or wrapper is None:
        return None
    every = _reduced(wrapper)
    indices = [int(word) for word in told[1].split()]
    if any(index >= len(every) for index in indices):
        return None
    with untouched():
        names = tuple(scene.names([every[index] for index in indices]))
    return _waiting(names, scene, "the last")


def _reduced(wrapper: nn.Module) -> list[torch.Tensor]:
    """The parameters that a wrapper reduces, in the order of its reducer."""
    ignored: set[str] = getattr(wrapper, "parameters_to_ignore", set())
    found: dict[int, torch.Tensor] = {}
    for prefix, module in wrapper.module.named_modules():  # type: ignore[union-attr]
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and f"{prefix}.{name}" not in ignored:
                found.setdefault(id(parameter), parameter)
    return list(found.values())


def _waiting(names: tuple[Name, ...], scene: Scene, which: str) -> Finding:
    message = (
        f"{which} loss of this rank does not reach {listed(map(str, names))}, and DistributedDataParallel waits for "
        "the gradient of every parameter before it starts the next iteration"
    )
    remedy = (
        "use them in the loss, freeze them with requires_grad_(False), or pass find_unused_parameters=True to "
        "DistributedDataParallel, which costs a walk through the graph each step"
    )
    return Finding("ddp-unused", message, names, lines(scene.noticed), remedy)


def unreached(scene: Scene, missing: Sequence[torch.Tensor], wrappers: Iterable[nn.Module]) -> list[Finding]:
    """Findings about parameters that a loss does not reach: one for each line that cuts them off, one for the rest."""
    with untouched():
        names = scene.names(missing)
        waiting = [wrapper for wrapper in wrappers if not wrapper.find_unused_parameters]
        reduced = {id(one) for wrapper in waiting for one in _reduced(wrapper)}
        theirs = tuple(name for name, one in zip(names, missing, strict=True) if id(one) in reduced)
        groups: dict[tuple[Any, int], tuple[list[Snip], list[Name]]] = {}
        for one, name in zip(missing, names, strict=True):
            if id(one) in reduced:
                continue
            snips = _cuts_behind(scene, one)
            key = tuple((snip.cut.code, snip.cut.instruction) for snip in snips)
            groups.setdefault(key, (snips, []))[1].append(name)  # type: ignore[arg-type]
    found = [_cut_off(scene, snips, tuple(members)) for snips, members in groups.values()]
    return [*([_waiting(theirs, scene, "this")] if theirs else []), *found]


def _cut_off(scene: Scene, snips: Sequence[Snip], names: tuple[Name, ...]) -> Finding:
    who = listed(map(str, names))
    message = f"this loss does not reach {who}: {'it gets' if len(names) == 1 else 'they get'} no gradient from it"
    if len(snips) == 1:
        message += f". The way is cut{at(snips[0].site)}: {said(snips[0].name(scene))} {why_cut(snips[0].cut)}"
    elif snips:
        places = "; ".join(f"{said(snip.name(scene))}{at(snip.site)} {why_cut(snip.cut)}" for snip in snips)
        message += f". The way may be cut in one of these places: {places}"
    elif not logs():
        message += ". byname.track() around the forward remembers which line cuts the way, if one does"
    remedy = (
        "leave out the cut where they should learn; where they should not, requires_grad_(False) says so"
        if snips
        else "use them in what the loss is computed from, or freeze them with requires_grad_(False)"
    )
    return Finding("detached-parameter", message, names, lines(*(snip.site for snip in snips)), remedy)


def _cuts_behind(scene: Scene, parameter: torch.Tensor) -> list[Snip]:
    """The lines that can have cut a parameter off: a certain one, or all that are possible."""
    for log in logs():
        cuts = [Cut(*raw) for raw in log.cuts]
        direct = [cut for cut in cuts if any(reference() is parameter for reference, _ in cut.inputs)]
        if direct:
            return (
                [Snip(direct[-1])] if len({(cut.code, cut.instruction) for cut in direct}) == 1 else [Snip(direct[0])]
            )
        used = _last_use(scene, log, parameter)
        if used is None:
            continue
        later = [cut for cut in cuts if cut.result is not None and _may_cut(cut, used)]
        saved = _saved_memory(scene)
        certain = [cut for cut in later if _memory_of_result(cut) in saved]
        return [Snip(cut) for cut in _distinct(certain[:1] or later)]
    return []


def _last_use(scene: Scene, log: Log, parameter: torch.Tensor) -> Call | None:
    """The last call that made a node while a module ran that owns the parameter."""
    root = max((scene.walk.nodes[number]._sequence_nr() for number in scene.walk.roots), default=0)
    for raw in reversed(log.calls):
        call = Call(*raw)
        module = None if call.module is None else call.module()
        if call.before <= root and module is not None and _owns(module, parameter):
            return call
    return None


def _owns(module: nn.Module, parameter: torch.Tensor) -> bool:
    return any(one is parameter for one in nn.Module.parameters(module, recurse=False))


def _may_cut(cut: Cut, used: Call) -> bool:
    """Whether a cut comes after the use of a parameter, and cuts off something made since."""
    return cut.number >= used.after and any(number >= used.before for _, number in cut.inputs)


def _saved_memory(scene: Scene) -> set[Any]:
    return {facts_of(slot.tensor)[STORAGE] for slot in slots_of(scene.walk) if slot.tensor is not None} - {None}


def _memory_of_result(cut: Cut) -> Any:
    result = None if cut.result is None else cut.result()
    return 0 if result is None else facts_of(result)[STORAGE]


def _distinct(cuts: Iterable[Cut]) -> list[Cut]:
    found = {(cut.code, cut.instruction): cut for cut in cuts}
    return list(found.values())
