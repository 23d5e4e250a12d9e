"""Cuts: the calls before a loss that cut it off from the graph, why no gradient flows through them, and the remedy."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence

import torch

from byname.diagnose.cause import Facts, Sentence, Subject, render
from byname.diagnose.context import FailureContext, assigned_on
from byname.naming.name import Name, at, unnamed, with_relation
from byname.reading.frames import NO_LINE, Line
from byname.reading.tensor import is_tensor
from byname.source.code import CodeKey, blocks_around, definition_of
from byname.source.location import Site, is_library, locate, site_of, statements_binding
from byname.tracking.log import DetachPoint, logs


def sentence_of(context: FailureContext, cut: DetachPoint) -> Sentence:
    """Return what a call cuts off and why, as a part of a sentence."""
    name = _cut_off_by(context, cut)
    return render("{result} {why}", result=Subject(name, _where(context, cut, name)), why=why_cut(cut))


def _where(context: FailureContext, cut: DetachPoint, name: Name) -> Site | None:
    """Return the line of a cut or, of one in a library, the line that assigns its result where the loss is computed."""
    site = cut.line.site
    if site is None or not is_library(site.file) or not name.exact:
        return site
    made = [one.line.code for log in logs() for root in context.roots if is_tensor(root) and (one := log.made(root))]
    bound = [one.site for code in made if code is not None for one in statements_binding(code, name.path)]
    return bound[0] if len(bound) == 1 and not is_library(bound[0].file) else site


def _cut_off_by(context: FailureContext, cut: DetachPoint) -> Name:
    """Return the name of the result of a cut, of the variable that its line assigns, or else of one that it reads."""
    result = None if cut.result is None else cut.result()
    if result is not None:
        name = context.name(result)
        if name.path and name.exact:
            return name
    if (named := assigned_on(cut.line)) is not None:
        return named
    given = (tensor for reference, _ in cut.inputs if (tensor := reference()) is not None)
    if (read := next((name for tensor in given if (name := context.name(tensor)).path), None)) is None:
        return unnamed(cut.line.site)
    return read if not cut.reason and cut.name in (*DETACHES, *NUMBERS) else with_relation(read, "a result of")


def cut_before(context: FailureContext, root: torch.Tensor) -> Facts | None:
    """Return the facts of the calls that detached a tensor from all that requires grad, if the log has some."""
    cuts, certain = [cut for log in logs() for cut in log.detaches_of(root)], True
    if not cuts:
        cuts, certain = _taken_out(root)
    if not cuts:
        return None
    first: dict[object, DetachPoint] = {}
    for cut in cuts:  # under no_grad every call is one
        first.setdefault(cut.reason or cut.line.place, cut)
    off, remedy, still = _left_off(cuts[0]), remedy_of(cuts[0]), ""
    if off is not None:
        still = f". The set_grad_enabled(False){at(off)} belongs to no block, and is still in effect"
        remedy = "call torch.set_grad_enabled(True) after what needs no gradients, or put that into a block of "
        remedy += "`with torch.no_grad():`, which switches them on again at its end"
    elif remedy is _OUTSIDE and _head_around(cuts[0].line, cuts[0].reason) == "":
        remedy = _instead_of_block(context, cuts[0]) or remedy
    ends = f"no gradient can flow back from here{':' if certain else ', perhaps because'} "
    places = Sentence.joined("; and ", dict.fromkeys(sentence_of(context, cut) for cut in first.values()))
    return {"off": off, "why": render("{ends}{places}{still}", ends=ends, places=places, still=still), "remedy": remedy}


def _instead_of_block(context: FailureContext, cut: DetachPoint) -> str:
    """Return what to write where no block of the program switches gradients off around a cut, but a library does."""
    site = cut.line.site
    if site is not None and is_library(site.file):
        called = site.caller
        if called is None or is_library(called.file):
            return ""
        return render(_BY_CALLED, called=called) + _GENERATED * (".generate(" in called.statement)
    places = [(one.code, one.instruction) for one in context.passed]
    codes = [code for code, _ in places]
    outer = places[codes.index(cut.line.code) :] if cut.line.code in codes else []
    if torch.is_grad_enabled() or not outer:
        return ""
    head = next(filter(None, (_head_around(Line(*one), cut.reason) for one in outer)), _TRAINER)
    return render(_BY_CALLER[cut.reason], head=head)


_TRAINER = "a caller, as trainers do for a validation"
_BY_CALLED = (
    "call the model itself for what the loss is computed from: what is called{called:at} computes without gradients"
)
_GENERATED = "; give it the tokens that generate() has returned, to get scores with a graph"
_BY_CALLER = {
    "no_grad": "gradients are switched off by {head}: compute it, and what it depends on, under `with "
    "torch.enable_grad():`",
    "inference": "inference mode was entered by {head}: compute it under `with torch.inference_mode(False), "
    "torch.enable_grad():` from clones made there; Lightning has Trainer(inference_mode=False)",
}


def _taken_out(root: torch.Tensor) -> tuple[list[DetachPoint], bool]:
    """Return the calls that converted tensors to the Python values a tensor was made from, and whether it is sure.

    A call is sure if its statement also made the tensor, or assigned a variable that the making statement reads.
    Otherwise, if the statement makes a tensor of a Python value, every call since the last step that may be meant is
    returned, if they are few, since nobody sees how a number passes through the program.
    """
    known = ((log, made.line) for log in logs() if (made := log.made(root)) is not None)
    log, line = next(known, (None, NO_LINE))
    code, into = line.code, line.expr
    if log is None or code is None or into is None:
        return [], False
    out = [cut for cut in log.detaches if cut.name != "grad"]
    if by_library := is_library(code.co_filename):  # a trainer's line is given what the program has made
        out = [cut for cut in out if (site := cut.line.site) is not None and not is_library(site.file)]
    begin = log.steps[-1].number if log.steps else 0
    numbers = {cut.line.place: cut for cut in out if cut.name in NUMBERS and cut.number >= begin}
    here = [(cut, expr) for cut in numbers.values() if cut.line.code is code and (expr := cut.line.expr) is not None]
    certain = [
        cut
        for cut, expr in here
        if expr.site == into.site or (expr.site.target in into.reads and expr.site.line <= into.site.line)
    ]
    before = [expr for variable in into.reads for expr in statements_binding(code, variable)]
    makes_anew = by_library or any(_MAKERS.search(expr.site.statement) for expr in (into, *before))
    if certain or len(numbers) > MOST_PLACES or not makes_anew:
        return certain[-1:], True
    return list(numbers.values()), False


MOST_PLACES = 3
_MAKERS = re.compile(r"\b(tensor|as_tensor|asarray|from_numpy|\w*Tensor)\(")


def _left_off(cut: DetachPoint) -> Site | None:
    """Return the line that switched gradients off, if they still are; a log that ended before does not know it."""
    if cut.reason != "no_grad" or torch.is_grad_enabled():
        return None
    mine = [log for log in logs() if log.of_this_thread()]
    key = cut.number, CodeKey(cut.line.code)
    mine = [log for log in mine if any((one.number, CodeKey(one.line.code)) == key for one in reversed(log.detaches))]
    off = next((one for log in mine if (one := log.switched_off) is not None and one.number <= cut.number), None)
    return None if off is None else off.line.site


def why_cut(cut: DetachPoint) -> str:
    """Return why no gradient flows back through a call, as the end of a sentence."""
    return _words_of(cut)[0]


def remedy_of(cut: DetachPoint) -> str:
    """Return what to write in place of a call that cuts off, as an imperative."""
    return _words_of(cut)[1]


def is_of_state(cut: DetachPoint) -> bool:
    """Return whether a detach is that of ``state_dict()``."""
    return cut.name in DETACHES and "state_dict(" in getattr(cut.line.site, "statement", "")


def _words_of(cut: DetachPoint) -> tuple[str, str]:
    if cut.reason:
        is_drawn = cut.reason == "no_grad" and ".sample(" in getattr(cut.line.site, "statement", "")
        why, remedy = _REASONS["sample" if is_drawn else cut.reason]
        head = _head_around(cut.line, cut.reason) if remedy is _OUTSIDE else ""
        if " == " in head:
            remedy = f"{remedy}, or make its condition true here"
        return (f"{why}, by {head}", remedy) if head else (why, remedy)
    if is_of_state(cut):
        return _DETACHED, "take dict(model.named_parameters()): the tensors of state_dict() are detached"
    otherwise = f"is the result of {cut.name}(), which has no gradient", "use a differentiable operation instead"
    return next(((why, remedy) for names, why, remedy in _KINDS if cut.name in names), otherwise)


def _head_around(line: Line, reason: str) -> str:
    """Return the block or the decorator that switches gradients off around a line or its caller, with its own line."""
    for code, instruction in [(line.code, line.instruction), *([line.caller] if line.caller else ())]:
        if code is None or is_library(code.co_filename):
            return ""
        blocks = blocks_around(code, locate(code, instruction).site.line, ast.With)
        for head in (*reversed(blocks), *getattr(definition_of(code), "decorator_list", ())):
            words = ast.unparse(head).partition("\n")[0]
            depends = "set_grad_enabled(" in words and "(False)" not in words  # a block for training may have another
            if _SWITCHES[reason].search(words) and not (depends and torch.is_grad_enabled()):
                return f"`{words}`{at(site_of(code, head, None, code.co_qualname))}"
    return ""


_SWITCHES = {
    "no_grad": re.compile(r"\bno_grad\b|\bset_grad_enabled\b(?!\((mode=)?True)"),
    "inference": re.compile(r"\binference_mode\b(?!\((mode=)?False)"),
}
_OUTSIDE = "compute what the loss depends on outside of that block (a decorator of the function is one, too)"
_COMPARISONS = "eq ne lt le gt ge __eq__ __ne__ __lt__ __le__ __gt__ __ge__ isclose isnan isfinite logical_and".split()
_POSITIONS = "argmax argmin argsort nonzero argwhere searchsorted bucketize multinomial".split()
_BESIDE_VALUES = "max min topk sort median nanmedian mode kthvalue cummax cummin".split()
NUMBERS = "item tolist numpy __array__ __float__ __int__ __bool__ __index__ __complex__".split()
DETACHES, _DETACHED = ["detach", "data", "detach_"], "is detached from the graph"

# fmt: off
_REASONS = {
    "no_grad": (
        "is computed while gradients are switched off (torch.no_grad() or set_grad_enabled(False))", _OUTSIDE),
    "sample": (
        "is drawn by sample(), which computes under torch.no_grad()",
        "draw by rsample(), through which gradients flow; for a choice, as of Categorical, take F.gumbel_softmax(), or "
        "weight the log-probability of what was drawn (REINFORCE)"),
    "inference": ("is computed under torch.inference_mode()", _OUTSIDE),
    "checkpoint": (
        "is computed by a reentrant checkpoint, and none of the tensors that were passed to it requires grad: the "
        "parameters used in it get gradients only if one of these does",
        "pass use_reentrant=False to checkpoint(), or let its input require grad: x.requires_grad_(), which "
        "enable_input_require_grads() does for a model of transformers"),
}
_KINDS: Sequence[tuple[Sequence[str], str, str]] = (
    (DETACHES, _DETACHED,
        "leave out .detach() and .data for tensors that the loss is computed from"),
    (_POSITIONS, "is a position or a choice, which has no gradient",
        "compute the loss from the scores themselves (cross_entropy takes logits), or multiply what is chosen by its "
        "score, as a gate does; positions are for metrics"),
    (_BESIDE_VALUES, "is a position or a choice, which has no gradient",
        "take the values beside it, [0] or .values, which have a gradient, or multiply what is chosen by its score"),
    (NUMBERS, "is converted to plain numbers outside of PyTorch",
        "keep the tensor for the loss, without .item() or float() (torch.stack joins several); numbers are for logs"),
    ("tensor as_tensor asarray array from_numpy".split(),
        "is made anew from the numbers of others, which have no gradient then",
        "join the tensors: torch.stack(list) if they have no dimension, torch.cat(list) if each has one element"),
    (["Parameter"], "is made a new parameter by nn.Parameter(...), which takes the numbers only",
        "compute with the tensor itself, without nn.Parameter(...): F.linear(x, weight) takes it, and "
        "torch.func.functional_call runs a module with it in place of its own"),
    (["grad"], "is the result of autograd.grad() without create_graph=True, so it has no graph",
        "pass create_graph=True to it"),
    (_COMPARISONS, "is a comparison, which has no gradient", "use a smooth function (sigmoid, softplus) instead"),
    ("long int short bool byte".split(), "is converted to whole numbers, which have no gradients",
        "convert to a floating-point type"),
)
# fmt: on
"""Calls that cut off, by the block that they are in or by name: a phrase about their result, and what to write."""
