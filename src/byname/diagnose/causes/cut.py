"""no-grad-path, detached-parameter: which call cut a tensor off from the graph?"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from types import CodeType

import torch

from byname.autograd.walk import has_graph, why_no_graph
from byname.diagnose.context import Scene
from byname.diagnose.finding import Finding, culprits_of, known_sites
from byname.naming.name import Name, at, quote, quote_all, quote_at, unnamed
from byname.naming.sites import name_at, site_of_tensor
from byname.reading.modules import parameters_in
from byname.reading.quiet import untouched
from byname.reading.tensor import fact, is_tensor
from byname.source.location import Site, Spot, locate, statements_binding
from byname.tracking.log import Cut, Log, Made
from byname.tracking.tracker import logs

__all__ = ["Snip", "no_grad_path", "why_cut"]


class Snip:
    """A cut as it is told: the call, its line, the variable that it gives, and why nothing goes through it."""

    def __init__(self, cut: Cut) -> None:
        self.cut = cut
        self.spot: Spot | None = None if cut.code is None else locate(cut.code, cut.instruction)
        self.site: Site | None = None if self.spot is None else self.spot.site

    def name(self, scene: Scene) -> Name:
        """The variable that the line assigns; else one that it reads."""
        result = None if self.cut.result is None else self.cut.result()
        if result is not None:
            name = scene.name(result)
            if name.path and name.exact:
                return name
        if self.spot is not None and self.cut.code is not None and self.site is not None and self.site.target:
            whole = name_at(replace(self.spot, whole=True), self.cut.code)
            if whole is not None:
                return whole if self.spot.whole else replace(whole, relation="part of")
        for reference, _ in self.cut.inputs:
            tensor = reference()
            if tensor is not None and scene.name(tensor).path:
                return scene.name(tensor)
        return unnamed(self.site)


def no_grad_path(scene: Scene, error: BaseException | None = None) -> Finding | None:
    """Why a loss belongs to no graph: the first call whose inputs required grad and whose result did not."""
    cut_off = [root for root in scene.roots if is_tensor(root) and not has_graph(root)]
    if not cut_off:
        return None
    with untouched():
        cuts = [cut for log in logs() for cut in log.cuts_of(cut_off[0])]
        if cuts:
            return _at_cuts(scene, _first_of_each(cuts), certain=True)
        taken, certain = _taken_out(cut_off[0])
        if taken:
            return _at_cuts(scene, _first_of_each(taken), certain)
        return _frozen(scene, cut_off[0]) or _unseen(scene, cut_off[0])


def _first_of_each(cuts: Sequence[Cut]) -> list[Snip]:
    """The cuts to tell of. Under ``no_grad`` every call is one, and the first is told."""
    first: dict[object, Cut] = {}
    for cut in cuts:
        first.setdefault(cut.reason or cut.place, cut)
    return [Snip(cut) for cut in first.values()]


def _taken_out(root: torch.Tensor) -> tuple[list[Cut], bool]:
    """The calls that took numbers out of PyTorch, from which a tensor was made anew, and whether that is certain.

    The one whose statement made the tensor too, or assigned a variable that the statement reads; else every one that
    may be meant, when they are few: the way of a number through the program is not seen.
    """
    log = next((log for log in logs() if _making_in(log, root) is not None), None)
    made = None if log is None else _making_in(log, root)
    if log is None or made is None:
        return [], False
    into, out = locate(made.code, made.instruction), [Cut(*raw) for raw in log.cuts]
    begin = log.steps[-1].number if log.steps else 0
    numbers = {cut.place: cut for cut in out if cut.result is None and cut.number >= begin}
    sure = [cut for cut in numbers.values() if cut.code is made.code and _feeds(_spot(cut), into)]
    if sure or len(numbers) > _MOST_PLACES or not _makes_anew(made.code, into):
        return sure[-1:], True
    return list(numbers.values()), False


_MOST_PLACES = 3


def _feeds(out: Spot, into: Spot) -> bool:
    """Whether a statement is the same as another, or assigns a variable that the other reads."""
    return out.site == into.site or (out.site.target in into.reads and out.site.line <= into.site.line)


def _makes_anew(code: CodeType, into: Spot) -> bool:
    """Whether a statement, or one that assigns a variable it reads, makes a tensor of plain numbers or of an array."""
    before = [spot for variable in into.reads for spot in statements_binding(code, variable)]
    return any(_MAKERS.search(spot.site.statement) for spot in (into, *before))


_MAKERS = re.compile(r"\b(tensor|as_tensor|asarray|from_numpy|\w*Tensor)\(")


def _spot(cut: Cut) -> Spot:
    return locate(cut.code, cut.instruction)


def _making_in(log: Log, root: torch.Tensor) -> Made | None:
    made = log.made.get(id(root))
    return made if made is not None and made() is root else None


def _at_cuts(scene: Scene, snips: Sequence[Snip], certain: bool) -> Finding:
    places = [f"{quote_at(snip.name(scene), snip.site)} {why_cut(snip.cut)}" for snip in snips]
    ends = f"no gradient can flow back from here{':' if certain else ', perhaps because'}"
    message = f"{ends} {'; and '.join(places)}"
    names = culprits_of(*(snip.name(scene) for snip in snips))
    sites = known_sites(*(snip.site for snip in snips), scene.noticed)
    return Finding("no-grad-path", message, names, sites, _remedy(snips[0].cut))


def why_cut(cut: Cut) -> str:
    """Why nothing goes back through a call, as the rest of a sentence."""
    if cut.reason == "no_grad":
        return "is computed while gradients are switched off (torch.no_grad() or set_grad_enabled(False))"
    if cut.reason == "inference":
        return "is computed under torch.inference_mode()"
    return next((words for names, words, _ in _KINDS if cut.name in names), f"is what {cut.name}() gives: no gradient")


def _remedy(cut: Cut) -> str:
    if cut.reason:
        return "compute what the loss depends on outside of that block"
    return next(
        (words for names, _, words in _KINDS if cut.name in names), "use a differentiable operation in its place"
    )


_COMPARISONS = "eq ne lt le gt ge __eq__ __ne__ __lt__ __le__ __gt__ __ge__ isclose isnan isfinite logical_and".split()
_POSITIONS = "argmax argmin argsort nonzero argwhere searchsorted bucketize multinomial".split()
_NUMBERS = "item tolist numpy __array__ __float__ __int__ __bool__ __index__ __complex__".split()
_WHOLE = "long int short bool byte".split()

_KINDS: Sequence[tuple[Sequence[str], str, str]] = (
    (
        ["detach", "data", "detach_"],
        "is detached from the graph",
        "leave out the detach for what the loss is computed from",
    ),
    (
        _POSITIONS,
        "is a position or a choice, which has no gradient",
        "compute the loss from the scores themselves (cross_entropy takes logits); positions are for metrics",
    ),
    (
        _NUMBERS,
        "is taken out of PyTorch as plain numbers",
        "keep the tensor for the loss (torch.stack joins several), and take numbers out for logging only",
    ),
    (_COMPARISONS, "is a comparison, which has no gradient", "use a smooth function (sigmoid, softplus) in its place"),
    (_WHOLE, "is converted to whole numbers, which have no gradients", "convert to a floating-point type"),
)
"""Calls that cut, by name: what their result is, and what to write instead."""


def _frozen(scene: Scene, root: torch.Tensor) -> Finding | None:
    """Parameters that were frozen, where nothing that requires grad went into the loss at all."""
    given: list[torch.Tensor] = [one for model in scene.models for one in parameters_in(model)]
    if any(fact(one, "requires_grad") for one in given):
        return None
    seen = [sight for log in logs() if _making_in(log, root) is not None for sight in log.frozen]
    alive = [(code, at_, tensor) for code, at_, reference in seen if (tensor := reference()) is not None]
    frozen = given or [tensor for _, _, tensor in alive if not fact(tensor, "requires_grad")]
    if not frozen:
        return None
    sites = list(dict.fromkeys(locate(code, where).site for code, where, _ in alive if code is not None))
    names = scene.names(frozen)
    verb = "requires no grad: it was" if len(names) == 1 else "require no grad: they were"
    where = f" frozen{at(sites[0])}" if sites else " frozen"
    message = f"nothing that requires grad went into this loss. {quote_all(names)} {verb}{where}"
    remedy = "call requires_grad_() on the parameters that should learn"
    return Finding("no-grad-path", message, culprits_of(*names), known_sites(*sites, scene.noticed), remedy)


def _unseen(scene: Scene, root: torch.Tensor) -> Finding:
    """No tracker saw the cut: what the tensor itself tells."""
    made, name = site_of_tensor(root), scene.name(root)
    message = f"{quote(name)} cannot be backwarded: {why_no_graph(root, made)}"
    remedy = "byname.explaining() around the forward remembers which line cut it off" if made is None else ""
    return Finding("no-grad-path", message, (), known_sites(made, scene.noticed), remedy)
