"""Schedules: schedulers of the wrong optimizer or of other steps, and learning rates that are too small or not set."""

from __future__ import annotations

import ast
import re
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.optim import lr_scheduler

from byname.diagnose.cause import variable
from byname.diagnose.followed_optimizer import FollowedOptimizer, has_zero_gradient
from byname.diagnose.nonfinite.reasons import can_read, reading_values
from byname.diagnose.silent.topic import ObservedCall, Topic, Watch, arg_name, on_call, topic_cause
from byname.naming.name import Name
from byname.reading.frames import Line
from byname.reading.objects import attributes_of
from byname.reading.tensor import PLAIN, fact
from byname.source.code import source_of, statements_of
from byname.source.location import assignments, is_library
from byname.table import counted
from byname.undo import Undo

_LESS_OFTEN = "lower it less often, such as by scheduler.step() once an epoch, or take a larger step_size or gamma"

# fmt: off
NEVER_SCHEDULED = topic_cause("scheduler-never-stepped",
    "{scheduler} ({kind}), made{noticed:at} for {optimizer}, is never stepped in {steps} steps: the learning rate "
    "stays at its first value, {rate:g}",
    "call {scheduler.path}.step() once an epoch, or once a step where its numbers count steps")
SCHEDULED_ANEW = topic_cause("scheduler-anew",
    "{times} schedulers or more, {scheduler} ({kind}), are made one after the other{noticed:at} for {optimizer}, and "
    "each makes one step{called:at}: none comes further, and the learning rate is {rate:g} still",
    "make it once, before the loop over the epochs, where the optimizer is made")
OTHER_OPTIMIZER = topic_cause("scheduler-of-another-optimizer",
    "{first}{made:at} and {scheduler}{noticed:at} are both schedulers of the same optimizer, {optimizer}, whose "
    "learning rate changes twice as fast; {other} has no scheduler",
    "give one of them the other optimizer: {scheduler.path} = {kind}({other.path}, ...)")
UNUSED_OPTIMIZER = topic_cause("scheduler-of-another-optimizer",
    "{scheduler} ({kind}), made{noticed:at}, changes the learning rate of {optimizer}, an optimizer that makes no "
    "step{since}; another one, {other}, makes the steps",
    "make the scheduler for the optimizer that makes the steps, after that is made")
OUT_OF_STEP = topic_cause("scheduler-out-of-step",
    "suspicious: {scheduler} ({kind}), made{noticed:at} for {span} steps, is stepped {times}{called:at} in the {steps} "
    "steps of the optimizer", "call {scheduler.path}.step() {when}")
WRONG_MODE = topic_cause("scheduler-wrong-mode",
    "suspicious: {scheduler} ({kind}), made{noticed:at}, is in mode '{mode}', and is given {metric}{called:at}, "
    "which goes from {first:.3g} to {last:.3g}: it takes an improvement for none, and reduces the learning rate",
    "{kind}(..., mode='{other}')")
RATE_FALLS = topic_cause("rate-too-small",
    "{assigned:-}suspicious: the learning rate (lr) of {optimizer} is less than a ten-thousandth of its largest, "
    "{most:g}, in {times} of {steps} steps{noticed:at}, and {rate:.2g} in the last one: these change next to nothing",
    _LESS_OFTEN)
RATE_NOT_SET = topic_cause("learning-rate-not-set",
    "`{assigned.statement}`{assigned:at} sets no learning rate: the steps of {optimizer}{noticed:at} take that of its "
    "param_groups, {rate:g}", "for group in {optimizer.path}.param_groups: group['lr'] = {value}")
RATE_TOO_SMALL = topic_cause("rate-too-small",
    "no step changes {share} of {names:3} since step {since} of {steps}, though their gradients are not 0: the "
    "learning rate (lr) is {rate:.2g} there{fall}", "{remedy}")
RETURNS_RATE = topic_cause("rate-too-small",
    "suspicious: {scheduler} ({kind}), made{noticed:at}, multiplies the learning rate {rate:g} of {optimizer} by "
    "{most:.2g} at most in {steps} steps: what its function returns is a factor, and seems to be a learning rate",
    "return a factor of up to 1, such as step / warmup, or make the optimizer with lr=1.0")
# fmt: on

_MANY, _ENOUGH = 8, 3
_SMALL = 1e-6
"""Learning rates that may be too small from the first step on."""
_FEW = 0.02
"""The share of the numbers with a gradient that a step may change and still counts as without effect."""
_MOST_NUMBERS = 1 << 21
"""Numbers of an optimizer whose parameters are compared, at most."""


