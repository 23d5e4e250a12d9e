"""Training: what was so in every step of an optimizer, or in every backward call, of a program that runs."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from itertools import pairwise
from types import CodeType, FrameType
from typing import Any, NamedTuple

import torch

from byname.diagnose.causes.not_reached import Use, remedy_of, why_cut
from byname.diagnose.finding import Finding, culprits_of, known_sites
from byname.naming.name import Name, at, quote_all
from byname.reading.arguments import parameters_of
from byname.reading.frames import caller, line_of, locals_of, programs_frame
from byname.reading.objects import attributes_of
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact, is_tensor
from byname.source.code import source_of
from byname.source.location import Site, is_library, locate
from byname.table import counted
from byname.tracking.functions import UNSCALE, memory_of
from byname.tracking.log import Change
from byname.tracking.tracker import logs


class Rebinding(NamedTuple):
    """A statement such as ``p = p - lr * p.grad``, which changes no tensor, and the one that does."""

    site: Site
    variable: str
    instead: str


class Flat(NamedTuple):
    """An operation whose derivative is 0 everywhere, such as ``round``.

    Attributes:
        operation: its name.
        site: the line that calls it.
        of_one: whether it is a softmax along a dimension with one element, the result of which is always the same.
    """

    operation: str
    site: Site | None
    of_one: bool = False


class Steps(NamedTuple):
    """The steps of an optimizer.

    Attributes:
        kind: the name of the optimizer's class.
        number: how many there were.
        site: the line that makes them.
        backward: the line of the last backward call that reached one of its parameters.
        idle: how many of them, the last ones, had a learning rate of 0.
        lost: whether a backward call had made gradients before each, and none was left.
        all_without: whether none of its parameters ever had a gradient.
        all_zero: whether all of its parameters had gradients of zeros only.
        over: whether there are no more to come.
        heard: whether any backward call was seen in the program.
        flat: an operation between the loss and the parameters whose derivative is 0 everywhere.
        use: where those of its parameters that have no gradient were used, if that was recorded.
    """

    kind: str
    number: int
    site: Site | None
    backward: Site | None
    idle: int
    lost: bool
    all_without: bool
    all_zero: bool
    over: bool
    heard: bool
    flat: Flat | None
    use: Use | None

    def __str__(self) -> str:
        return f"the {self.number} steps of {self.kind}{at(self.site)}"


MOVED, PUT_BACK = "moved", "put back"
"""What became of the values of a parameter: a step changed them; and they were the old ones before the next step."""

_MANY = 8
"""Steps after which something is said of some parameters of an optimizer, while others of it learn."""


def nothing_learnt(
    steps: Steps, without: tuple[Name, ...], zero: tuple[Name, ...], same: dict[Name, str], others: tuple[Name, ...]
) -> list[Finding]:
    """Return findings about parameters that no step of their optimizer changed.

    Args:
        steps: the steps.
        without: the parameters that had no gradient in any of them.
        zero: the parameters whose gradient was 0 whenever it was read.
        same: the parameters that had the same values and a gradient whenever they were read: their dtype in words if no
            step changed them, MOVED or PUT_BACK.
        others: the parameters that losses reach and that no optimizer has.
    """
    found = [_rate(steps)] if steps.idle == steps.number else []
    if steps.over and _MANY <= steps.idle < steps.number <= 4 * steps.idle:
        found.append(_ran_out(steps))
    if without and steps.lost and steps.all_without:
        found.append(_lost(steps, without))
    elif without and steps.all_without:
        found.append(_strangers(steps, without, others))
    elif without and not others and steps.over and steps.number >= _MANY:
        found.append(_unused(steps, without))
    if zero and (steps.all_zero or steps.number >= _MANY):
        found.append(_zero(steps, zero))
    if steps.over and steps.number >= _MANY and steps.idle != steps.number:
        for fate in sorted({*same.values()} - {MOVED}):
            found.append(_same(steps, tuple([name for name, its in same.items() if its == fate]), fate))
    return found


_CHOICES = (
    "a choice has no gradient: draw by torch.distributions.RelaxedBernoulli(...).rsample() or F.gumbel_softmax(), or "
    "weight the log-probability of what was drawn (REINFORCE)"
)
_ONE_ELEMENT = (
    "take it along the dimension of the classes; one logit a sample goes to binary_cross_entropy_with_logits, or to a "
    "sigmoid: cross_entropy, which begins with log_softmax, needs a logit for each class"
)
_DRAWN = {
    "normal": "draw by mean + std * torch.randn_like(std), or by torch.distributions.Normal(mean, std).rsample()",
    "bernoulli": _CHOICES,
    "poisson": _CHOICES,
}
"""What to write instead of an operation that draws values."""


def _rate(steps: Steps) -> Finding:
    message = f"the learning rate (lr) is 0 in each of {steps}: they change no parameter"
    remedy = (
        "look at the lr that the optimizer was given and at its scheduler: with LambdaLR the function gives the factor "
        "of lr, and a division of whole numbers such as epoch // 10 is 0 at first"
    )
    return Finding("zero-learning-rate", message, (), known_sites(steps.site), remedy)


def _ran_out(steps: Steps) -> Finding:
    message = f"suspicious: the learning rate (lr) is 0 in the last {steps.idle} of {steps}: they change no parameter"
    remedy = (
        "call scheduler.step() once for each optimizer.step(), not for each micro-batch, or give the scheduler the "
        "number of all its calls; it is right if the parameters are frozen by it"
    )
    return Finding("zero-learning-rate", message, (), known_sites(steps.site), remedy)


def _lost(steps: Steps, names: tuple[Name, ...]) -> Finding:
    message = (
        f"{quote_all(names)} {_have(names, 'has', 'have')} no gradient in any of {steps}, though the backward"
        f"{at(steps.backward)} reaches {_have(names, 'it', 'them')} before: the gradients are cleared in between, as "
        "zero_grad() does"
    )
    remedy = "call zero_grad() before the backward or after the step, not between them"
    return Finding("zeroed-before-step", message, culprits_of(*names), known_sites(steps.backward, steps.site), remedy)


def _strangers(steps: Steps, names: tuple[Name, ...], others: tuple[Name, ...]) -> Finding:
    message = (
        f"{quote_all(names)} {_have(names, 'has', 'have')} no gradient in any of {steps}: no step changes anything"
    )
    if others:
        message += f". The losses reach {quote_all(others)}, and no optimizer has {_have(others, 'it', 'them')}"
        remedy = "build the optimizer after the model is complete, from the parameters of this model"
        if steps.use is not None and steps.use.cut is not None:
            used, remedy = _used(steps.use, names)
            message += used
    elif not steps.heard:
        message += ". No call of backward() was seen"
        remedy = "call loss.backward() before the step; without its parentheses, loss.backward calls nothing"
    else:
        message += ". No loss that was looked at is computed from the parameters themselves"
        remedy = (
            "compute the loss with these parameters: a copy (copy.deepcopy, .data) passes no "
            "gradient back to them; torch.func.functional_call runs a module with other values in their place"
        )
    sites = known_sites(steps.use and steps.use.site, steps.site)
    return Finding("never-learns", message, culprits_of(*names), sites, remedy)


def _unused(steps: Steps, names: tuple[Name, ...]) -> Finding:
    message = (
        f"{quote_all(names)} {_have(names, 'has', 'have')} no gradient in any of {steps}, and other parameters of it "
        f"have: no backward reaches {_have(names, 'it', 'them')}"
    )
    used, remedy = _used(steps.use, names)
    remedy += f"; otherwise leave {_have(names, 'it', 'them')} out, or requires_grad_(False) says so"
    sites = known_sites(steps.use and steps.use.site, steps.site)
    return Finding("never-learns", message + used, culprits_of(*names), sites, remedy)


def _used(use: Use | None, names: tuple[Name, ...]) -> tuple[str, str]:
    """Return a sentence about the use of parameters that no loss reaches, and what to do if they should learn."""
    it, should = _have(names, "it", "them"), f"if {_have(names, 'it', 'they')} should learn, "
    if use is None:
        return "", f"{should}use {it} in forward"
    if use.cut is None:
        said = f". What is computed with {it}{at(use.site)} goes into no loss that was looked at"
        return said, f"{should}use {it} in the loss, too: `loss += ...` adds, and `loss =+ ...` replaces it"
    return f". The result of their use{at(use.site)} {why_cut(use.cut)}", should + remedy_of(use.cut)


def _same(steps: Steps, names: tuple[Name, ...], fate: str) -> Finding:
    why = f"the steps are too small for the dtype ({fate})"
    remedy = "take a larger learning rate, or keep parameters in float32 and compute under torch.autocast"
    if fate == PUT_BACK:
        why = "a step does change them, and something puts them back"
        remedy = "look for load_state_dict() or copy_() in each iteration; it is right if each begins anew on purpose"
    message = (
        f"{'suspicious: ' if fate == PUT_BACK else ''}{quote_all(names)} {_have(names, 'has', 'have')} the same values "
        f"before each of those of {steps} that were looked at, though {_have(names, 'its', 'their')} gradients are not "
        f"0: {why}. Only a few small parameters are looked at"
    )
    return Finding("never-learns", message, culprits_of(*names), known_sites(steps.site), remedy)


def left_in_evaluation(steps: Steps, last: int, kinds: str) -> Finding:
    """Return a finding about a model that was in training mode at first, and in evaluation mode in the last steps."""
    message = (
        f"suspicious: {kinds} in the model were in training mode at first, and the model is in evaluation mode in the "
        f"last {last} of {steps}: no dropout, and fixed statistics, as after model.eval() without a model.train()"
    )
    remedy = "call `model.train()` after each evaluation, or as each epoch begins; it is right if this is meant"
    return Finding("left-in-evaluation", message, (), known_sites(steps.backward, steps.site), remedy)


def all_frozen(steps: Steps, others: tuple[Name, ...]) -> Finding:
    """Return a finding about an optimizer of frozen parameters, and `others` that losses reach and no optimizer has."""
    message = (
        f"no parameter of the optimizer requires grad in any of {steps}: no step changes anything. The losses reach "
        f"{quote_all(others)}, and no optimizer has {_have(others, 'it', 'them')}"
    )
    remedy = "build the optimizer when the model is complete, from those of its parameters that require grad"
    return Finding("never-learns", message, culprits_of(*others), known_sites(steps.site), remedy)


def made_anew(steps: Steps, number: int, names: tuple[Name, ...]) -> Finding:
    """Return a finding about an optimizer with a state that is made anew for each step, over the same parameters."""
    message = (
        f"suspicious: {number} times in a row a new {steps.kind} made one step{at(steps.site)} for {quote_all(names)}: "
        "what it keeps of earlier gradients begins anew each time"
    )
    remedy = "make the optimizer once, before the loop; to change a setting, assign it in optimizer.param_groups"
    return Finding("optimizer-anew", message, culprits_of(*names), known_sites(steps.site), remedy)


def _zero(steps: Steps, names: tuple[Name, ...]) -> Finding:
    message = f"the gradient of {quote_all(names)} is exactly 0 in each of those of {steps} that were looked at"
    if steps.flat is not None:
        operation, site, of_one = steps.flat
        if of_one:
            message += f": {operation}(){at(site)} is along a dimension with one element, so that its result is always "
            message += "0" if operation == "log_softmax" else "1"
            return Finding("zero-gradient", message, culprits_of(*names), known_sites(site, steps.site), _ONE_ELEMENT)
        message += f": the derivative of {operation}(){at(site)} is 0 everywhere"
        remedy = _DRAWN.get(operation) or (
            f"leave {operation}() out where the loss is computed, and use it in evaluation only; a straight-through "
            f"gradient is x + (x.{operation}() - x).detach()"
        )
        return Finding("zero-gradient", message, culprits_of(*names), known_sites(site, steps.site), remedy)
    remedy = (
        "look for what is saturated or has no slope between them and the loss, such as clamp, relu or a comparison, "
        "for a factor of 0, and for weights that are all 0"
    )
    if steps.all_zero:
        remedy = f"if zero_grad() is called between backward and step, call it before the backward; otherwise {remedy}"
    return Finding("zero-gradient", message, culprits_of(*names), known_sites(steps.site), remedy)


def never_stepped(steps: Steps, calls: int, names: tuple[Name, ...]) -> Finding:
    """Return a finding about an optimizer whose parameters get gradients and of which no call of ``step()`` was seen.

    Args:
        steps: the steps, of which there are none.
        calls: how many backward calls that reached its parameters were seen.
        names: its parameters.
    """
    message = (
        f"{counted(calls, 'backward call')} or more{at(steps.backward)} "
        f"{'reaches' if calls == 1 else 'reach'} {quote_all(names)}, and no step of the optimizer ({steps.kind}) that "
        f"has {_have(names, 'it', 'them')} was seen"
    )
    remedy = "call optimizer.step() after the backward; without its parentheses, optimizer.step calls nothing"
    return Finding("never-stepped", message, culprits_of(*names), known_sites(steps.backward), remedy)


def never_zeroed(steps: Steps, names: tuple[Name, ...]) -> Finding:
    """Return a finding about gradients that add up over the steps, since nothing clears them."""
    message = (
        f"nothing clears the gradients of {quote_all(names)} between {steps} so far: the backward{at(steps.backward)} "
        "adds to those of all iterations before (accumulates)"
    )
    remedy = "call optimizer.zero_grad() before each backward, or after each step"
    return Finding("never-zeroed", message, culprits_of(*names), known_sites(steps.backward, steps.site), remedy)


def cleared_between(steps: Steps, calls: int) -> Finding:
    """Return a finding about backward calls, so many before each step, whose gradients are cleared before another."""
    message = (
        f"suspicious: before each of {steps} so far, gradients of {counted(calls, 'backward call')}"
        f"{at(steps.backward)} are cleared, as by zero_grad(), before another is made there, and nothing reads them"
    )
    remedy = "to accumulate gradients, call zero_grad() after each step only, not before each backward"
    return Finding("zeroed-before-step", message, (), known_sites(steps.backward, steps.site), remedy)


def rebinding_in(code: CodeType | None) -> Rebinding | None:
    """Return the first statement of a code object's file that binds a stepped parameter to a new tensor, or None."""
    source = None if code is None else source_of(code)
    if code is None or source is None or source.tree is None:
        return None
    return next(_rebindings(source.tree, code.co_filename), None)


