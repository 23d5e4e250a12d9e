"""Units: those that stay equal or die, weights of another scale, and gradients that vanish."""

from __future__ import annotations

import math
import re
import weakref
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from byname.autograd.walk import has_graph, nodes_behind
from byname.diagnose.causes.loss import Loss, node_kind
from byname.diagnose.context import FailureContext
from byname.diagnose.followed_optimizer import FollowedOptimizer, has_zero_gradient
from byname.diagnose.nonfinite.reasons import can_read, is_finite, is_zero, nonfinite_kind, reading_values, sum_of
from byname.diagnose.silent.topic import ObservedCall, Topic, Watch, arg_name, on_call, topic_cause
from byname.naming.name import at
from byname.reading.modules import modules_in
from byname.reading.objects import attributes_of
from byname.reading.tensor import PLAIN, fact, is_tensor, memory_of
from byname.tracking.log import changes_of
from byname.tracking.lookup import made_last, site_of_tensor
from byname.undo import Undo

# fmt: off
EQUAL_UNITS = topic_cause("equal-units",
    "all rows of {names:3} are equal after {steps} steps, and so are those of {names:its|their} gradients: "
    "the units of a layer stay identical, as if it had one (symmetric initialisation{made:at})",
    "initialise the weights at random, such as nn.init.xavier_uniform_ or kaiming_uniform_; biases may be constant")
TWINS = topic_cause("equal-units",
    "{names:4} have the same values after {steps} steps, and the same gradients: so far they learn as if they were "
    "one, as copies of one layer do{made:at}",
    "initialise each at random, by itself: make each anew instead of by copy.deepcopy(), or call reset_parameters()")
DIES = topic_cause("gradients-die",
    "{backward:-}all numbers in the gradients of {names:3} are exactly 0 since step {since} of {steps}, and were not "
    "before; the loss is not 0. This happens when a relu gets only negative values (a dead "
    "relu), or a clamp only values outside of its range",
    "leave out a relu at the output (or take softplus, leaky_relu), take a smaller learning rate (lr), or clip")
DEAD_UNITS = topic_cause("dead-units",
    "{dead} of the {units} units of {name} have gradients of exactly 0 whenever they were looked at since step {since} "
    "of {steps}{noticed:at}, and had others before: they are dead, as where a relu gets only negative values",
    "a smaller learning rate (lr), leaky_relu or gelu in place of relu, or a norm before it")
TOO_LARGE = topic_cause("initial-weights",
    "suspicious: {names:3} begin with a standard deviation of {std:.2g}{made:at}: the largest makes its "
    "input {gain:.0f} times larger, and no norm follows, so that tanh and sigmoid saturate, and other outputs explode",
    "initialise them by nn.init.xavier_uniform_ or kaiming_normal_, whose scale fits the number of inputs")
VANISHES = topic_cause("gradients-vanish",
    "hardly any gradient reaches {names:3}: in step {steps}{noticed:at} {names:its|their} gradients are at most "
    "{most:.1g}, less than a millionth of the largest one{how}{made:-}",
    "initialise the weights by kaiming_normal_ or xavier_uniform_, whose scale fits the number of inputs; in a deep "
    "network take relu in place of sigmoid, norms, or residual connections")
NOT_FINITE = topic_cause("weights-not-finite",
    "{names:3} {names:has|have} NaN or infinite numbers in step {steps}{noticed:at}, and so has all that is computed "
    "with {names:it|them}; no later step changes that",
    "`byname run --non-finite` names the operation that made the first of them, and why")
LOSS_NOT_FINITE = topic_cause("loss-not-finite",
    "the loss is {kind} in the second backward{noticed:at}, and all weights that it is computed from are finite",
    "`byname run --non-finite` names the operation that gives it, and why")
STILL_ZERO = topic_cause("zero-gradient",
    "{names:3}, made{made:at}, are all 0 still in call {times} of the backward{noticed:at}, though the program changes "
    "them in place: two layers in a row, and the gradient of each has the other as a factor",
    "initialise one of them at random, as by torch.randn(n, m) / n**0.5")
SECOND_IS_ZERO = topic_cause("gradients-vanish",
    "the gradient{noticed:at} of {of}, which is a gradient itself, is exactly 0 in its first {times} calls: a "
    "{gate} has a constant slope, so that a network of them has no second derivatives",
    "take tanh, silu, softplus or a sine in place of {gate}")
# fmt: on

