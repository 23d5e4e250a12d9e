"""Learning: the optimizers of a running program are followed, to find what learns nothing in any of its steps."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from byname.autograd.walk import leaf_tensors, nodes_behind
from byname.diagnose.causes.losses import (
    constant_term,
    edited_past_autograd,
    leaf_loss,
    not_frozen,
    same_module,
    suspicious_losses,
)
from byname.diagnose.causes.not_reached import last_use
from byname.diagnose.causes.ownership import reads_gradients
from byname.diagnose.causes.training import (
    Flat,
    Rebinding,
    Steps,
    all_frozen,
    cleared_between,
    clipped_too_soon,
    left_in_evaluation,
    made_anew,
    never_changed,
    never_stepped,
    never_zeroed,
    nothing_learnt,
    rebinding_in,
)
from byname.diagnose.context import FailureContext
from byname.diagnose.engine import BackwardCall, safely
from byname.diagnose.finding import Finding
from byname.diagnose.followed_optimizer import (
    MOST_NAMED,
    FollowedOptimizer,
    alive,
    has_zero_gradient,
    note_changes,
    note_put_back,
    rate_is_zero,
    unchanged,
)
from byname.diagnose.nonfinite.reasons import can_look, is_zero, looking
from byname.naming.name import Name
from byname.reading.frames import caller, line_of, programs_frame
from byname.reading.objects import living
from byname.reading.quiet import DisableTorchFunction, dynamo_skip
from byname.reading.tensor import fact
from byname.source.code import ThisCode
from byname.source.location import Site, locate
from byname.undo import Undo

_ENOUGH = 4
"""Steps of an optimizer, or backward calls, of which something is said."""
_CALLS = 8
"""Calls of each line that calls backward whose graph is looked at."""
_TELL_AT = (64, 1024)
"""Steps at which what was found is told; otherwise it is told when the program ends."""
_SINGLE = 8
"""Optimizers in a row that make one step each for the same parameters, until that is told."""
_CALLS_OF_WASTE = 64
"""The same, where gradients are cleared between backward calls."""
_WASTEFUL = 3
"""Steps in a row before which gradients were cleared between backward calls, until that is told."""
_CARRIED = 3
"""Steps in a row that used gradients of the step before, until that is told."""


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
        self._made = 0
        self._single: dict[frozenset[int], tuple[int, Sequence[weakref.ref[torch.Tensor]]]] = {}
        self._told: set[int] = set()
        self._over = False

    def begin(self, block: Undo) -> None:
        """Follow the steps of optimizers until the block is left; then tell what was found."""
        block.add(safely, self.end)
        block.register(register_optimizer_step_pre_hook, self._before_step)
        block.register(register_optimizer_step_post_hook, self._after_step)

    def before(self, run: BackwardCall, roots: Sequence[Any], number: int, around: Sequence[Any]) -> None:
        """Note which parameters a backward call reaches, and whether their gradients were cleared before it.

        Args:
            run: the call.
            roots: what it is called on.
            number: how many calls there were of this line, with this one.
            around: the optimizers and the modules that there are, at the first call of the line.
        """
        modules = [one for one in around if issubclass(type(one), torch.nn.Module)]
        for one in around:
            if issubclass(type(one), torch.optim.Optimizer):
                self._of(one)
        self._heard = True
        followed_now = self._followed.values()
        if number > _CALLS and (
            number > _CALLS_OF_WASTE or not any(one.wasted or one.wasteful for one in followed_now)
        ):
            return
        with DisableTorchFunction():
            nodes = nodes_behind(roots)
            leaves = {id(one): one for one in leaf_tensors(nodes)}
        for finding in edited_past_autograd(nodes):
            self._tell(finding)
        flat = None
        if number == 1:
            flat = _flat_among(nodes, roots)
            frame = caller()
            one_each = [] if frame is None else [same_module(frame, roots), constant_term(frame, roots, leaves.keys())]
            unfrozen = [] if frame is None else not_frozen(modules, leaves.values(), frame)
            for finding in [*suspicious_losses(nodes, roots), *unfrozen, *filter(None, one_each)]:
                self._tell(finding)
        self._tell_of_leaves(roots, run.site)
        owned: set[int] = set()
        for followed in list(self._followed.values()):
            mine = [one for one in followed.parameters() if id(one) in leaves]
            owned.update(map(id, mine))
            if mine:
                self._reaches(followed, mine, run)
                followed.flat = followed.flat or flat
        outside = [one for key, one in leaves.items() if key not in owned]
        self._note_outside(outside)
        self._look_for_rebinding(run, outside, number)

    def _look_for_rebinding(self, run: BackwardCall, leaves: Iterable[torch.Tensor], number: int) -> None:
        """Tell of parameters that no optimizer has, and that a step by hand leaves as they are."""
        place = (ThisCode(run.code), run.instruction)
        if number == 1 and (rebinding := rebinding_in(run.code)) is not None:
            parameters = [one for one in leaves if issubclass(type(one), torch.nn.Parameter)]
            self._rebound[place] = rebinding, [(weakref.ref(one), _sum_of(one)) for one in parameters]
        elif number == _ENOUGH and place in self._rebound:
            rebinding, before = self._rebound.pop(place)
            same = [one for reference, total in before if (one := reference()) is not None and _sum_of(one) == total]
            if same and len(same) == len(before):
                names = tuple(FailureContext().names(same[:MOST_NAMED]))
                self._tell(never_changed(rebinding, number - 1, run.site, names))

    def _tell_of_leaves(self, roots: Sequence[Any], called: Site | None) -> None:
        """Tell of losses that are computed from nothing, of which all else follows."""
        for root in roots:
            finding = leaf_loss(root, called)
            if finding is not None:
                self._leaf_losses = True
                self._tell(finding)

    def _reaches(self, followed: FollowedOptimizer, mine: list[torch.Tensor], run: BackwardCall) -> None:
        cleared = _is_cleared(mine)
        now = (ThisCode(run.code), run.instruction, self._made, fact(mine[0], "_version"))
        followed.wasted += cleared and followed.reached and followed.last == now
        changed = not followed.reached and any(
            _sum_of(fact(one, "grad")) != followed.left[id(one)] for one in mine if id(one) in followed.left
        )
        followed.cleared = followed.cleared or cleared or changed
        followed.backward, followed.reached, followed.last = run.site, True, now
        followed.backwards += 1
        if not followed.steps and followed.backwards == _ENOUGH:
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
                if count + 1 == _ENOUGH:
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
        if followed.steps == _ENOUGH:
            followed.name(alive([*followed.without.values(), *followed.zero.values()]))
            followed.use = last_use(list(alive(followed.without.values())))
            followed.name(one for one in followed.parameters() if id(one) in followed.values)
        followed.note_mode()
        if followed.steps == 1 and (clipped := clipped_too_soon(optimizer)) is not None:
            self._tell(clipped)
        self._note_single(followed, optimizer)
        if followed.carried == _CARRIED:
            followed.name(followed.parameters())
            self._tell(never_zeroed(self._steps(followed), followed.names_of(map(id, followed.parameters()))))
        wasteful = followed.wasteful == _WASTEFUL and not reads_gradients()
        if wasteful and not living(torch.amp.GradScaler):  # which makes no step where a gradient is not finite
            self._tell(cleared_between(self._steps(followed), followed.wasted))
        followed.wasted = 0
        if followed.steps in _TELL_AT:
            self._tell_of(followed)

    def _look(self, followed: FollowedOptimizer, optimizer: Any) -> None:
        if followed.fates and _is_looked_at(followed.steps):
            note_put_back(followed)
        followed.steps += 1
        if followed.steps == 1:
            code, instruction, outer = line_of(programs_frame(caller()))
            followed.site = None if code is None else locate(code, instruction, outer).site
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
        carrying = followed.parameters() if again and followed.carried < _CARRIED else []
        followed.left = {id(one): _sum_of(grad) for one in carrying if (grad := fact(one, "grad")) is not None}
        followed.wasteful = followed.wasteful + 1 if followed.wasted else 0
        self._made += 1
        followed.reached = followed.cleared = False

    @dynamo_skip
    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        safely(self._moves, self._followed.get(id(optimizer)))

    def _moves(self, followed: FollowedOptimizer | None) -> None:
        """Note what a step changed whose parameters were looked at before."""
        if followed is not None and followed.values and _is_looked_at(followed.steps):
            with DisableTorchFunction():
                note_changes(followed)

    def _note_single(self, followed: FollowedOptimizer, optimizer: Any) -> None:
        """Tell of optimizers of which each makes one step only, for the same parameters, and needs a state."""
        if followed.steps > 1:
            self._single.pop(followed.keys, None)
        elif followed.keys and _keeps_state(optimizer):
            self._single = {keys: known for keys, known in self._single.items() if _all_alive(known[1])}
            times = self._single.get(followed.keys, (0, ()))[0] + 1
            self._single[followed.keys] = times, [weakref.ref(one) for one in followed.parameters()]
            if times == _SINGLE:
                followed.name(followed.parameters())
                self._tell(made_anew(self._steps(followed), times, followed.names_of(followed.keys)))

    def end(self) -> None:
        """Tell what was found of all optimizers."""
        self._over = True
        every = list(self._followed.values())
        stepped = {key for followed in every if followed.steps for key in followed.keys}
        for followed in every:
            if followed.steps:
                self._tell_of(followed)
            elif followed.backwards >= _ENOUGH and not followed.keys & stepped:  # an optimizer around another
                names = tuple(followed.names.values())
                self._tell(never_stepped(self._steps(followed), followed.backwards, names))

    def _tell_of(self, followed: FollowedOptimizer) -> None:
        if followed.steps < _ENOUGH or id(followed) in self._told or self._leaf_losses:
            return
        told: set[int] = set()
        for finding, keys in followed.cuts:
            if keys <= followed.without.keys() and not keys & told:
                told |= keys
                self._tell(finding)
        rest = [key for key in followed.without if key not in told]
        is_meant = followed.restored == followed.steps  # the optimizer is put back as well
        kept = {} if is_meant else {key: fate for key, fate in followed.fates.items() if key in followed.values}
        same = {followed.names[key]: fate for key, fate in kept.items() if key in followed.names}
        zero = followed.names_of(followed.zero) if followed.has_zero_matrices() else ()
        found = nothing_learnt(self._steps(followed), followed.names_of(rest), zero, same, self._outside_names)
        if followed.frozen and self._outside_names:
            found.append(all_frozen(self._steps(followed), self._outside_names))
        if self._over and _ENOUGH * 2 <= followed.evaluating < followed.steps <= 2 * followed.evaluating:
            found.append(left_in_evaluation(self._steps(followed), followed.evaluating, followed.modal))
        for finding in found:
            self._tell(finding)
        if told or found:
            self._told.add(id(followed))

    def _steps(self, followed: FollowedOptimizer) -> Steps:
        """Return the facts of the steps of an optimizer."""
        return Steps(
            followed.kind,
            followed.steps,
            followed.site,
            followed.backward,
            idle=followed.idle,
            lost=followed.lost == followed.fed >= 1,
            all_without=len(followed.without) == len(followed.keys),
            all_zero=len(followed.zero) == len(followed.keys),
            over=self._over,
            heard=self._heard,
            flat=followed.flat,
            use=followed.use,
        )


def _is_looked_at(step: int) -> bool:
    """Return whether values are read at this step: at steps 1, 2, 4, 8 and so on."""
    return step & (step - 1) == 0


_FLAT = {
    *("RoundBackward", "FloorBackward", "CeilBackward", "TruncBackward", "SignBackward"),
    *("NormalBackward", "BernoulliBackward", "PoissonBackward"),
}
"""Nodes of operations whose derivative is 0 everywhere, without the number of the overload."""


def _flat_among(nodes: Iterable[Any], roots: Sequence[Any]) -> Flat | None:
    """Return the first of the nodes behind some roots whose operation has the derivative 0 everywhere."""
    for node in nodes:
        kind = type(node).__name__.rstrip("0123456789")
        if kind in _FLAT:
            return Flat(kind.removesuffix("Backward").lower(), _site_of(node, roots))
        if kind in _SOFTMAX and _is_of_one(node):
            return Flat(_SOFTMAX[kind], _site_of(node, roots), of_one=True)
    return None


_SOFTMAX = {"SoftmaxBackward": "softmax", "LogSoftmaxBackward": "log_softmax"}


def _is_of_one(node: Any) -> bool:
    """Return whether a softmax was along a dimension with one element."""
    shape, dim = tuple(node._input_metadata[0].shape), int(node._saved_dim)
    return len(shape) > 0 and shape[dim - (1 << 64) if dim >= 1 << 63 else dim] == 1


def _site_of(node: Any, roots: Sequence[Any]) -> Site | None:
    context = FailureContext(roots)
    return context.site(context.walk.numbers[node])


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


def _sum_of(tensor: torch.Tensor) -> float:
    """Return the sum of all numbers of a tensor; NaN if they cannot be read."""
    with looking():
        return float(tensor.double().sum().item()) if can_look(tensor) else math.nan


def _is_cleared(parameters: Sequence[torch.Tensor]) -> bool:
    """Return whether there is no gradient, or only zeros in the smallest one, so that the next one adds to nothing."""
    with DisableTorchFunction():
        graded = [one for one in parameters if fact(one, "grad") is not None]
        return not graded or is_zero(fact(min(graded, key=torch.numel), "grad"))
