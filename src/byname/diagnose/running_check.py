"""Running check: the watch of a program that runs; it checks each new loss and says what learns nothing, and why."""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.functional import dropout
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from byname.autograd.walk import has_graph
from byname.diagnose.cause import C, Cause
from byname.diagnose.causes.flat import flat_operation_in
from byname.diagnose.causes.iterations import GRAPH_GROWS, GRAPH_IN_GRAD
from byname.diagnose.causes.loss import Loss, is_first, lines_by_hand
from byname.diagnose.causes.losses import LOSSES
from byname.diagnose.causes.not_reached import MAY_BE, unreached_parameters
from byname.diagnose.causes.ownership import LEFT_OUT
from byname.diagnose.causes.training import ADDS, BY_HAND, NEVER_STEPPED, OVER_STEPS, STEPPING, rebinding_in
from byname.diagnose.check import problems
from byname.diagnose.context import FailureContext
from byname.diagnose.engine import BackwardCall, safely
from byname.diagnose.finding import Finding
from byname.diagnose.followed_optimizer import CARRIED, ENOUGH, MOST_NAMED, FollowedOptimizer, SingleSteps, alive
from byname.diagnose.nonfinite.reasons import is_zero, sum_of
from byname.diagnose.silent.aliases import Aliases
from byname.diagnose.silent.copies import WeightCopies
from byname.diagnose.silent.evaluation_mode import EvaluationMode
from byname.diagnose.silent.labels import Labels
from byname.diagnose.silent.loading import Loading
from byname.diagnose.silent.ranks_apart import Ranks
from byname.diagnose.silent.scales import Scales
from byname.diagnose.silent.schedules import Schedules
from byname.diagnose.silent.sequences import Sequences
from byname.diagnose.silent.shuffles import Seeds, Shuffles
from byname.diagnose.silent.topic import LOSSES_WITH_TARGETS, ObservedCall, Topic, on_call
from byname.diagnose.silent.training_batches import Batches
from byname.diagnose.silent.units import Units
from byname.diagnose.silent.unused_calls import Clipping, Unused
from byname.naming.name import Name
from byname.naming.names import find
from byname.naming.search import Targets
from byname.reading.frames import Line, caller
from byname.reading.modules import parameters_in, parameters_of
from byname.reading.objects import living
from byname.reading.quiet import collection_paused, dynamo_skip
from byname.reading.tensor import fact, is_one_memory, is_tensor
from byname.source.code import CodeKey
from byname.source.location import is_library
from byname.table import counted
from byname.tracking.log import logs
from byname.undo import Undo

_CALLS, _GROWN_BY = 16, 4
"""Calls of each line that calls backward whose graph is looked at; the one that is checked for a graph that has grown,
three iterations after the first."""
_PHASES = 4
"""Optimizers made after others made steps, as for a second training, whose first steps are looked at again."""
_CALLS_OF_WASTE = 64
"""Calls of each line whose graph is looked at where gradients are cleared between backward calls."""
_LOOKED_INTO, _FIRST, _OBSERVED_IN = 2, 16, 64
"""Steps in which modules inside of others are looked at; outermost modules, and the steps themselves; losses, and
modules that were not called before."""
_REPORT_AT = (64, 1024)
"""Steps at which findings are reported; the others are reported when the program ends."""
_ERROR_CAUSES = ("backward-twice", "modified-in-place", "no-grad-path", "optimizer-step-between")
"""Causes of errors that backward raises with a note of the same content."""
_MOST_HELD = 50


@dataclass
class _Backwards:
    """The backward calls of one line."""

    calls: int = 0
    reached: dict[int, FollowedOptimizer] = field(default_factory=dict)  # by the first of them
    rebinding: dict[str, Any] | None = None  # a statement that was meant to make a step by hand
    before: list[tuple[weakref.ref[torch.Tensor], float]] = field(default_factory=list)  # its parameters, their sums
    by_hand: dict[Line, str] = field(default_factory=dict)  # lines of differences in a loss by hand, and the reduction


