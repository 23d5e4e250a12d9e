"""Learning: the optimizers of a running program are followed, to find what learns nothing in any of its steps."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from byname.diagnose.cause import C, Cause
from byname.diagnose.causes.loss import Loss, is_first
from byname.diagnose.causes.losses import LOSSES, flat_in
from byname.diagnose.causes.not_reached import last_use
from byname.diagnose.causes.training import (
    BY_HAND,
    CARRIED,
    NEVER_STEPPED,
    OVER_STEPS,
    STEPPING,
    Rebinding,
    StepByHand,
    rebinding_in,
)
from byname.diagnose.context import FailureContext
from byname.diagnose.engine import BackwardCall, safely
from byname.diagnose.finding import Finding
from byname.diagnose.followed_optimizer import (
    ENOUGH,
    MOST_NAMED,
    FollowedOptimizer,
    alive,
    has_zero_gradient,
    note_changes,
    note_put_back,
    rate_is_zero,
    sum_of,
    unchanged,
)
from byname.diagnose.nonfinite.reasons import is_zero
from byname.diagnose.silent.topics import Topics
from byname.naming.name import Name
from byname.reading.frames import caller, line_of, programs_frame
from byname.reading.quiet import DisableTorchFunction, dynamo_skip
from byname.reading.tensor import fact
from byname.undo import Undo

_CALLS = 8
"""Calls of each line that calls backward whose graph is looked at."""
_TELL_AT = (64, 1024)
"""Steps at which what was found is told; otherwise it is told when the program ends."""
_CALLS_OF_WASTE = 64
"""Calls of each line whose graph is looked at where gradients are cleared between backward calls."""


class LearningWatch:
    """Follow every optimizer of the program, and tell once which of its parameters learn nothing, and why.

    It looks whether gradients are there, at each step, as long as some are missing; it reads values at a few steps
    only. What it finds is told after many steps, or when the program ends, if it was so in every step until then.
    """

    def __init__(self, tell: Callable[[Finding], None]) -> None:
        self._tell = tell
        self._followed: dict[int, FollowedOptimizer] = {}
        self._outside: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}
        self._outside_names: tuple[Name, ...] = ()
        self._rebound: dict[Any, tuple[Rebinding, list[tuple[weakref.ref[torch.Tensor], float]]]] = {}
        self._leaf_losses = self._heard = False
        self._reached: dict[Any, dict[int, FollowedOptimizer]] = {}
        self.made = 0
        self._single: dict[frozenset[int], tuple[int, Sequence[weakref.ref[torch.Tensor]]]] = {}
        self._told: set[int] = set()
        self._over = False
        self.topics = Topics(tell, self)

    def optimizers(self) -> list[FollowedOptimizer]:
        """Return the optimizers that are followed."""
        return list(self._followed.values())

    def begin(self, block: Undo) -> None:
        """Follow the steps of optimizers until the block is left; then tell what was found."""
        block.add(safely, self.end)
        block.register(register_optimizer_step_pre_hook, self._before_step)
        block.register(register_optimizer_step_post_hook, self._after_step)
        self.topics.begin(block)

    def before(self, run: BackwardCall, graph: FailureContext, number: int, around: Sequence[Any]) -> None:
        """Note which parameters a backward call reaches, and whether their gradients were cleared before it.

        Args:
            run: the call.
            graph: the graph that it is called on.
            number: how many calls there were of this line, with this one.
            around: the optimizers and the modules that there are, at the first call of the line.
        """
        modules = [one for one in around if issubclass(type(one), torch.nn.Module)]
        for one in around:
            if issubclass(type(one), torch.optim.Optimizer):
                self._of(one)
        self._heard = True
        self.topics.note_losses(graph.roots)
        reached = self._reached.setdefault(run.line.place, {})
        for followed in reached.values() if number > _CALLS else ():
            followed.fresh = True
        followed_now = self._followed.values()
        if number > _CALLS and (
            number > _CALLS_OF_WASTE or not any(one.wasted or one.wasteful for one in followed_now)
        ):
            return
        loss = Loss(graph, number, run.line.site, modules)
        for finding in (one for cause in LOSSES for one in cause.findings(loss)):
            self._leaf_losses = self._leaf_losses or finding.cause == "leaf-loss"  # of which all else follows
            self._tell(finding)
        self.topics.backward(loss)
        flat = flat_in(loss) if is_first(loss) else None
        leaves = {id(one): one for one in loss.context.leaves}
        owned: set[int] = set()
        for followed in list(self._followed.values()):
            mine = [one for one in followed.parameters() if id(one) in leaves]
            owned.update(map(id, mine))
            if mine:
                reached[id(followed)] = followed
                self._reaches(followed, mine, run)
                followed.flat = followed.flat or flat
        outside = [one for key, one in leaves.items() if key not in owned]
        self._note_outside(outside)
        self._look_for_rebinding(run, outside, number)

    def _look_for_rebinding(self, run: BackwardCall, leaves: Iterable[torch.Tensor], number: int) -> None:
        """Tell of parameters that no optimizer has, and that a step by hand leaves as they are."""
        place = run.line.place
        if number == 1 and (rebinding := rebinding_in(run.line.code)) is not None:
            parameters = [one for one in leaves if issubclass(type(one), torch.nn.Parameter)]
            self._rebound[place] = rebinding, [(weakref.ref(one), sum_of(one)) for one in parameters]
        elif number == ENOUGH and place in self._rebound:
            rebinding, before = self._rebound.pop(place)
            same = [one for reference, total in before if (one := reference()) is not None and sum_of(one) == total]
            if same and len(same) == len(before):
                names = tuple(FailureContext().names(same[:MOST_NAMED]))
                self._tell_all([BY_HAND], StepByHand(rebinding, number - 1, run.line.site, names))

    def _reaches(self, followed: FollowedOptimizer, mine: list[torch.Tensor], run: BackwardCall) -> None:
        cleared = _is_cleared(mine)
        now = (*run.line.place, self.made, fact(mine[0], "_version"))
        inside = torch._C._current_graph_task_id() != -1  # that of a reentrant checkpoint
        followed.wasted += cleared and followed.reached and followed.last == now and not inside
        changed = not followed.reached and any(
            sum_of(fact(one, "grad")) != followed.left[id(one)] for one in mine if id(one) in followed.left
        )
        followed.cleared = followed.cleared or cleared or changed
        followed.backward, followed.reached, followed.last = run.line.site, True, now
        followed.backwards += 1
        followed.fresh = True
        if not followed.steps and followed.backwards == ENOUGH:
            followed.name(mine)

    def _note_outside(self, leaves: Iterable[torch.Tensor]) -> None:
        """Note parameters that losses reach and that no optimizer has."""
        known: list[torch.Tensor] = []
        for leaf in leaves:
            if issubclass(type(leaf), torch.nn.Parameter):
                reference, count = self._outside.get(id(leaf), (weakref.ref(leaf), 0))
                if reference() is not leaf:
                    reference, count = weakref.ref(leaf), 0
                self._outside[id(leaf)] = reference, count + 1
                if count + 1 == ENOUGH:
                    known.append(leaf)
        if known:
            self._outside_names += tuple(FailureContext().names(known[:MOST_NAMED]))

    def note_cut(self, optimizer: Any, finding: Finding, parameters: Iterable[torch.Tensor]) -> None:
        """Note a finding about parameters that a recorded call may have cut off from a loss."""
        followed = self._of(optimizer)
        if followed is not None and len(followed.cuts) < MOST_NAMED:
            followed.cuts.append((finding, frozenset(map(id, parameters))))

    def _of(self, optimizer: Any) -> FollowedOptimizer | None:
        known = self._followed.get(id(optimizer))
        if known is None or known.optimizer() is not optimizer:
            known = FollowedOptimizer(weakref.ref(optimizer), type(optimizer).__name__)
            known.without = {id(one): weakref.ref(one) for one in known.parameters()}
            known.keys = frozenset(known.without)
            self._followed[id(optimizer)] = known
        return known

    @dynamo_skip
    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        safely(self._step, optimizer)

    def _step(self, optimizer: Any) -> None:
        """Note what an optimizer is about to use."""
        followed = self._of(optimizer)
        if followed is None:
            return
        with DisableTorchFunction():
            self._look(followed, optimizer)
        if followed.steps == ENOUGH:
            followed.name(alive([*followed.without.values(), *followed.zero.values()]))
            followed.use = last_use(list(alive(followed.without.values())))
            followed.name(one for one in followed.parameters() if id(one) in followed.values)
        followed.note_mode()
        self._note_single(followed, optimizer)
        self._tell_all(STEPPING, followed)
        self.topics.before_step(followed)
        followed.wasted, followed.fresh = 0, False
        if followed.steps in _TELL_AT:
            self._tell_of(followed)

    def _look(self, followed: FollowedOptimizer, optimizer: Any) -> None:
        if followed.fates and _is_looked_at(followed.steps):
            note_put_back(followed)
        followed.steps += 1
        if followed.steps == 1:
            followed.site = line_of(programs_frame(caller())).site
        followed.fed += followed.reached
        followed.frozen = followed.frozen and not followed.parameters()
        groups = optimizer.param_groups
        followed.idle = followed.idle + 1 if all(map(rate_is_zero, groups)) else 0
        followed.restored, followed.groups = followed.restored + (followed.groups != id(groups)), id(groups)
        if followed.without:
            now = {id(one) for one in followed.parameters() if fact(one, "grad") is None}
            graded = [key for key in followed.without if key not in now]
            for key in graded:
                followed.zero[key] = followed.without.pop(key)
            followed.lost += not graded and not followed.zero and followed.reached
        if followed.zero and _is_looked_at(followed.steps):
            kept = {key: tensor for key, reference in followed.zero.items() if (tensor := reference()) is not None}
            followed.zero = {key: followed.zero[key] for key, tensor in kept.items() if has_zero_gradient(tensor)}
        if _is_looked_at(followed.steps):
            followed.values = unchanged(followed)
        again = followed.steps > 1 and followed.reached and not followed.cleared
        followed.carried = followed.carried + 1 if again else 0
        carrying = followed.parameters() if again and followed.carried < CARRIED else []
        followed.left = {id(one): sum_of(grad) for one in carrying if (grad := fact(one, "grad")) is not None}
        followed.wasteful = followed.wasteful + 1 if followed.wasted else 0
        self.made += 1
        followed.reached = followed.cleared = False

    @dynamo_skip
    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        followed = self._followed.get(id(optimizer))
        if followed is not None:
            safely(self._moves, followed)
            self.topics.after_step(followed)

    def _moves(self, followed: FollowedOptimizer) -> None:
        """Note what a step changed whose parameters were looked at before."""
        if followed.values and _is_looked_at(followed.steps):
            with DisableTorchFunction():
                note_changes(followed)

    def _note_single(self, followed: FollowedOptimizer, optimizer: Any) -> None:
        """Note how many optimizers in a row make one step each for the same parameters, and need a state."""
        followed.anew = 0
        if followed.steps > 1:
            self._single.pop(followed.keys, None)
        elif followed.keys and _keeps_state(optimizer):
            self._single = {keys: known for keys, known in self._single.items() if _all_alive(known[1])}
            times = self._single.get(followed.keys, (0, ()))[0] + 1
            self._single[followed.keys] = times, [weakref.ref(one) for one in followed.parameters()]
            followed.anew = times

    def end(self) -> None:
        """Tell what was found of all optimizers."""
        self._over = True
        every = list(self._followed.values())
        self.topics.end(every)
        stepped = {key for followed in every if followed.steps for key in followed.keys}
        for followed in every:
            if followed.steps:
                self._tell_of(followed)
            elif followed.backwards >= ENOUGH and not followed.keys & stepped:  # an optimizer around another
                self._tell_all([NEVER_STEPPED], followed)

    def _tell_of(self, followed: FollowedOptimizer) -> None:
        if followed.steps < ENOUGH or id(followed) in self._told or self._leaf_losses:
            return
        followed.over, followed.heard, followed.outside = self._over, self._heard, self._outside_names
        followed.explained = set()
        for finding, keys in followed.cuts:
            if keys <= followed.without.keys() and not keys & followed.explained:
                followed.explained |= keys
                self._tell(finding)
        if self._tell_all(OVER_STEPS, followed) or followed.explained:
            self._told.add(id(followed))

    def _tell_all(self, causes: Iterable[Cause[C]], case: C) -> bool:
        """Tell what is found by some causes; return whether anything is."""
        found = [finding for cause in causes for finding in cause.findings(case)]
        for finding in found:
            self._tell(finding)
        return bool(found)


def _is_looked_at(step: int) -> bool:
    """Return whether values are read at this step: at steps 1, 2, 4, 8 and so on."""
    return step & (step - 1) == 0


def _all_alive(references: Iterable[weakref.ref[torch.Tensor]]) -> bool:
    return all(reference() is not None for reference in references)


def _keeps_state(optimizer: Any) -> bool:
    """Return whether the steps of an optimizer are known to depend on earlier gradients."""
    if issubclass(type(optimizer), torch.optim.SGD):
        return any(group.get("momentum") for group in optimizer.param_groups)
    return issubclass(type(optimizer), _WITH_STATE)


_WITH_STATE = (
    *(torch.optim.Adam, torch.optim.AdamW, torch.optim.Adamax, torch.optim.NAdam, torch.optim.RAdam),
    *(torch.optim.RMSprop, torch.optim.Adadelta, torch.optim.Adagrad),
)


def _is_cleared(parameters: Sequence[torch.Tensor]) -> bool:
    """Return whether there is no gradient, or only zeros in the smallest one, so that the next one adds to nothing."""
    with DisableTorchFunction():
        graded = [one for one in parameters if fact(one, "grad") is not None]
        return not graded or is_zero(fact(min(graded, key=torch.numel), "grad"))