@dataclass
class _Schedule:
    """A scheduler, its optimizer as far as it makes steps, the line that made it, and its own steps."""

    scheduler: weakref.ref[Any]
    optimizer: weakref.ref[Any]
    kind: str
    made: Line
    steps: int = 0
    called: Line | None = None
    followed: FollowedOptimizer | None = None
    seen: int = 0  # steps of the optimizer at the last of its own
    idle: int = 0  # its own since then, in a row
    span: int = 0  # the steps for which it is made
    metrics: tuple[Any, ...] = ()  # its mode, and the first and the last that it is given
    factors: list[float] = field(default_factory=list)  # of a LambdaLR: first, largest, last; its rate

    @property
    def facts(self) -> dict[str, Any]:
        names = {"scheduler": _target(self.made), "optimizer": arg_name(self.made, 0, "its optimizer")}
        return {"kind": self.kind, "noticed": self.made.site, **names}


class Schedules(Topic):
    """Watches schedulers, and at a few steps whether a step changes anything."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._schedules: list[_Schedule] = []
        self._rates: dict[int, list[float]] = {}  # at first; the step since which none changes a bit, and then
        self._changes = False  # a step changed some numbers, but few
        self.before: list[tuple[weakref.ref[torch.Tensor], torch.Tensor]] = []

    def begin(self, block: Undo) -> None:
        for kind in vars(lr_scheduler).values():
            if isinstance(kind, type) and issubclass(kind, lr_scheduler.LRScheduler):
                on_call(block, kind, "step", self._stepped)
                if kind in (lr_scheduler.LRScheduler, lr_scheduler.ReduceLROnPlateau):
                    on_call(block, kind, "__init__", self._made)

    def _made(self, call: ObservedCall, result: Any) -> None:
        optimizer: Any = attributes_of(call.args[0]).get("optimizer")
        line = call.programs_line
        if line.code is not None and not is_library(line.code.co_filename) and len(self._schedules) < _MANY**2:
            references = weakref.ref(call.args[0]), weakref.ref(optimizer)
            own = attributes_of(call.args[0])
            spans = [own[name] for name in ("total_steps", "T_max", "total_iters") if type(own.get(name)) is int]
            self._schedules.append(_Schedule(*references, type(call.args[0]).__name__, line, span=sum(spans)))
            _note_factor(self._schedules[-1])

    def _stepped(self, call: ObservedCall, result: Any) -> None:
        for schedule in self._schedules:  # none in its own __init__
            if schedule.scheduler() is call.args[0]:
                schedule.steps, schedule.called = schedule.steps + 1, schedule.called or call.programs_line
                made = 0 if schedule.followed is None else schedule.followed.steps
                schedule.seen, schedule.idle = made, schedule.idle + 1 if made == schedule.seen else 0
                _note_factor(schedule)
                metric, mode = call.given(1, "metrics"), attributes_of(call.args[0]).get("mode")
                if mode in ("min", "max") and type(metric) is float:
                    schedule.metrics = *(schedule.metrics or (mode, metric))[:2], metric

    def before_step(self, followed: FollowedOptimizer) -> None:
        """Find the schedulers of the optimizer, and keep a copy of its parameters at a few steps."""
        optimizer: Any = followed.optimizer()
        self.before = []
        rate = self._rates.setdefault(id(followed), [followed.rate, 0, 0])
        for schedule in self._schedules if optimizer is not None else ():
            groups = getattr(schedule.optimizer(), "param_groups", ())
            if schedule.followed is None and not {*map(id, groups)}.isdisjoint(map(id, optimizer.param_groups)):
                schedule.followed = followed
        if followed.is_sampled_step:
            self._look_for_rate_not_set(followed, optimizer)
        if not followed.is_sampled_step or followed.steps < _MANY or not (followed.rate or rate[1]):
            return
        parameters = [one for one in followed.parameters() if fact(one, "grad") is not None]
        with reading_values():
            plain = all(type(one) in PLAIN and one.dtype.itemsize > 2 and can_read(one) for one in parameters)
            plain = plain and all(fact(one, "grad").layout is torch.strided for one in parameters)
            if plain and sum(map(torch.numel, parameters)) <= _MOST_NUMBERS:
                self.before = [(weakref.ref(one), one.detach().clone()) for one in parameters]

    def _look_for_rate_not_set(self, followed: FollowedOptimizer, optimizer: Any) -> None:
        """Report an assignment of a learning rate to the optimizer itself, whose groups have another one."""
        own, rate = attributes_of(optimizer), followed.rate
        values = {"lr": own.get("lr"), "learning_rate": own.get("learning_rate")}
        values["defaults['lr']"] = own.get("defaults", {}).get("lr")
        wrong = {f"{followed.variable.path}.{key}" for key, one in values.items() if type(one) is float and one != rate}
        is_torchs = wrong and type(optimizer).__module__.startswith("torch.")  # another may read it
        for site, node in assignments(followed.line.code) if is_torchs else ():
            if ast.unparse(node.targets[0]) in wrong:
                facts = {"assigned": site, "value": ast.unparse(node.value), "rate": rate}
                self.report(RATE_NOT_SET, followed.site, optimizer=followed.variable, **facts)

    def after_step(self, followed: FollowedOptimizer) -> None:
        before, self.before, rate = self.before, [], self._rates[id(followed)]
        alive = [(one, old) for reference, old in before if (one := reference()) is not None]
        with reading_values():
            every = _total([torch.count_nonzero(fact(one, "grad")) for one, _ in alive])
            changed = _total([torch.count_nonzero(one.detach() != old) for one, old in alive])
        moving = [one for one, _ in alive if not has_zero_gradient(one)] if changed <= _FEW * every else []
        self._changes = self._changes or (changed > 0 and bool(moving))
        if not moving:
            rate[1:] = 0, 0
        elif not rate[1]:
            rate[1:] = followed.steps, followed.rate
            followed.name(moving)

    def end(self, every: Sequence[FollowedOptimizer]) -> None:
        stepped = [one for one in every if one.steps >= _MANY]
        used = [one.followed for one in self._schedules]
        without = [one for one in stepped if all(one is not other for other in used)]
        for followed in stepped:
            self._report_rate(followed)
        for at, schedule in enumerate(self._schedules):
            self._report_span(schedule)
            self._report_mode(schedule)
            self._report_factor(schedule)
            same = [one for one in self._schedules if one.followed is schedule.followed]
            anew = [one.called for one in same if one.made.place == schedule.made.place and one.steps == 1]
            rate = self._rates.get(id(schedule.followed), [-1.0])[0]
            if schedule.followed in stepped and len(anew) >= _ENOUGH and schedule.followed.rate == rate:
                called = anew[0].site if anew[0] is not None else None
                self.report(SCHEDULED_ANEW, called=called, times=len(anew), rate=rate, **schedule.facts)
            keys = schedule.followed.keys if schedule.followed is not None else None
            later = [one for one in without if keys is None or not one.keys.isdisjoint(keys)]
            if later and (schedule.steps if keys is None else schedule.idle) >= _ENOUGH:
                since = "" if keys is None else f" since its step {schedule.seen}"
                self.report(UNUSED_OPTIMIZER, other=later[0].variable, since=since, **schedule.facts)
            elif schedule.followed in stepped and not any(one.steps or _is_stepped_in_source(one) for one in same):
                self.report(NEVER_SCHEDULED, steps=schedule.followed.steps, rate=rate, **schedule.facts)
            for other in same if schedule.followed is not None and without else ():
                twins = other.kind == schedule.kind and other.steps == schedule.steps > 0
                if twins and other.made.place != schedule.made.place and other in self._schedules[:at]:
                    facts = {"first": _target(other.made), "made": other.made.site, "other": without[0].variable}
                    self.report(OTHER_OPTIMIZER, **facts, **schedule.facts)

    def _report_span(self, schedule: _Schedule) -> None:
        """Report a scheduler that is made for the steps of the optimizer, and stepped once an epoch; or otherwise."""
        called, span, times = schedule.called, schedule.span, schedule.steps
        steps = 0 if schedule.followed is None else schedule.followed.steps
        is_rare = 4 * times <= span >= 2 * _MANY and abs(span - steps) <= 0.1 * span
        is_often = schedule.kind == "CosineAnnealingLR" and times >= max(4 * span, 0.9 * steps)
        is_often = is_often and "epoch" in getattr(schedule.made.site, "statement", "").lower()
        if called is not None and (is_rare or is_often):
            when = "after each optimizer.step()" if is_rare else "once an epoch"
            facts = {"span": span, "times": counted(times, "time"), "steps": steps, "when": when}
            self.report(OUT_OF_STEP, called=called.site, **facts, **schedule.facts)

    def _report_mode(self, schedule: _Schedule) -> None:
        """Report a scheduler that looks for a fall of a growing accuracy, or a rise of a falling loss."""
        mode, first, last = schedule.metrics or ("", 0.0, 0.0)
        other, words = ("max", _ACCURACIES) if mode == "min" else ("min", _LOSSES)
        if schedule.called is None or first == last or (last > first) is not (mode == "min"):
            return
        metric = arg_name(schedule.called, 0, "")
        if words.search(metric.path.lower()):
            facts = {"mode": mode, "other": other, "metric": metric, "called": schedule.called.site}
            self.report(WRONG_MODE, first=first, last=last, **facts, **schedule.facts)

    def _report_factor(self, schedule: _Schedule) -> None:
        """Report a LambdaLR that makes the learning rate a small part of what it is, and not because it warms up."""
        first, most, last, rate = schedule.factors or (1.0, 1.0, 1.0, 1.0)
        if schedule.steps >= _MANY and 0 < most < 0.05 and rate < 0.5 and not first < most == last:
            self.report(RETURNS_RATE, rate=rate, most=most, steps=schedule.steps, **schedule.facts)

    def _report_rate(self, followed: FollowedOptimizer) -> None:
        first, since, then = self._rates.get(id(followed), (0, 0, 0))
        is_small = then < 1e-3 * first or then < _SMALL  # otherwise the program may have converged
        if not since or not then or followed.steps < 1.25 * since or not is_small:
            if 2 * followed.faint_steps >= followed.steps >= _MANY**2:
                every = [site for site, one in assignments(followed.line.code) if _SETS_RATE.search(ast.unparse(one))]
                facts = {"steps": followed.steps, "optimizer": followed.variable, "assigned": [*every, None][0]}
                rates = {"times": followed.faint_steps, "most": followed.largest_rate, "rate": followed.rate}
                self.report(RATE_FALLS, followed.site, **rates, **facts)
            return
        known = [one for one in self._schedules if one.followed is followed and one.steps and then < first]
        fall, remedy = f", and was {first:g} at first", "take a larger lr"
        if then >= first:
            fall = " from the first step on"
        if known:
            fall += f": {known[0].kind} was stepped {counted(known[0].steps, 'time')}"
            remedy = _LESS_OFTEN
        called = known[0].called.site if known and known[0].called is not None else followed.site
        names = followed.names_of(followed.names)
        facts = {"since": int(since), "steps": followed.steps, "rate": then, "fall": fall, "remedy": remedy}
        facts["share"] = f"more than {_FEW:.0%} of the numbers" if self._changes else "one bit"
        self.report(RATE_TOO_SMALL, called, names=names, **facts)


def _note_factor(schedule: _Schedule) -> None:
    """Note the largest factor by which a LambdaLR multiplies a learning rate now."""
    own = attributes_of(schedule.scheduler()) if schedule.kind == "LambdaLR" else {}
    rates, now = ([one for one in own.get(name, ()) if type(one) is float] for name in ("base_lrs", "_last_lr"))
    factors = [one / rate for one, rate in zip(now, rates, strict=False) if rate]
    if factors:
        first, most, *_ = schedule.factors or [max(factors)] * 2
        schedule.factors = [first, max(most, *factors), max(factors), max(rates)]


def _target(line: Line) -> Name:
    return variable((line.site.target if line.site is not None else None) or "a scheduler")


def _is_stepped_in_source(schedule: _Schedule) -> bool:
    """Return whether the program has a line that would step a scheduler, perhaps later than this run went.

    If the file gives the scheduler to a call, any object may have it under another name, there or in the file of the
    optimizer's steps.
    """
    code, name = schedule.made.code, _target(schedule.made).path.rpartition(".")[2]
    source = None if code is None else source_of(code)
    if source is None or code is None:
        return False
    lines = _CODE.findall(source.text)
    here = [ast.unparse(one) for one in statements_of(code)] if code.co_name != "<module>" else lines
    given = [one for text in here for one in re.findall(rf"\w+\(.*\b{name}\b", text)]
    stepping = None if schedule.followed is None else schedule.followed.line.code
    other = source if stepping is None else source_of(stepping) or source
    several = any(len({*_STEPS.findall(one.text)}) > 1 for one in (source, other))
    return any(f"{name}.step(" in text for text in here) or (bool(given) and several)


_ACCURACIES = re.compile(r"^(?!.*(loss|err|neg)).*(?<![a-z])(acc|accuracy|auc|auroc|f1|m?iou|reward|r2)(?![a-z])")
_LOSSES = re.compile(r"^(?!.*(neg|minus|gain|elbo|score)).*(?<![a-z])(loss|error|r?mse|mae|perplexity|ppl)\W*$")
_SETS_RATE = re.compile(r"^[\w.]+\['lr'\] = ")
_CODE = re.compile(r"^\s*([^#\s].*)", re.M)
_STEPS = re.compile(r"([\w.]+)\.step\(")


def _total(counts: list[torch.Tensor]) -> int:
    """Return the sum of some counts, for which the program waits once, not for each that a GPU computes."""
    return int(sum(one.to(counts[0].device) for one in counts))
