"""Training: what held in every step of an optimizer, or in every backward call, of a running program.

To add a cause: a row with a condition on the facts of an optimizer (`FollowedOptimizer`), and a function that yields
further facts where the sentence needs some. A sentence about something that is only likely begins with ``suspicious:``.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from itertools import pairwise, takewhile
from types import CodeType
from typing import Any

import torch

from byname.diagnose.cause import Cause, Facts, always, no_extra_facts, render
from byname.diagnose.causes.cuts import remedy_of, why_cut
from byname.diagnose.causes.flat import DRAWN
from byname.diagnose.causes.not_reached import Use
from byname.diagnose.causes.ownership import registered_ids
from byname.diagnose.causes.readers import reads_gradients
from byname.diagnose.followed_optimizer import CARRIED, ENOUGH, MOVED, PUT_BACK, FollowedOptimizer
from byname.naming.name import Name, at
from byname.reading.frames import caller, locals_of, reported_frame, user_line
from byname.reading.functions import UNSCALE
from byname.reading.modules import parameters_of
from byname.reading.objects import attributes_of, living
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact, is_tensor, memory_of
from byname.source.location import Site, assignments, is_library, statements_binding
from byname.source.tracebacks import walk_frames
from byname.table import counted
from byname.tracking.log import Change, logs

MANY = 8
"""Steps after which some parameters of an optimizer are reported while its others learn."""
ANEW = 8
"""Optimizers in a row with one step each for the same parameters, at which that is reported."""
WASTEFUL = 3
"""Steps in a row with gradients cleared between backward calls before them, at which that is reported."""


def _clears_unread_gradients(followed: FollowedOptimizer) -> bool:
    is_wasteful = followed.accumulation.wasteful == WASTEFUL
    return is_wasteful and not reads_gradients() and not living(torch.amp.GradScaler)


def _made(followed: FollowedOptimizer) -> Site | None:
    """Return the one line beside its steps that binds the variable of an optimizer."""
    code = followed.line.code
    made = [] if code is None else [one.site for one in statements_binding(code, followed.variable.path)]
    return made[0] if len(made) == 1 else None


def _why_no_gradients(followed: FollowedOptimizer) -> Iterator[Facts]:
    """Yield why no parameter of an optimizer has a gradient."""
    names, others, made = followed.without_gradient, followed.outside, None
    if others:
        made = _made(followed)
        why: str = render(". The losses reach {others}, and no optimizer has {others:it|them}", others=others)
        why += f"; {followed.variable.path} was made{at(made)}" if made is not None else ""
        remedy = "build the optimizer after the model is complete, from the parameters of this model"
        if followed.use is not None:
            used, remedy = _used(followed.use, names)
            why, remedy = why + used, remedy if followed.use.cut is not None else _COPIED
    elif not followed.has_backward:
        why = ". No call of backward() was seen"
        remedy = "call loss.backward() before the step; without its parentheses, loss.backward calls nothing"
        if not re.search(r"step\(", getattr(followed.site, "statement", "step(")):
            remedy = "return the loss to the library that makes the steps, as training_step() has to: `return loss`"
    else:
        why = ". No loss that was looked at is computed from the parameters themselves"
        remedy = (
            "compute the loss with these parameters, or give the optimizer those that it is computed with: a copy "
            "(copy.deepcopy, .data, torch.func.stack_module_state) passes no gradient back to them; "
            "torch.func.functional_call runs a module with other values in their place"
        )
    yield {"why": str(why), "made": made, "used": followed.use and followed.use.site, "remedy": remedy}


def _unused(followed: FollowedOptimizer) -> Iterator[Facts]:
    names = followed.without_gradient
    if all(".param_groups[" in name.path for name in names) and followed.without.keys().isdisjoint(registered_ids()):
        how = render(". No module has {names:it|them}: another weight seems to have come in its place", names=names)
        yield {"how": how, "used": None, "remedy": "build the optimizer after the last change, or tie, of the weights"}
        return
    used, remedy = _used(followed.use, names)
    otherwise = render("otherwise leave {names:it|them} out, or requires_grad_(False) says so", names=names)
    remedy = f"{remedy}; {otherwise}"
    yield {"how": used, "used": followed.use and followed.use.site, "remedy": remedy}


def _used(use: Use | None, names: tuple[Name, ...]) -> tuple[str, str]:
    """Return a sentence about the use of parameters that no loss reaches, and what to do if they should learn."""
    should = render("if {names:it|they} should learn, ", names=names)
    it = render("{names:it|them}", names=names)
    if use is None:
        return "", f"{should}use {it} in forward"
    if use.cut is None:
        said = f". What is computed with {it}{at(use.site)} goes into no loss that was looked at" if use.site else ""
        return said, f"{should}use {it} in the loss, too: `loss += ...` adds, and `loss =+ ...` replaces it"
    return f". The result of their use{at(use.site)} {why_cut(use.cut)}", should + remedy_of(use.cut)


_COPIED = (
    "compute the loss with that result, and build the optimizer for all that should learn: vector_to_parameters(), "
    "load_state_dict() and .data copy its numbers and pass no gradient back; torch.func.functional_call runs a module "
    "with it in place of its parameters"
)
_TWO_ZEROS = ": {still:3} are 0 themselves, two layers in a row, and the gradient of each has the other as a factor"
_ONE_OF = "initialise only one of them by nn.init.zeros_(), and the other at random, as kaiming_uniform_() does"

_ONE_ELEMENT = (
    "take it along the dimension of the classes, or of the positions that an attention weighs, such as dim=1 of "
    "(batch, time, 1); one logit a sample goes to binary_cross_entropy_with_logits, or to a "
    "sigmoid: cross_entropy, which begins with log_softmax, needs a logit for each class"
)
_DEAD = {
    "relu": (
        "gave only zeros in the first backward, and passes no gradient",
        "a relu is dead where all that it is given is negative or 0: initialise the layer before it otherwise, scale "
        "its inputs, or take leaky_relu or gelu",
    ),
    "mul": (
        "multiplies by 0 in the first backward, and passes no gradient",
        "look at that factor: a whole division such as epoch // 10 is 0 at first, and so is what a dropout with p=1 "
        "gives: p is the probability to drop, 1 - keep_prob",
    ),
    "clamp": (
        "was given only values beyond its bounds in the first backward, and passes no gradient there",
        "clamp has no gradient beyond its bounds: map to them by torch.sigmoid() instead, initialise the layer before "
        "it otherwise, or clamp in evaluation only",
    ),
}
"""What an operation did that passes no gradient, and what to do."""


def _zero(followed: FollowedOptimizer) -> Iterator[Facts]:
    names, flat = followed.zero_gradient, followed.flat
    if not names:
        return
    still = {key: site for key, site in followed.still.items() if key in followed.zero}
    why: str = ""
    called: Any = None if flat is None else flat.site
    remedy = (
        "look for what is saturated or has no slope between them and the loss, such as clamp, relu or a comparison, "
        "for a factor of 0, as by //, a mask that leaves out what is computed with them, or inputs that are all 0"
    )
    if flat is not None and flat.of_one:
        along = f"{flat.operation}(){at(flat.site)} is along a dimension with one element"
        why = f": {along}, so that its result is always {0 if flat.operation == 'log_softmax' else 1}"
        remedy = _ONE_ELEMENT
    elif flat is not None and flat.of_equals:
        why = f": exp(){at(flat.site)} is of the difference of two equal results, whose gradients cancel"
        remedy = "detach one of them, as the old log-probability of a ratio: `(new - old.detach()).exp()`"
    elif flat is not None and not flat.dead:
        operation, why = flat.operation, f": the derivative of {flat.operation}(){at(flat.site)} is 0 everywhere"
        remedy = DRAWN.get(operation) or (
            f"leave {operation}() out where the loss is computed, and use it in evaluation only; a straight-through "
            f"gradient is x + (x.{operation}() - x).detach()"
        )
    elif len(still) > 1 and (len(followed.zero) < len(followed.keys) or len(still) == len(followed.zero)):
        called = [site for site in still.values() if site is not None]
        why, remedy = render(_TWO_ZEROS, still=followed.names_of(still)), _ONE_OF
    elif flat is not None:
        did, remedy = _DEAD[flat.operation]
        why = f": {flat.operation}(){at(flat.site)} {did}"
    elif len(followed.zero) == len(followed.keys):
        remedy = f"if zero_grad() is called between backward and step, call it before the backward; otherwise {remedy}"
    yield {"names": names, "why": why, "called": called, "remedy": remedy}


def _put_back(followed: FollowedOptimizer) -> Iterator[Facts]:
    return ({"names": names} for outcome, names in followed.same_values().items() if outcome == PUT_BACK)


def _too_small(followed: FollowedOptimizer) -> Iterator[Facts]:
    same = sorted(followed.same_values().items())
    return ({"names": names, "dtype": outcome} for outcome, names in same if outcome not in (MOVED, PUT_BACK))


def _all_parameters(followed: FollowedOptimizer) -> Iterator[Facts]:
    yield {"times": followed.anew, "names": followed.all_names(), "made": _made(followed)}


def _backward_calls(followed: FollowedOptimizer) -> Iterator[Facts]:
    calls = counted(followed.backwards, "backward call")
    yield {"number": followed.backwards, "calls": calls, "names": tuple(followed.names.values()), "noticed": None}


_CLIPS = re.compile(r"\bclip_grad\w*\(")


def _clipped_too_soon(followed: FollowedOptimizer) -> Iterator[Facts]:
    """Yield the line that clipped gradients before the ``GradScaler`` that is about to step divided them."""
    optimizer = followed.optimizer()
    with DisableTorchFunction():
        scale = _scale_of_step()
        clip = None if scale == 1 else _before_unscaling(optimizer)
    code, site = (None, None) if clip is None else (clip.line.code, clip.line.site)
    if code is None or site is None or not {"get_scale", "_scale"}.isdisjoint(code.co_names):
        return
    if is_library(site.file) or not _CLIPS.search(site.statement):
        return
    step = user_line(reported_frame(caller()))
    beside = step.expr if code is step.code else None  # its names are known there
    scaler, given = (beside.receiver, (*beside.operands, None)[0]) if beside is not None else (None, None)
    yield {
        "clip": site,
        "scale": scale,
        "scaler": scaler or "scaler",
        "optimizer": given or "optimizer",
        "noticed": step.site,
    }


def _still_scaled(followed: FollowedOptimizer) -> Iterator[Facts]:
    """Yield the scale of a ``GradScaler`` in the gradients of a step that it does not make, if nothing changed them."""
    scaler: Any = None if followed.scaler is None else followed.scaler()
    code = followed.line.code
    names = set(() if code is None else code.co_names)
    with DisableTorchFunction():
        scale = scaler.get_scale() if scaler is not None and _scale_of_step() == 1 else 1
        since = takewhile(lambda one: "zero" not in one.operation, _gradient_changes(followed.optimizer()))
        sites = [one.line.site for one in since if scale != 1]
    is_left = all(site is not None and _CLIPS.search(site.statement) for site in sites)
    if scale != 1 and is_left and names.isdisjoint(("get_scale", "_scale")):
        found = re.search(r"([\w.]+)\.scale\(", getattr(followed.backward, "statement", ""))
        yield {"scale": scale, "scaler": found[1] if found else "scaler", "optimizer": followed.variable.path}


def _scale_of_step() -> float:
    """Return the scale of the ``GradScaler`` that makes the step which is about to run; 1 if there is none."""
    step = torch.amp.GradScaler.step.__code__
    frame = next((one for one in walk_frames(sys._getframe(1)) if one.f_code is step), None)
    scale: Any = None if frame is None else attributes_of(dict(locals_of(frame)).get("self")).get("_scale")
    return float(scale) if is_tensor(scale) else 1.0


def _gradient_changes(optimizer: Any) -> Iterator[Change]:
    """Yield the recorded changes of an optimizer's gradients, the last one first."""
    grads = [fact(one, "grad") for one in parameters_of(optimizer)]
    memory = {id(one): one for one in [memory_of(grad) for grad in grads if grad is not None]}
    every = (one for log in logs() if log.of_this_thread() for one in reversed(log.changes))
    return (one for one in every if any(id(storage()) in memory for storage in one.storages))


