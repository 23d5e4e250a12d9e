"""detached-parameter: which line cut these parameters off from the loss, and how sure is that?"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch

from byname.autograd.slots import slots_of
from byname.autograd.walk import has_graph, leaf_tensors, nodes_behind
from byname.diagnose.causes.cut import Snip, why_cut
from byname.diagnose.context import Scene
from byname.diagnose.finding import Finding, known_sites
from byname.diagnose.stamps import first_run
from byname.naming.name import quote_all, quote_at
from byname.reading.modules import own_parameters
from byname.reading.quiet import untouched
from byname.tracking.log import Call, Cut, Log
from byname.tracking.tracker import logs

__all__ = ["MAY_BE", "CutOff", "cut_off"]

IS, PROBABLY, MAY_BE = "is", "is probably", "may be"
"""How sure it is that a call stands between a parameter and a loss."""


class CutOff(NamedTuple):
    """Parameters that a loss does not reach, and the calls that cut them off.

    Attributes:
        parameters: the parameters.
        snips: the calls; none where none was seen, several where any of them may be it.
        sure: IS, PROBABLY or MAY_BE.
    """

    parameters: list[torch.Tensor]
    snips: list[Snip]
    sure: str

    def finding(self, scene: Scene) -> Finding:
        """What there is to say of it."""
        names = tuple(scene.names(self.parameters))
        gets = "it gets" if len(names) == 1 else "they get"
        message = f"this loss does not reach {quote_all(names)}: {gets} no gradient from it{self._way(scene)}"
        remedy = (
            "leave out the cut where they should learn; where they should not, requires_grad_(False) says so"
            if self.snips
            else "use them in what the loss is computed from, or freeze them with requires_grad_(False)"
        )
        return Finding("detached-parameter", message, names, known_sites(*(snip.site for snip in self.snips)), remedy)

    def _way(self, scene: Scene) -> str:
        """Where the way is cut, as the rest of a sentence."""
        if not self.snips:
            return "" if logs() else "; byname.track() around the forward tells which line cuts the way, if one does"
        places = [f"{quote_at(snip.name(scene), snip.site)} {why_cut(snip.cut)}" for snip in self.snips]
        return f". The way {self.sure} cut here: {'; or '.join(places)}"


def cut_off(scene: Scene, missing: Sequence[torch.Tensor]) -> list[CutOff]:
    """Parameters that a loss does not reach, by the calls that cut them off."""
    if not missing:
        return []
    groups: dict[Any, CutOff] = {}
    with untouched():
        evidence = [_Evidence(scene, log) for log in logs()]
        for one in missing:
            found = (behind for log in evidence if (behind := log.cuts_behind(one))[0])
            cuts, sure = next(found, ([], MAY_BE))
            key = (*(cut.place for cut in cuts), sure)
            groups.setdefault(key, CutOff([], [Snip(cut) for cut in cuts], sure)).parameters.append(one)
    return list(groups.values())


class _Evidence:
    """What one log knows of the cuts before a loss, gathered once for all its parameters.

    Only what belongs to this forward counts: an evaluation under ``no_grad`` before it cuts nothing off from the loss.
    """

    def __init__(self, scene: Scene, log: Log) -> None:
        saved = [slot.tensor for slot in slots_of(scene.walk) if slot.tensor is not None]
        self._carried = list({id(cut.inputs): cut for tensor in saved for cut in log.cuts_of(tensor)}.values())
        begin = _begin(scene)
        every = (Cut(*raw) for raw in log.cuts)
        # A block under no_grad right before the first node may be an evaluation: its number does not tell.
        self._recent = [cut for cut in every if cut.number > begin or (cut.number == begin and not cut.reason)]
        self._uses = _last_uses(log)

    def cuts_behind(self, parameter: torch.Tensor) -> tuple[list[Cut], str]:
        """The calls that can have cut a parameter off, and how sure that is."""
        direct = [cut for cut in self._carried if _takes(cut, parameter)]
        if direct:
            return direct[:1], IS
        used = self._uses.get(id(parameter))
        later = [cut for cut in self._carried if used is not None and _comes_after(cut, used)]
        known = [cut for cut in later if _depends(cut, parameter)]
        if known:
            return known[:1], IS
        likely = [cut for cut in later if _depends(cut, parameter) is None]
        if likely:
            return likely[:1], PROBABLY
        possible = [cut for cut in self._recent if _takes(cut, parameter) or (used and _comes_after(cut, used))]
        distinct = _distinct(cut for cut in possible if _depends(cut, parameter) is not False)
        return (distinct if len(distinct) <= _MOST_PLACES else []), MAY_BE


_MOST_PLACES = 3


def _begin(scene: Scene) -> int:
    """The sequence number with which the forward of a loss began: that of its first node which no backward has run."""
    fresh = (node for node in scene.walk.nodes[1:] if node.next_functions and first_run(node) is None)
    return min((node._sequence_nr() for node in fresh), default=0)


def _last_uses(log: Log) -> dict[int, Call]:
    """For each parameter the last call that made a node while a module ran that owns it, since the last step."""
    since = log.steps[-1].number if log.steps else 0
    found: dict[int, Call] = {}
    seen: set[int] = set()
    for raw in reversed(log.calls):
        call = Call(*raw)
        if call.before < since:
            break
        module = None if call.module is None else call.module()
        if module is not None and id(module) not in seen:
            seen.add(id(module))
            for one in own_parameters(module):
                found.setdefault(id(one), call)
    return found


def _takes(cut: Cut, parameter: torch.Tensor) -> bool:
    return any(reference() is parameter for reference, _ in cut.inputs)


def _comes_after(cut: Cut, used: Call) -> bool:
    """Whether a cut comes after the use of a parameter, and cuts off something made since."""
    return cut.number >= used.after and any(number >= used.before for _, number in cut.inputs)


def _depends(cut: Cut, parameter: torch.Tensor) -> bool | None:
    """Whether what was cut off was computed from a parameter; None where the tensors that would tell are gone."""
    inputs = [reference() for reference, _ in cut.inputs]
    alive = [one for one in inputs if one is not None and has_graph(one)]
    if any(leaf is parameter for leaf in leaf_tensors(nodes_behind(alive))):
        return True
    return False if len(alive) == len(inputs) else None


def _distinct(cuts: Iterable[Cut]) -> list[Cut]:
    return list({cut.place: cut for cut in cuts}.values())