def _rebindings(tree: ast.AST, file: str) -> Iterator[Rebinding]:
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Assign) and isinstance(node.value, ast.BinOp)):
            continue
        target, value = node.targets[0], node.value
        sign = {ast.Sub: "-=", ast.Add: "+="}.get(type(value.op))
        if sign and isinstance(target, ast.Name) and ast.unparse(value.left) == target.id:
            change = ast.unparse(value.right)
            if any(ast.unparse(part) == f"{target.id}.grad" for part in ast.walk(value.right)):
                site = Site(file, node.lineno, statement=ast.unparse(node))
                yield Rebinding(site, target.id, f"{target.id} {sign} {change}")


def never_changed(rebinding: Rebinding, calls: int, backward: Site | None, names: tuple[Name, ...]) -> Finding:
    """Return a finding about parameters that get gradients, while a statement steps only what a variable is bound to.

    Args:
        rebinding: the statement.
        calls: how many backward calls have left the parameters as they were.
        backward: the line of these calls.
        names: the parameters.
    """
    statement, variable = rebinding.site.statement, rebinding.variable
    message = (
        f"{quote_all(names)} {_have(names, 'has', 'have')} the values of before {counted(calls, 'backward call')}"
        f"{at(backward)}: `{statement}`{at(rebinding.site)} makes a new tensor and binds `{variable}` to it, and "
        "changes no parameter"
    )
    remedy = f"change it in place: `with torch.no_grad(): {rebinding.instead}`"
    return Finding("never-learns", message, culprits_of(*names), known_sites(backward, rebinding.site), remedy)