def _before_unscaling(optimizer: Any) -> Change | None:
    """Return the last change of an optimizer's gradients before the last division by a scale, if there are both."""
    mine = _gradient_changes(optimizer)
    return next((before for one, before in pairwise(mine) if one.operation == UNSCALE), None)


def rebinding_in(code: CodeType | None) -> dict[str, Any] | None:
    """Return the first statement of a file such as ``p = p - lr * p.grad``, and the one to write instead, or None."""
    for site, node in assignments(code):
        target, value = node.targets[0], node.value
        if isinstance(value, ast.BinOp) and isinstance(target, ast.Name) and ast.unparse(value.left) == target.id:
            sign = {ast.Sub: "-=", ast.Add: "+="}.get(type(value.op))
            parts = map(ast.unparse, ast.walk(value.right))
            if sign and f"{target.id}.grad" in parts:
                instead = f"{target.id} {sign} {ast.unparse(value.right)}"
                return {"noticed": site, "variable": target.id, "instead": instead}
    return None


# fmt: off
STEPPING: tuple[Cause[FollowedOptimizer], ...] = (
    Cause("scaler-order", lambda followed: followed.steps == 1, _clipped_too_soon,
        "GradScaler: `{clip.statement}`{clip:at} clips gradients that are still multiplied by the scale, {scale:g}",
        "call `{scaler}.unscale_({optimizer})` on the line before it, after the backward"),
    Cause("scaler-order", lambda followed: followed.steps == ENOUGH, _still_scaled,
        "GradScaler: the gradients of this step of {kind}{noticed:at} are still multiplied by the scale, {scale:g}, "
        "since the backward{backward:at}: nothing divides them",
        "call `{scaler}.step({optimizer})`, which divides them first, in place of {optimizer}.step()"),
    Cause("optimizer-anew", lambda followed: followed.anew == ANEW, _all_parameters,
        "suspicious: {times} times in a row a new {kind}{made:at} made one step{noticed:at} for {names}: what it keeps "
        "of earlier gradients begins anew each time",
        "make the optimizer once, before the loop; to change a setting, assign it in optimizer.param_groups"),
    Cause("never-zeroed", lambda followed: followed.accumulation.carried == CARRIED, _all_parameters,
        "nothing clears the gradients of {names} between {steps} so far: the backward{backward:at} adds to those of "
        "all iterations before (accumulates)",
        "call optimizer.zero_grad() before each backward, or after each step"),
    Cause("zeroed-before-step", _clears_unread_gradients,
        lambda followed: [{"calls": counted(followed.accumulation.wasted, "backward call")}],
        "suspicious: before each of {steps} so far, gradients of {calls}{backward:at} are cleared, as by zero_grad(), "
        "before another is made there, and nothing reads them",
        "to accumulate gradients, call zero_grad() after each step only, not before each backward"),
)
"""Causes that are looked for before each step of an optimizer."""