_FAINT_AT, _FAINT = 4, 1e-6
"""The step at which gradients are reported that are at most this share of the largest one."""
_LARGE, _TINY = 4.0, 0.1
"""Factors by which a layer makes its input larger that are out of scale."""
_CLOSED = 1e-3
"""The largest number of gates that let nearly nothing through at first, as of ReZero, LayerScale or LoRA."""
_EQUAL_AT, _MOST_MODULES = 8, 64
_DEAD, _LONG = 8, 4
"""The fewest steps with gradients of 0 only that are reported, and the smallest share of all steps: one in `_LONG`."""
_STEPPING = {"sub_", "add_", "_foreach_sub_", "_foreach_add_"}
_DEAD_SHARE, _DEAD_LOOKS = 0.5, 4
"""The share of dead units in a layer, and the looks at steps 1, 2, 4, ..., at which they are reported."""
_MOST_NUMBERS = 1 << 20
_SECOND_CALLS = 4
_GATES = {"ThresholdBackwardBackward": "relu", "LeakyReluBackwardBackward": "leaky_relu"}
"""Nodes of the gradients of activations with a constant slope."""
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Units(Topic):
    """Watches the weights of layers, and their gradients, at a few steps."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self.dead: dict[int, int] = {}
        self._dying: dict[int, list[int]] = {}
        self._faint: set[int] = set()
        self._modules: dict[int, weakref.ref[nn.Module]] = {}
        self._loss_is_zero = False
        self._statements: dict[int, str] = {}  # those that call a layer, by its weight
        self._alive: dict[int, tuple[weakref.ref[torch.Tensor], list[tuple[int, torch.Tensor]]]] = {}
        self._lost: set[int] = set()  # optimizers with weights that are not finite, by `id`
        self._second: dict[Any, int] = {}  # calls of grad that gave 0 only, by line; -1 of a line that gave more

    def begin(self, block: Undo) -> None:
        on_call(block, torch.autograd, "grad", self._differentiated)

    def _differentiated(self, call: ObservedCall, result: Any) -> None:
        """Report gradients of gradients that are always 0 behind a relu."""
        of, zero = call.given(0, "outputs"), self._second.get(call.line.place, 0)
        if not 0 <= zero < _SECOND_CALLS or not is_tensor(of) or not has_graph(of):
            return
        kinds = {node_kind(one) for one in nodes_behind([of])}
        gate = next((word for kind, word in _GATES.items() if kind in kinds), None)
        is_second = gate is not None and all(one is not None and is_zero(one) for one in result)
        zero = self._second[call.line.place] = zero + 1 if is_second else -1
        if zero == _SECOND_CALLS:
            self.report(SECOND_IS_ZERO, call.line.site, of=arg_name(call.line, 0), times=zero, gate=gate)

    def note_losses(self, roots: Sequence[Any]) -> None:
        """Note whether a loss is 0: then a gradient of 0 is right, as that of a hinge loss."""
        self._loss_is_zero = any(map(is_zero, roots))

    def backward(self, loss: Loss) -> None:
        """Report two layers of zeros that steps by hand leave as they are, and a loss that is not finite by itself."""
        free = [one for one in loss.context.leaves if loss.number == _DEAD and one.dim() > 1 and one._version >= _LONG]
        zero = [one for one in free if is_zero(one) and id(one) not in self.owned()]
        operations = {change.operation for one in zero for change in changes_of(memory_of(one))}
        if len(zero) > 1 and operations <= _STEPPING:  # no perturbations, which begin anew each time
            facts = {"names": tuple(FailureContext().names(zero)), "made": site_of_tensor(zero[0])}
            self.report(STILL_ZERO, loss.line.site, times=_DEAD, **facts)
        is_second = loss.number == 2 and not self._watch.is_finite_watched
        bad = [root for root in loss.context.roots if not is_finite(root)] if is_second else []
        if bad and all(map(is_finite, loss.context.leaves)):
            self.report(LOSS_NOT_FINITE, loss.line.site, kind=nonfinite_kind(bad[0]))

    def ran(self, call: ObservedCall) -> None:
        if not call.depth and len(self._modules) < _MOST_MODULES:
            self._modules.setdefault(id(call.called), weakref.ref(call.called))
        weight = attributes_of(call.called)["_parameters"].get("weight")
        if weight is not None and call.line.site is not None:
            self._statements[id(weight)] = call.line.site.statement

    evaluated = ran

    def before_step(self, followed: FollowedOptimizer) -> None:
        steps = followed.steps
        if followed.is_sampled_step:
            self._look_for_nan(followed)
            self._look_at_units(followed)
        if steps == 1:
            self._look_for_large_weights(followed)
        if steps == _FAINT_AT:
            self._look_for_faint_gradients(followed)
        if steps == _EQUAL_AT:
            self._look_for_equal_units(followed)
        if id(followed) in self.dead or followed.is_sampled_step:
            self._look_for_zero_gradients(followed)

    def _look_for_nan(self, followed: FollowedOptimizer) -> None:
        """Report parameters that are not finite; the program waits once for the numbers of all of them."""
        is_known = id(followed) in self._lost or self._watch.is_finite_watched
        every = [] if is_known else followed.parameters()
        with reading_values():
            plain = [one for one in every if type(one) in PLAIN and one.is_floating_point() and can_read(one)]
            sums = [one.sum(dtype=torch.float32) for one in plain if one.layout is torch.strided]
            if math.isfinite(float(sum(one.to(sums[0].device) for one in sums))):
                return
            bad = [one for one in plain if not is_finite(one)]
        if bad:
            self._lost.add(id(followed))
            self.report(NOT_FINITE, followed.site, names=tuple(FailureContext().names(bad)), steps=followed.steps)

    def _called_modules(self) -> list[nn.Module]:
        alive = [one for reference in self._modules.values() if (one := reference()) is not None]
        return [one for module in alive for one in modules_in(module)]

    def _layers_of(self, followed: FollowedOptimizer) -> list[torch.Tensor]:
        """Return the weights of its linear and convolutional layers that were called."""
        layers = [attributes_of(one)["_parameters"] for one in self._called_modules() if type(one) in _LAYERS]
        mine = {id(weight): weight for one in layers if type(weight := one.get("weight")) in PLAIN}
        return [one for key, one in mine.items() if key in followed.keys and one.numel() <= _MOST_NUMBERS]

    def _look_for_large_weights(self, followed: FollowedOptimizer) -> None:
        """Report layers that make their input many times larger before the first step, without a norm."""
        gains = [(_gain(one), one) for one in self._layers_of(followed)]
        large = [(gain, one) for gain, one in gains if gain > _LARGE and not self._is_scaled(one)]
        has_norms = any("Norm" in type(one).__name__ for one in self._called_modules())
        if 2 <= len(large) >= len(gains) / 2 and not has_norms:
            gain, largest = max(large, key=lambda pair: pair[0])
            names = tuple(FailureContext().names([one for _, one in large]))
            facts = {"gain": gain, "std": gain / largest[0].numel() ** 0.5, "made": made_last(largest)}
            self.report(TOO_LARGE, followed.site, names=names, **facts)

    def _is_scaled(self, weight: torch.Tensor) -> bool:
        """Return whether the statement that calls a layer multiplies or divides, or is not known."""
        statement = self._statements.get(id(weight))
        return statement is None or re.search(r" [*/] ", statement) is not None

    def _look_for_faint_gradients(self, followed: FollowedOptimizer) -> None:
        """Report layers whose gradients are next to nothing beside the largest of all."""
        layers, every = self._layers_of(followed), followed.parameters()
        with reading_values():
            held = [(id(one), grad) for one in every if type(grad := fact(one, "grad")) in PLAIN and can_read(grad)]
            small = [(key, grad) for key, grad in held if grad.layout is torch.strided]
            ends = {key: float(grad.abs().max()) for key, grad in small if 0 < grad.numel() <= _MOST_NUMBERS}
        faint = [one for one in layers if 0 < ends.get(id(one), 0) < _FAINT * max(ends.values())]
        if 2 <= len(faint) >= len(layers) / 2 and faint[0] is layers[0]:  # else residual branches begin small
            gain, most = max(map(_gain, faint)), max(ends[id(one)] for one in faint)
            if gain >= _TINY and self._begins_closed(followed, ends, {*map(id, faint)}):
                return
            made, how = made_last(faint[0]), ""
            if gain < _TINY:
                how = f". The weights{at(made)} are small: a layer makes its input {gain:.1g} times as large"
            facts = {"most": most, "steps": followed.steps, "how": how, "made": made if how else None}
            self._faint.update(map(id, faint))
            self.report(VANISHES, followed.site, names=tuple(FailureContext().names(faint)), **facts)

    def _begins_closed(self, followed: FollowedOptimizer, ends: dict[int, float], faint: set[int]) -> bool:
        """Return whether gates, or other parameters that are no biases, are nearly 0 and have larger gradients."""
        with reading_values():
            every = [one for one in followed.parameters() if id(one) in ends.keys() - faint]
            nearly_zero = [one for one in every if float(one.detach().abs().max()) < _CLOSED]
        return any(not name.path.endswith("bias") for name in FailureContext().names(nearly_zero))

    def _look_at_units(self, followed: FollowedOptimizer) -> None:
        """Note which units of the linear and convolutional layers have a gradient that is not 0."""
        with reading_values():
            for key, one in ((id(one), one) for one in self._layers_of(followed)):
                gradient = fact(one, "grad")
                if type(gradient) in PLAIN and can_read(gradient):
                    if key not in self._alive or self._alive[key][0]() is not one:  # an id is used again
                        self._alive[key] = weakref.ref(one), []
                    units = gradient.detach().reshape(len(one), -1).ne(0).any(1).cpu()
                    self._alive[key][1].append((followed.steps, units))

    def _report_dead_units(self, every: Sequence[FollowedOptimizer]) -> None:
        for key, (reference, looks) in [one for one in self._alive.items() if one[0] not in self._faint]:
            weight, alive = reference(), torch.stack([mask for _, mask in looks])
            steps, site = next(((one.steps, one.site) for one in every if key in one.keys), (0, None))
            for number, (since, _) in enumerate(looks):
                dead = int((alive[:number].any(0) & ~alive[number:].any(0)).sum())
                is_long = len(looks) - number >= _DEAD_LOOKS and steps - since >= max(2 * _DEAD, steps / _LONG)
                if weight is not None and is_long and len(weight) > dead > max(_DEAD_SHARE * len(weight), 3):
                    facts = {"dead": dead, "units": len(weight), "name": FailureContext().names([weight])[0]}
                    self.report(DEAD_UNITS, site, since=since, steps=steps, **facts)
                    break

    def _look_for_equal_units(self, followed: FollowedOptimizer) -> None:
        with reading_values():
            graded = [one for one in followed.parameters() if type(one) in PLAIN and fact(one, "grad") is not None]
            found = [one for one in graded if _all_equal(one) and _all_equal(fact(one, "grad"))]
            same: dict[Any, list[torch.Tensor]] = {}
            for one in [one for one in graded if one.dim() > 1 and not has_zero_gradient(one) and not found]:
                same.setdefault((one.shape, one.device, sum_of(one), sum_of(fact(one, "grad"))), []).append(one)
            twins = [one for every in same.values() for one in every if every[1:] and torch.equal(one, every[-1])]
        for cause, which in ((EQUAL_UNITS, found), (TWINS, twins)):
            if which:
                names = tuple(FailureContext().names(which))
                self.report(cause, followed.site, names=names, steps=followed.steps, made=made_last(which[0]))

    def _look_for_zero_gradients(self, followed: FollowedOptimizer) -> None:
        graded = [one for one in followed.parameters() if one.dim() > 1 and fact(one, "grad") is not None]
        lived = any(id(one) not in followed.zero for one in graded)  # a bias behind a dead relu lives on
        smallest = sorted(graded, key=torch.numel)[: 1 if id(followed) in self.dead else None]
        if lived and smallest and all(map(has_zero_gradient, smallest)) and not self._loss_is_zero:
            if id(followed) not in self.dead:
                followed.name(graded)
                self.dead[id(followed)], self._dying[id(followed)] = followed.steps, list(map(id, graded))
        else:
            self.dead.pop(id(followed), None)
        self._loss_is_zero = False

    def end(self, every: Sequence[FollowedOptimizer]) -> None:
        since = {one: self.dead.get(id(one), one.steps) for one in every}
        died = [one for one in every if one.steps - since[one] >= max(_DEAD, one.steps / _LONG)]
        self._report_dead_units([one for one in every if one not in died])  # they may be dead by what is behind them
        for followed in every:
            self._look_for_nan(followed)
        for followed in died:
            names = followed.names_of(self._dying[id(followed)])
            facts = {"names": names, "backward": followed.backward, "steps": followed.steps}
            self.report(DIES, followed.site, since=since[followed], **facts)


def _gain(weight: torch.Tensor) -> float:
    """Return by how much a layer makes its input larger, on average; 0 if its numbers cannot be read."""
    with reading_values():
        return float(weight.detach().pow(2).mean() * weight[0].numel()) ** 0.5 if can_read(weight) else 0.0


def _all_equal(tensor: torch.Tensor) -> bool:
    """Return whether all rows of a matrix are equal, up to rounding, and not 0, or those of each gate of an RNN."""
    if tensor.dim() < 2 or len(tensor) < 2 or tensor.numel() > _MOST_NUMBERS or not tensor.is_floating_point():
        return False
    rows = tensor.detach().reshape(len(tensor), -1)
    largest = float(rows[:2].abs().max())
    if not largest or float((rows[0] - rows[1]).abs().max()) > 1e-4 * largest:
        return False
    gates = [number for number in (1, 3, 4) if len(rows) % number == 0 and len(rows) > number]
    blocks = [rows.reshape(number, -1, rows.shape[1]) for number in gates]
    return any(float((one - one[:, :1]).abs().max()) <= 1e-4 * largest for one in blocks)