class RunningCheck:
    """Check of the first backward calls of each line, and of all steps of optimizers until the program ends.

    The user has not said which model should learn from which loss, so only optimizers with a parameter in the graph are
    checked. Of their parameters that the loss does not reach, it reports only those that a recorded call cut off, and
    that have no gradient from any other loss at the optimizer's step. It checks at each step whether gradients are
    there, as long as some are missing, and reads values at a few steps only. It reports after many steps, or when the
    program ends, what held in every step until then.
    """

    def __init__(
        self, report: Callable[[Finding], None], models: Sequence[nn.Module], optimizers: Sequence[Any], watched: bool
    ) -> None:
        self._report, self._models, self._optimizers, self.is_finite_watched = report, models, optimizers, watched
        self.steps = 0  # of all optimizers so far
        self.began = self._phases = 0  # the steps before the newest optimizer was made; optimizers made after steps
        self._lines: dict[tuple[CodeKey, int], _Backwards] = {}
        self._reported: set[tuple[str, frozenset[str]]] = set()
        self._reported_on: set[int] = set()  # optimizers, by `id`
        self._made: deque[weakref.ref[Any]] = deque(maxlen=1024)
        self._followed: dict[int, FollowedOptimizer] = {}
        self._outside: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._scaled: tuple[weakref.ref[Any], weakref.ref[Any]] | None = None  # the last GradScaler, and its result
        self._outside_names: tuple[Name, ...] = ()
        self._single = SingleSteps()
        self._modules: dict[int, tuple[weakref.ref[nn.Module], bool]] = {}
        self._graded: dict[tuple[CodeKey, int], bool] = {}  # whether a line with gradients may be an evaluation
        self._calls: dict[tuple[Any, ...], tuple[int, int]] = {}  # the step of the last, and how many
        self._leaf_losses = self._has_backward = self._over = self.leaves_out_losses = False
        self._unfrozen = [0]  # parameters unfrozen so far, at the first times that some were
        self._schedules, self._units, self._evaluation = Schedules(self), Units(self), EvaluationMode(self)
        self._inputs, self._copies, self._loading = Scales(self), WeightCopies(self), Loading(self)
        kinds = (Clipping, Batches, Aliases, Sequences, Shuffles, Ranks, Unused, Seeds, Labels)
        topics = [self._schedules, self._units, self._evaluation, self._inputs, self._copies, self._loading]
        self._topics: list[Topic] = [*topics, *(kind(self) for kind in kinds)]
        self._applying = [one.applied for one in self._topics if type(one).applied is not Topic.applied]
        self._running = [one.ran for one in self._topics if type(one).ran is not Topic.ran]
        self._evaluating = [one.evaluated for one in self._topics if type(one).evaluated is not Topic.evaluated]

    def begin(self, block: Undo) -> None:
        """Watch until the block is left; then report the findings."""
        block.add(safely, self._end)
        on_call(block, torch.optim.Optimizer, "__init__", self._note_optimizer)
        on_call(block, torch.amp.GradScaler, "scale", self._scales)
        block.register(register_optimizer_step_pre_hook, self._before_step)
        block.register(register_optimizer_step_post_hook, self._after_step)
        for topic in self._topics:
            topic.begin(block)

    def _note_optimizer(self, call: ObservedCall, _: Any) -> None:
        """Note a new optimizer, and look again at steps if it is that of a second training."""
        self._made.append(weakref.ref(call.args[0]))
        if self.began < self.steps and self._phases < _PHASES:
            self.began, self._phases = self.steps, self._phases + 1
            self._look_again()

    def _scales(self, call: ObservedCall, result: Any) -> None:
        self._scaled = (weakref.ref(call.args[0]), weakref.ref(result)) if is_tensor(result) else None

    @property
    def _recent(self) -> int:
        """The steps since the newest optimizer was made."""
        return self.steps - self.began

    def optimizers(self) -> list[FollowedOptimizer]:
        return list(self._followed.values())

    def report_once(self, finding: Finding) -> None:
        key = (finding.cause, frozenset(map(str, finding.culprits or finding.sites)))  # in any order
        if key not in self._reported:
            self._reported.add(key)
            self._report(finding)

    def _report_all(self, causes: Iterable[Cause[C]], case: C) -> list[Finding]:
        found = [finding for cause in causes for finding in cause.findings(case)]
        for finding in found:
            self.report_once(finding)
        return found

    def applied(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any], frame: FrameType) -> None:
        """Note a call of a loss, or of a dropout without gradients, in the first steps; a tensor copied to itself."""
        drops = function is dropout and not torch.is_grad_enabled()
        if function is torch.Tensor.copy_:
            is_of_use = self.steps > 0 and is_one_memory(*args[:2])
        else:
            is_of_use = self._recent <= _OBSERVED_IN and (drops or function in LOSSES_WITH_TARGETS)
        if is_of_use and self._is_one_of_many(function, frame.f_lasti, _place_of(frame), step=self.steps):
            self.leaves_out_losses = True
        elif is_of_use:
            self._tell(self._applying, ObservedCall(function, args, kwargs, frame))

    def ran(self, module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any], depth: int, frame: FrameType) -> None:
        """Note that a module is called: in the first steps, and an outermost one without gradients later, too."""
        if torch._C._get_tracing_state() is not None:  # torch.jit.trace records what is asked of a tensor, as its shape
            return
        if torch.is_grad_enabled():
            self._ran_with_gradients(module, args, kwargs, depth, frame)
        elif depth == 1 and self._recent <= _LOOKED_INTO:  # a target inside a learner
            safely(self._copies.evaluated, ObservedCall(module, args, kwargs, frame))
        elif not depth and not self._is_enough(module, frame) and self._has_parameters(module):
            self._tell(self._evaluating, ObservedCall(module, args, kwargs, frame))

    def _ran_with_gradients(self, module: nn.Module, args: Any, kwargs: Any, depth: int, frame: FrameType) -> None:
        most = _LOOKED_INTO if depth else _FIRST if id(module) in self._modules else _OBSERVED_IN
        is_early, is_sampled = self._recent <= most, self.steps & (self.steps - 1) == 0
        if self.steps and not depth:
            place = _place_of(frame)
            if self._graded.get(place, True) and self._has_parameters(module):
                self._graded[place] = bool(safely(self._evaluation.graded, ObservedCall(module, args, kwargs, frame)))
        if (is_early or is_sampled) and self._is_one_of_many(_place_of(frame), step=self.steps):
            return
        if is_early and (depth or self._has_parameters(module)):
            self._tell(self._running, ObservedCall(module, args, kwargs, frame, depth))
        elif not depth and (is_sampled or self._loading.uncalled):
            topic = self._inputs if is_sampled else self._loading
            safely(topic.ran, ObservedCall(module, args, kwargs, frame))

    def _tell(self, notes: Iterable[Callable[[ObservedCall], None]], call: ObservedCall) -> None:
        for note in notes:
            safely(note, call)

    def _is_enough(self, module: nn.Module, frame: FrameType) -> bool:
        """Return whether enough calls of a module without gradients were looked at."""
        if not self.steps:  # only the first call of each module counts
            return id(module) in self._modules and self._modules[id(module)][0]() is module
        return self._is_one_of_many(_place_of(frame))

    def _is_one_of_many(self, *key: Any, step: int = -1) -> bool:
        """Return whether many calls of a line, or of one in a step, were looked at; of more, each 2^k-th is."""
        last, number = self._calls.get(key, (step, 0))
        number = number + 1 if last == step else 1
        self._calls[key] = step, number
        return number > _OBSERVED_IN and number & (number - 1) != 0

    def _has_parameters(self, module: nn.Module) -> bool:
        """Return whether a module has parameters, unlike a loss."""
        known = self._modules.get(id(module))
        if known is None or known[0]() is not module:
            known = self._modules[id(module)] = weakref.ref(module), bool(parameters_in(module))
        return known[1]

    def before(self, run: BackwardCall, roots: Sequence[Any]) -> list[Finding]:
        """Check the roots of a backward call that is about to run; return the findings that predict an error of it.

        Each line's first call is checked fully, and a later one for a graph that has grown. A finding that predicts an
        error is not reported yet, since the note on the error says the same.
        """
        self._look_for_unfrozen()
        line = self._lines.setdefault(run.line.place, _Backwards())
        line.calls += 1
        if run.partial:
            return []
        self._has_backward = True
        if self._units.dead:
            self._units.note_losses(roots)
        for followed in line.reached.values() if line.calls > _CALLS else ():
            followed.has_new_grads = True
        every = [one.accumulation for one in self._followed.values()] if line.calls <= _CALLS_OF_WASTE else []
        wastes = any(one.wasted or one.wasteful for one in every)
        if line.calls > _CALLS and not wastes:
            safely(self._applied_by_hand, line)
            return []
        with collection_paused():
            return self._look(run, roots, line)

    def _applied_by_hand(self, line: _Backwards) -> None:
        """Note the differences that a loss by hand squares, in the first steps, as calls of ``mse_loss``."""
        for made, reduction in line.by_hand.items() if self._recent <= _OBSERVED_IN else ():
            if (call := ObservedCall.by_hand(made, reduction, caller())) is not None:
                self._tell(self._applying, call)

    def _look_for_unfrozen(self) -> None:
        """Look at backward calls again after parameters were unfrozen, the first few times."""
        unfrozen = sum(log.unfrozen for log in logs())
        if unfrozen > self._unfrozen[-1] and len(self._unfrozen) <= ENOUGH:
            self._unfrozen.append(unfrozen)
            self._look_again()

    def _look_again(self) -> None:
        """Look at the graphs of the next backward calls of each line."""
        for line in self._lines.values():
            line.calls = min(line.calls, _CALLS - ENOUGH)

    def _look(self, run: BackwardCall, roots: Sequence[Any], line: _Backwards) -> list[Finding]:
        graph = FailureContext([one for one in roots if has_graph(one)])
        every = self._optimizers_around(graph) if line.calls == 1 else []
        for optimizer in every:
            self._of(optimizer)
        outermost = [one for reference, _ in self._modules.values() if (one := reference()) is not None]
        loss = Loss(graph, line.calls, run.line, outermost, caller())
        line.by_hand = dict(lines_by_hand(loss))
        self._applied_by_hand(line)
        found = self._report_all(LOSSES, loss)
        self._leaf_losses = self._leaf_losses or any(one.cause == "leaf-loss" for one in found)  # all else follows
        for topic in self._topics:
            safely(topic.backward, loss)
        self._note_leaves(loss, line)
        if line.calls == _GROWN_BY:
            self._report_growth(roots)
        if line.calls != 1:
            return []
        reached = set(map(id, graph.leaves))
        optimizers = self._optimizers or [one for one in every if not reached.isdisjoint(map(id, parameters_of(one)))]
        whole = graph if len(graph.roots) == len(roots) else FailureContext(roots)
        found = problems(whole.about(self._models, optimizers))
        for finding in found:
            if finding.cause not in _ERROR_CAUSES:
                self.report_once(finding)
        if not self._models:
            self._note_cuts(graph, optimizers, every)
        return [one for one in found if one.cause in _ERROR_CAUSES]

    def _optimizers_around(self, graph: FailureContext) -> list[Any]:
        """Return the living optimizers: those whose making was seen, if they have every leaf, else all of the heap."""
        made = [one for reference in self._made if (one := reference()) is not None]
        owned = {id(parameter) for one in made for parameter in parameters_of(one)}
        return made if owned.issuperset(map(id, graph.leaves)) else living(torch.optim.Optimizer)

    def _of(self, optimizer: Any) -> FollowedOptimizer:
        known = self._followed.get(id(optimizer))
        if known is None or known.optimizer() is not optimizer:
            known = self._followed[id(optimizer)] = FollowedOptimizer(weakref.ref(optimizer))
        return known

    def _note_leaves(self, loss: Loss, line: _Backwards) -> None:
        """Note which optimizers' parameters a loss reaches, and which that no optimizer has."""
        leaves = {id(one): one for one in loss.context.leaves}
        flat, owned = flat_operation_in(loss) if is_first(loss) else None, set[int]()
        for followed in self.optimizers():
            mine = [one for one in followed.parameters() if id(one) in leaves]
            owned.update(map(id, mine))
            if mine:
                line.reached[id(followed)] = followed
                followed.note_backward(loss.line, mine, self.steps)
                scaler, scaled = self._scaled or (None, None)
                is_scaled = scaled is not None and any(scaled() is one for one in loss.context.roots)
                followed.scaler = scaler if is_scaled else None
                followed.losses.add(all(map(is_zero, loss.context.roots)))
                followed.flat = followed.flat or flat
        free = [one for key, one in leaves.items() if key not in owned and issubclass(type(one), nn.Parameter)]
        known: list[torch.Tensor] = []
        for leaf in free:
            reference, count = self._outside.get(id(leaf), (weakref.ref(leaf), 0))
            if reference() is not leaf:
                reference, count = weakref.ref(leaf), 0
            self._outside[id(leaf)] = reference, count + 1
            if count + 1 == ENOUGH:
                known.append(leaf)
        if known:
            self._outside_names += tuple(FailureContext().names(known[:MOST_NAMED]))
            if all(cause != LEFT_OUT.id for cause, _ in self._reported):  # they may have come since the first call
                optimizers = [one for followed in line.reached.values() if (one := followed.optimizer()) is not None]
                self._report_all([LEFT_OUT], loss.context.about(self._models, self._optimizers or optimizers))
        self._look_for_rebinding(loss, free, line)

    def _look_for_rebinding(self, loss: Loss, free: Sequence[torch.Tensor], line: _Backwards) -> None:
        """Report parameters that no optimizer has, and that a step by hand leaves unchanged."""
        if line.calls == 1 and free and (rebinding := rebinding_in(loss.line.code)) is not None:
            line.rebinding, line.before = rebinding, [(weakref.ref(one), sum_of(one)) for one in free]
        elif line.calls == ENOUGH and line.rebinding is not None:
            known = [(reference(), total) for reference, total in line.before]
            same = [one for one, total in known if one is not None and sum_of(one) == total]
            if len(same) == len(known):
                names, calls = tuple(FailureContext().names(same[:MOST_NAMED])), counted(ENOUGH - 1, "backward call")
                facts = {"names": names, "calls": calls, "backward": loss.line.site}
                self.report_once(BY_HAND.finding(facts | line.rebinding))

    def _note_cuts(self, graph: FailureContext, optimizers: Sequence[Any], every: Sequence[Any]) -> None:
        """Note the findings about optimizers' parameters that recorded calls cut off from a loss.

        If the optimizer has other parameters of the graph, they are reported at its next step. The others, and those
        with a doubtful cut, are reported if the parameters never get a gradient.
        """
        concerned, reached = set(map(id, optimizers)), set(map(id, graph.leaves))
        for optimizer in {id(one): one for one in [*optimizers, *every]}.values() if graph.roots else ():
            followed, context = self._of(optimizer), graph.about(optimizers=[optimizer])
            missing = [one for one in followed.parameters() if id(one) not in reached]
            for group in [one for one in unreached_parameters(context, missing) if one.cuts]:
                finding = group.finding(context)
                if id(optimizer) in concerned and group.certainty is not MAY_BE:
                    followed.waiting.append((finding, [weakref.ref(one) for one in group.parameters]))
                in_library = any(is_library(site.file) for site in finding.sites)
                if (group.certainty is not MAY_BE or not in_library) and len(followed.cuts) < MOST_NAMED:
                    followed.cuts.append((finding, frozenset(map(id, group.parameters))))

    def _report_growth(self, roots: Sequence[Any]) -> None:
        """Report problems that only show after some iterations, of these losses and of results that variables hold."""
        held = [one for one in find(Targets([]), deep=False).tensors() if fact(one, "grad_fn") is not None]
        results = list({id(one): one for one in held}.values())[:_MOST_HELD]
        for one in filter(has_graph, [*roots, *results]):
            context = FailureContext([one])
            for finding in [*GRAPH_GROWS.findings(context), *GRAPH_IN_GRAD.findings(context)]:
                if finding.culprits or any(one is root for root in roots):
                    self.report_once(finding)

    @dynamo_skip
    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        safely(self._step, optimizer)

    def _step(self, optimizer: Any) -> None:
        """Note what an optimizer is about to use, and report what waited for its step."""
        followed = self._of(optimizer)
        waiting = [(one, [fact(held, "grad") for held in alive(those)]) for one, those in followed.waiting]
        followed.waiting = []
        followed.note_step(optimizer.param_groups)
        for finding, gradients in waiting:
            if gradients and all(one is None for one in gradients):
                self.report_once(finding)
        self.steps += 1
        self._single.note(followed, optimizer)
        self._report_all(STEPPING, followed)
        number = followed.steps
        near = followed.is_sampled_step or (number - 1) & (number - 2) == 0
        if number <= _FIRST or near or id(followed) in self._units.dead:
            for topic in self._topics:
                safely(topic.before_step, followed)
        followed.accumulation.wasted, followed.has_new_grads = 0, False
        if number in _REPORT_AT:
            self._report_steps(followed)

    @dynamo_skip
    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        followed = self._followed.get(id(optimizer))
        if followed is not None:
            safely(followed.note_changes)
            if followed.accumulation.added >= CARRIED:
                safely(self._report_all, [ADDS], followed)
            if self._schedules.before:
                safely(self._schedules.after_step, followed)

    def _end(self) -> None:
        """Report the last findings when the program ends."""
        self._over, every = True, self.optimizers()
        for topic in self._topics:
            safely(topic.end, every)
        stepped = {key for followed in every if followed.steps for key in followed.every_key}
        for followed in every:
            if followed.steps:
                self._report_steps(followed)
            elif followed.backwards >= ENOUGH and not followed.every_key & stepped:  # an optimizer around another
                self._report_all([NEVER_STEPPED], followed)

    def _report_steps(self, followed: FollowedOptimizer) -> None:
        """Report what held in all steps of an optimizer."""
        if followed.steps < ENOUGH or id(followed) in self._reported_on or self._leaf_losses:
            return
        followed.done, followed.has_backward, followed.outside = self._over, self._has_backward, self._outside_names
        followed.explained = set()
        for finding, keys in followed.cuts:
            if keys <= followed.without.keys() and not keys & (followed.explained | followed.reached):
                followed.explained |= keys
                self.report_once(finding)
        if self._report_all(OVER_STEPS, followed) or followed.explained:
            self._reported_on.add(id(followed))


def _place_of(frame: FrameType) -> tuple[CodeKey, int]:
    """Return the place of the call from which a frame was called."""
    caller = frame.f_back or frame
    return CodeKey(caller.f_code), caller.f_lasti