OVER_STEPS: tuple[Cause[FollowedOptimizer], ...] = (
    Cause("zero-learning-rate", lambda followed: followed.steps == followed.idle, no_extra_facts,
        "the learning rate (lr) is 0 in each of {steps}: they change no parameter",
        "look at the lr that the optimizer was given, and at its scheduler: is scheduler.step() called? With LambdaLR "
        "look at the function, which gives the factor of lr: a division such as epoch // 10 is 0 at first. "
        "Lightning calls it once an epoch, unless it is given with 'interval': 'step'"),
    Cause("zero-learning-rate",
        lambda followed: followed.done and MANY <= followed.idle < followed.steps <= 4 * followed.idle,
        no_extra_facts,
        "suspicious: the learning rate (lr) is 0 in the last {idle} of {steps}: they change no parameter",
        "call scheduler.step() once for each optimizer.step(), not for each micro-batch, or give the scheduler the "
        "number of all its calls, in all epochs; it is right if the parameters are frozen by it"),
    Cause("zeroed-before-step", lambda followed: followed.all_without and followed.loses_gradients, no_extra_facts,
        "{without} {without:has|have} no gradient in any of {steps}, though the backward{backward:at} reaches "
        "{without:it|them} before: the gradients are cleared in between, as zero_grad() does",
        "call zero_grad() before the backward or after the step, not between them"),
    Cause("never-learns", lambda followed: followed.all_without and not followed.loses_gradients, _why_no_gradients,
        "{without} {without:has|have} no gradient in any of {steps}: no step changes anything{why}{made:-}{used:-}",
        "{remedy}"),
    Cause("never-learns",
        lambda it: it.done and it.steps >= MANY and bool(it.without_gradient) and not (it.outside or it.all_without),
        _unused,
        "{without} {without:has|have} no gradient in any of {steps}, and other parameters of it have: no backward "
        "reaches {without:it|them}{how}{used:-}", "{remedy}"),
    Cause("zero-gradient",
        lambda one: (one.steps >= MANY or len(one.zero) == len(one.keys))
        and (one.losses != {True} or (one.flat is not None and not one.flat.dead)),
        _zero,
        "the gradient of {names} is exactly 0 in each of those of {steps} that were looked at{why}{called:-}",
        "{remedy}"),
    Cause("never-learns", lambda followed: followed.done and followed.steps >= MANY and followed.idle != followed.steps,
        _put_back,
        "suspicious: {names} {names:has|have} the same values before each of those of {steps} that were looked at, "
        "though {names:its|their} gradients are not 0: a step does change them, and something puts them back. Only a "
        "few small parameters are looked at",
        "look for load_state_dict() or copy_() in each iteration; it is right if each begins anew on purpose"),
    Cause("never-learns", lambda followed: followed.done and followed.steps >= MANY and followed.idle != followed.steps,
        _too_small,
        "{names} {names:has|have} the same values before each of those of {steps} that were looked at, though "
        "{names:its|their} gradients are not 0: the steps are too small for the dtype ({dtype}). Only a few small "
        "parameters are looked at",
        "take a larger learning rate, or keep parameters in float32 and compute under torch.autocast"),
    Cause("never-learns", lambda followed: followed.frozen and bool(followed.outside), no_extra_facts,
        "no parameter of the optimizer requires grad in any of {steps}: no step changes anything. The losses reach "
        "{outside}, and no optimizer has {outside:it|them}",
        "build the optimizer when the model is complete, from those of its parameters that require grad"),
    Cause("left-in-evaluation",
        lambda one: one.done and 2 * ENOUGH <= one.modes.evaluating < one.steps <= 2 * one.modes.evaluating,
        no_extra_facts,
        "{backward:-}suspicious: {modal} in the model ran in training mode at first, and in evaluation mode in "
        "{evaluating} of {steps}: no dropout, and fixed statistics, as after model.eval(){put:at} "
        "without a model.train()",
        "call `model.train()` after each evaluation, or as each epoch begins; it is right if this is meant"),
)
"""Causes that are looked for after many steps of an optimizer, or when the program ends."""

ADDS: Cause[FollowedOptimizer] = Cause("never-zeroed", always, _all_parameters,
    "nothing clears the gradients of {names} between the backward calls{backward:at} of a step of {kind}{noticed:at}, "
    "which its closure makes: each adds to those before (accumulates)",
    "call optimizer.zero_grad() in the closure, before its backward")

NEVER_STEPPED: Cause[FollowedOptimizer] = Cause("never-stepped", always, _backward_calls,
    "{calls} or more{backward:at} {number:reaches|reach} {names}, and no step of the optimizer ({kind}) that has "
    "{names:it|them} was seen",
    "call optimizer.step() after the backward; without its parentheses, optimizer.step calls nothing")

BY_HAND: Cause[Any] = Cause("never-learns", always, no_extra_facts,
    "{names} {names:has|have} the values of before {calls}{backward:at}: `{noticed.statement}`{noticed:at} "
    "makes a new tensor and binds `{variable}` to it, and changes no parameter",
    "change it in place: `with torch.no_grad(): {instead}`")