def _have(names: tuple[Name, ...], one: str, several: str) -> str:
    return one if len(names) == 1 else several


_CLIPS = re.compile(r"\bclip_grad\w*\(")


def clipped_too_soon(optimizer: Any) -> Finding | None:
    """Return a finding about gradients clipped before the ``GradScaler`` that is about to step divided them."""
    with DisableTorchFunction():
        scale = _scale_of_step()
        clip = None if scale == 1 else _before_unscaling(optimizer)
    if clip is None or clip.code is None or not {"get_scale", "_scale"}.isdisjoint(clip.code.co_names):
        return None
    site = locate(clip.code, clip.instruction, clip.caller).site
    if is_library(site.file) or not _CLIPS.search(site.statement):
        return None
    code, instruction, outer = line_of(programs_frame(caller()))
    step = None if code is None else locate(code, instruction, outer)
    beside = step if code is clip.code else None  # its names are known there
    scaler, given = (beside.receiver, (*beside.operands, None)[0]) if beside is not None else (None, None)
    what = f"`{site.statement}`{at(site)} clips gradients that are still multiplied by the scale, {scale:g}"
    remedy = f"call `{scaler or 'scaler'}.unscale_({given or 'optimizer'})` on the line before it, after the backward"
    sites = known_sites(site, None if step is None else step.site)
    return Finding("scaler-order", f"GradScaler: {what}", (), sites, remedy)


def _scale_of_step() -> float:
    """Return the scale of the ``GradScaler`` that makes the step which is about to run; 1 if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not torch.amp.GradScaler.step.__code__:
        frame = frame.f_back
    scale: Any = None if frame is None else attributes_of(dict(locals_of(frame)).get("self")).get("_scale")
    return float(scale) if is_tensor(scale) else 1.0


def _before_unscaling(optimizer: Any) -> Change | None:
    """Return the last change of an optimizer's gradients before the last division by a scale, if there are both."""
    grads = [fact(one, "grad") for one in parameters_of(optimizer)]
    memory = {id(one): one for one in [memory_of(grad) for grad in grads if grad is not None]}
    every = (Change(*raw) for log in logs() if log.of_this_thread() for raw in reversed(log.changes))
    mine = (one for one in every if any(id(storage()) in memory for storage in one.storages))
    return next((before for one, before in pairwise(mine) if one.operation == UNSCALE), None)
