"""unused-input, ddp-unused, detached-parameter: what does a loss not reach, though somebody expects it to?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from byname.autograd.causes.cut import Snip, why_cut
from byname.autograd.causes.words import lines, told
from byname.autograd.finding import Finding, listed
from byname.autograd.order import node_of_input
from byname.autograd.scene import Scene, message_of
from byname.autograd.slots import slots_of
from byname.card import STORAGE, facts_of, is_tensor
from byname.naming.frames import locals_of
from byname.naming.log import Call, Cut, Log
from byname.naming.name import Name
from byname.naming.track import logs
from byname.quiet import untouched

__all__ = ["CutOff", "cut_off", "ddp_unused", "unreached", "unused_input"]


def unused_input(scene: Scene, error: BaseException) -> Finding | None:
    """Every input of ``autograd.grad`` that the outputs do not depend on."""
    with untouched():
        unused = [one for one in scene.inputs if is_tensor(one) and node_of_input(one) not in scene.walk.numbers]
        if not unused:
            return None
        names = tuple(scene.names(unused))
        named = scene.names([root for root in scene.roots if is_tensor(root)])
    outputs = listed([name for name in named if name.path]) or "the outputs"
    message = f"{listed(names)} {'is' if len(names) == 1 else 'are'} not used in computing {outputs}"
    remedy = (
        "pass allow_unused=True (their gradient is then None) or materialize_grads=True (it is then zeros), or leave "
        "them out"
    )
    return Finding("unused-input", message, names, lines(scene.noticed), remedy)


def ddp_unused(scene: Scene, error: BaseException) -> Finding | None:
    """The parameters for which DistributedDataParallel waits in vain, by the indices in its error."""
    told = re.search(r"did not receive grad for rank \d+: ([\d ]+)", message_of(error))
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
        f"{which} loss of this rank does not reach {listed(names)}, and DistributedDataParallel waits for "
        "the gradient of every parameter before it starts the next iteration"
    )
    remedy = (
        "use them in the loss, freeze them with requires_grad_(False), or pass find_unused_parameters=True to "
        "DistributedDataParallel, which costs a walk through the graph each step"
    )
    return Finding("ddp-unused", message, names, lines(scene.noticed), remedy)


def unreached(scene: Scene, missing: Sequence[torch.Tensor], wrappers: Iterable[nn.Module]) -> list[Finding]:
    """Findings about parameters that a loss does not reach: one for each line that cuts them off, one for the rest."""
    waiting = [wrapper for wrapper in wrappers if not wrapper.find_unused_parameters]
    reduced = {id(one) for wrapper in waiting for one in _reduced(wrapper)}
    theirs = [one for one in missing if id(one) in reduced]
    found = [group.finding(scene) for group in cut_off(scene, [one for one in missing if id(one) not in reduced])]
    return [*([_waiting(tuple(scene.names(theirs)), scene, "the")] if theirs else []), *found]


class CutOff(NamedTuple):
    """Parameters that a loss does not reach, and the calls that cut them off.

    Attributes:
        parameters: the parameters.
        snips: the calls; none where none was seen, several where any of them may be it.
        certain: whether the one call is known to stand between them and the loss.
    """

    parameters: list[torch.Tensor]
    snips: list[Snip]
    certain: bool

    def finding(self, scene: Scene) -> Finding:
        """What there is to say of it."""
        names = tuple(scene.names(self.parameters))
        gets = "it gets" if len(names) == 1 else "they get"
        message = f"this loss does not reach {listed(names)}: {gets} no gradient from it{self._way(scene)}"
        remedy = (
            "leave out the cut where they should learn; where they should not, requires_grad_(False) says so"
            if self.snips
            else "use them in what the loss is computed from, or freeze them with requires_grad_(False)"
        )
        return Finding("detached-parameter", message, names, lines(*(snip.site for snip in self.snips)), remedy)

    def _way(self, scene: Scene) -> str:
        """Where the way is cut, as the rest of a sentence."""
        if not self.snips:
            return "" if logs() else "; byname.track() around the forward tells which line cuts the way, if one does"
        places = [f"{told(snip.name(scene), snip.site)} {why_cut(snip.cut)}" for snip in self.snips]
        return f". The way {'is' if self.certain else 'may be'} cut here: {'; or '.join(places)}"


def cut_off(scene: Scene, missing: Sequence[torch.Tensor]) -> list[CutOff]:
    """Parameters that a loss does not reach, by the calls that cut them off."""
    groups: dict[Any, CutOff] = {}
    with untouched():
        for one in missing:
            cuts, certain = _cuts_behind(scene, one)
            key = tuple((cut.code, cut.instruction) for cut in cuts)
            groups.setdefault(key, CutOff([], [Snip(cut) for cut in cuts], certain)).parameters.append(one)
    return list(groups.values())


def _cuts_behind(scene: Scene, parameter: torch.Tensor) -> tuple[list[Cut], bool]:
    """The calls that can have cut a parameter off, and whether it is certain that the one did."""
    for log in logs():
        cuts = [Cut(*raw) for raw in log.cuts]
        direct = [cut for cut in cuts if any(reference() is parameter for reference, _ in cut.inputs)]
        inside = [cut for cut in direct if cut.module is not None and _owns(cut.module(), parameter)]
        if direct:
            return (inside[:1], True) if inside else (_distinct(direct), False)
        used = _last_use(scene, log, parameter)
        if used is None:
            continue
        later = [cut for cut in cuts if cut.result is not None and _may_cut(cut, used)]
        saved = _saved_memory(scene)
        certain = [cut for cut in later if _memory_of_result(cut) in saved]
        return (certain[:1], True) if certain else (_distinct(later), False)
    return [], False


def _last_use(scene: Scene, log: Log, parameter: torch.Tensor) -> Call | None:
    """The last call that made a node while a module ran that owns the parameter."""
    root = max((scene.walk.nodes[number]._sequence_nr() for number in scene.walk.roots), default=0)
    for raw in reversed(log.calls):
        call = Call(*raw)
        module = None if call.module is None else call.module()
        if call.before <= root and module is not None and _owns(module, parameter):
            return call
    return None


def _owns(module: nn.Module | None, parameter: torch.Tensor) -> bool:
    return module is not None and any(one is parameter for one in nn.Module.parameters(module, recurse=False))


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
