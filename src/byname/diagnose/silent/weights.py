"""Weights: units that stay equal, gradients that are 0 from some step on, averages and targets that do not follow."""

from __future__ import annotations

import ast
import re
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from byname.diagnose.cause import variable
from byname.diagnose.context import FailureContext, assignments
from byname.diagnose.followed_optimizer import FollowedOptimizer, has_zero_gradient, is_training, sum_of
from byname.diagnose.nonfinite.reasons import can_read, is_zero, reading_values
from byname.diagnose.silent.topic import ObservedCall, Topic, Watch, callee_text, copy_values, on_call, topic_cause
from byname.naming.name import Name, at
from byname.reading.frames import Line
from byname.reading.modules import modules_in, parameters_in
from byname.reading.objects import attributes_of
from byname.reading.tensor import PLAIN, fact, is_tensor, memory_of
from byname.source.code import enclosing_statement, names_bound, names_read, source_of, statements_of
from byname.source.location import is_library
from byname.tracking.log import changes_of, logs
from byname.tracking.lookup import creation_record_of, site_of_tensor
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
AVERAGE_IS_COPY = topic_cause("average-is-a-copy",
    "{average} is no average of {weight}: after each update{noticed:at} it is nearly equal to it, and differs by "
    "{share:.1g} of what the last step changed. The decay seems to be used the wrong way round",
    "average = decay * average + (1 - decay) * weight, with a decay near 1; or average.lerp_(weight, 1 - decay)")
NEVER_FOLLOWS = topic_cause("target-never-updated",
    "suspicious: {target} has the shapes of {module}, is used{noticed:at}, and was never updated in {steps} "
    "steps: it has its initial weights. No line that runs copies weights to it{unused}",
    "call {target.path}.load_state_dict({module.path}.state_dict()) every few steps; it is right for a fixed teacher")
OLD_STATISTICS = topic_cause("average-without-buffers",
    "{name} is 0 as it was made, and a batch norm uses it in evaluation mode{noticed:at}: the parameters of this "
    "copy follow those of a trained model, and its buffers, as running_mean and running_var, do not",
    "copy the buffers in each update, too: for mine, other in zip(copy.buffers(), model.buffers()): mine.copy_(other); "
    "of an AveragedModel, use_buffers=True or update_bn()")
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
SAME_MODULE = topic_cause("same-module",
    "suspicious: {copy} and {module} have the same parameters since `{assigned.statement}`{assigned:at}: what {copy} "
    "gives without gradients{noticed:at} changes with every step of {module}",
    "make a copy of its own, `{copy.path} = copy.deepcopy({module.path}).requires_grad_(False)`, and update it "
    "from time to time: {copy.path}.load_state_dict({module.path}.state_dict())")
UNTIED = topic_cause("weights-untied",
    "suspicious: {first} and {second} were one parameter{tied:at}, and are two since a new Parameter was assigned"
    "{noticed:at}: each learns by itself",
    "change values in place, as nn.init does, or by copy_() under torch.no_grad(), or tie them again afterwards; it is "
    "right if each should learn by itself")
# fmt: on

_FAINT_AT, _FAINT = 4, 1e-6
"""The step at which gradients are reported that are at most this share of the largest one."""
_LARGE, _TINY = 4.0, 0.1
"""Factors by which a layer makes its input larger that are out of scale."""
_EQUAL_AT, _TARGETS_AT, _AVERAGED_AT = 8, (32, 64, 128, 256), (8, 16, 32)
_DEAD, _LONG = 8, 4
"""The fewest steps with gradients of 0 only that are reported, and the smallest share of all steps: one in `_LONG`."""
_DEAD_SHARE, _DEAD_LOOKS = 0.5, 4
"""The share of dead units in a layer, and the looks at steps 1, 2, 4, ..., at which they are reported."""
_NO_AVERAGE = 0.05
"""An average that differs from the weights by less than this share of the last step is called a copy."""
_MOST_NUMBERS = 1 << 20
_MOST_MODULES, _FIRST_USED, _COMPARED, _MANY = 64, 2, 8, 4
_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


class _Called(NamedTuple):
    """A module that was called, with the sum of its first parameter then, the line, and the steps made before."""

    module: weakref.ref[nn.Module]
    total: float
    line: Line
    made: int

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The parameters of the module; none once it is gone."""
        module = self.module()
        return [] if module is None else parameters_in(module)


class _ParameterSlot(NamedTuple):
    """A place where a parameter was assigned: the module, the name of the attribute, and the line."""

    parameter: weakref.ref[torch.Tensor]
    module: weakref.ref[nn.Module]
    name: str
    line: Line

    def is_same_slot(self, other: _ParameterSlot) -> bool:
        """Return whether another place is the same attribute of the same module."""
        return self.name == other.name and self.module() is other.module() is not None

    @property
    def now(self) -> Any:
        return attributes_of(self.module()).get("_parameters", {}).get(self.name)


class Weights(Topic):
    """Watches the values of parameters, and of their copies, at a few steps."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self.dead: dict[int, int] = {}
        self._dying: dict[int, list[int]] = {}
        self._faint: set[int] = set()
        self._last: dict[int, list[tuple[weakref.ref[torch.Tensor], torch.Tensor]]] = {}
        self._copies: dict[int, int] = {}
        self._modules: dict[int, _Called] = {}
        self._targets: list[tuple[_Called, FollowedOptimizer, dict[str, Any]]] = []
        self._loss_is_zero = False
        self._target_calls: dict[Any, Line | None] = {}  # calls without gradients named as a target
        self._alive: dict[int, tuple[weakref.ref[torch.Tensor], list[tuple[int, torch.Tensor]]]] = {}
        self._parameter_slots: dict[int, _ParameterSlot] = {}
        self._ties: list[tuple[_ParameterSlot, _ParameterSlot, list[Line]]] = []

    def begin(self, block: Undo) -> None:
        on_call(block, nn.Module, "register_parameter", self._registered)

    def _registered(self, call: ObservedCall, result: Any) -> None:
        parameter = call.given(2, "param")
        if parameter is None or len(self._parameter_slots) >= _MOST_NUMBERS:
            return
        slot = _ParameterSlot(
            weakref.ref(parameter), weakref.ref(call.args[0]), call.given(1, "name"), call.programs_line
        )
        for first, second, broken in self._ties:
            if any(slot.is_same_slot(one) and one.parameter() is not parameter for one in (first, second)):
                broken.append(slot.line)
        known = self._parameter_slots.get(id(parameter))
        if known is None or known.parameter() is not parameter or known.module() is None:
            self._parameter_slots[id(parameter)] = slot
        elif not known.is_same_slot(slot):
            self._ties.append((known, slot, []))

    def _look_for_ties(self, followed: FollowedOptimizer) -> None:
        """Report parameters that were one parameter, are two now, and are both trained."""
        for first, second, broken in self._ties:
            site, mine = broken[-1].site if broken else None, [first.now, second.now]
            is_copy = site is None or is_library(site.file) or "clone(" in site.statement
            if not is_copy and mine[0] is not mine[1] and followed.keys.issuperset(map(id, mine)):
                names = FailureContext().names(mine)
                self.report(UNTIED, site, first=names[0], second=names[1], tied=second.line.site)

    def note_losses(self, roots: Sequence[Any]) -> None:
        """Note whether a loss is 0: then a gradient of 0 is right, as that of a hinge loss."""
        self._loss_is_zero = any(map(is_zero, roots))

    def evaluated(self, call: ObservedCall) -> None:
        """Note a call that gives a target, by the name of what is called, of a module that an optimizer trains."""
        line = call.programs_line
        is_new = self._watch.steps and line.place not in self._target_calls
        if is_new and not self.owned().isdisjoint(map(id, parameters_in(call.called))):  # it may be, from some step on
            self._target_calls[line.place] = line if _TARGET.search(callee_text(line).lower()) else None
        self.ran(call)

    def ran(self, call: ObservedCall) -> None:
        if not call.depth and id(call.called) not in self._modules and len(self._modules) < _MOST_MODULES:
            for first in parameters_in(call.called)[:1]:
                facts = sum_of(first), call.line, self._watch.steps
                self._modules[id(call.called)] = _Called(weakref.ref(call.called), *facts)

    def applied(self, call: ObservedCall) -> None:
        """Look for targets of a loss that come from the trained module, called by the name of a target network."""
        lines = [line for line in self._target_calls.values() if line is not None] if torch.is_grad_enabled() else []
        made = creation_record_of(call.targets) if lines and call.targets is not None else None
        for line in lines:
            if made is not None and made.line.code is line.code and _is_computed_from(made.line, line):
                self._target_calls[line.place] = None
                self._look_for_alias(line)

    def _look_for_alias(self, line: Line) -> None:
        """Report the assignment, in the same file, that makes a target the trained module itself."""
        path = callee_text(line)
        for site, node in assignments(line.code):
            value: Any = node.value
            if isinstance(value, ast.Call) and ast.unparse(value.func) in ("copy.copy", "copy") and value.args:
                value = value.args[0]  # a shallow copy, which has the same parameters
            module = ast.unparse(value) if isinstance(value, ast.Name | ast.Attribute) else ""
            if module and path in map(ast.unparse, node.targets) and not _TARGET.search(module.lower()):
                names = {"copy": variable(path), "module": variable(module)}
                self.report(SAME_MODULE, line.site, assigned=site, **names)

    def before_step(self, followed: FollowedOptimizer) -> None:
        steps = followed.steps
        if steps == 1:
            self._look_for_ties(followed)
        if followed.is_sampled_step:
            self._look_at_units(followed)
        if steps == 1:
            self._look_for_large_weights(followed)
        if steps == _FAINT_AT:
            self._look_for_faint_gradients(followed)
        if steps == _EQUAL_AT:
            self._look_for_equal_units(followed)
        if steps - 1 in _AVERAGED_AT and id(followed) in self._last:
            any(self._finds_copy(followed, *one) for one in self._last.pop(id(followed)))
        if steps in _AVERAGED_AT:
            matrices = [one for one in followed.parameters() if one.dim() > 1 and type(one) in PLAIN]
            smallest = [one for one in sorted(matrices, key=torch.numel)[:_COMPARED] if one.numel() <= _MOST_NUMBERS]
            with reading_values():
                self._last[id(followed)] = [(weakref.ref(one), one.detach().clone()) for one in smallest]
        if steps in _TARGETS_AT:
            self._look_for_targets(followed)
        if id(followed) in self.dead or followed.is_sampled_step:
            self._look_for_zero_gradients(followed)

    def _called_modules(self) -> list[nn.Module]:
        alive = [called.module() for called in self._modules.values()]
        return [one for module in alive if module is not None for one in modules_in(module)]

    def _layers_of(self, followed: FollowedOptimizer) -> list[torch.Tensor]:
        """Return the weights of its linear and convolutional layers that were called."""
        layers = [attributes_of(one)["_parameters"] for one in self._called_modules() if type(one) in _LAYERS]
        mine = {id(weight): weight for one in layers if type(weight := one.get("weight")) in PLAIN}
        return [one for key, one in mine.items() if key in followed.keys and one.numel() <= _MOST_NUMBERS]

    def _look_for_large_weights(self, followed: FollowedOptimizer) -> None:
        """Report layers that make their input many times larger before the first step, without a norm."""
        gains = [(_gain(one), one) for one in self._layers_of(followed)]
        large = [(gain, one) for gain, one in gains if gain > _LARGE]
        has_norms = any("Norm" in type(one).__name__ for one in self._called_modules())
        if 2 <= len(large) >= len(gains) / 2 and not has_norms:
            gain, largest = max(large, key=lambda pair: pair[0])
            names = tuple(FailureContext().names([one for _, one in large]))
            facts = {"gain": gain, "std": gain / largest[0].numel() ** 0.5, "made": _made_last(largest)}
            self.report(TOO_LARGE, followed.site, names=names, **facts)

    def _look_for_faint_gradients(self, followed: FollowedOptimizer) -> None:
        """Report layers whose gradients are next to nothing beside the largest of all."""
        layers, every = self._layers_of(followed), followed.parameters()
        with reading_values():
            held = [(id(one), grad) for one in every if type(grad := fact(one, "grad")) in PLAIN and can_read(grad)]
            small = [(key, grad) for key, grad in held if grad.layout is torch.strided]
            ends = {key: float(grad.abs().max()) for key, grad in small if 0 < grad.numel() <= _MOST_NUMBERS}
        faint = [one for one in layers if 0 < ends.get(id(one), 0) < _FAINT * max(ends.values())]
        if 2 <= len(faint) >= len(layers) / 2:
            gain, most = max(map(_gain, faint)), max(ends[id(one)] for one in faint)
            made, how = _made_last(faint[0]), ""
            if gain < _TINY:
                how = f". The weights{at(made)} are small: a layer makes its input {gain:.1g} times as large"
            facts = {"most": most, "steps": followed.steps, "how": how, "made": made if how else None}
            self._faint.update(map(id, faint))
            self.report(VANISHES, followed.site, names=tuple(FailureContext().names(faint)), **facts)

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
                same.setdefault((one.shape, sum_of(one), sum_of(fact(one, "grad"))), []).append(one)
            twins = [one for every in same.values() for one in every if every[1:] and torch.equal(one, every[-1])]
        for cause, which in ((EQUAL_UNITS, found), (TWINS, twins)):
            if which:
                names = tuple(FailureContext().names(which))
                self.report(cause, followed.site, names=names, steps=followed.steps, made=_made_last(which[0]))

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

    def _finds_copy(self, followed: FollowedOptimizer, reference: weakref.ref[Any], before: torch.Tensor) -> bool:
        """Return whether another tensor follows a weight as a copy does; report it when it is found again."""
        one: Any = reference()
        owned = self.owned()
        records = [record for log in logs() if log.of_this_thread() for record in log.creations()]
        for held in [record() for record in records] if one is not None else ():
            if held is None or held.is_meta or held.shape != one.shape or held.dtype != one.dtype or id(held) in owned:
                continue
            with reading_values():
                last, now = (other - one for other in (before, held.detach().to(one.device)))
                step, distance = float(last.abs().max()), float(now.abs().max())
                follows = float(torch.cosine_similarity(last.flatten(), now.flatten(), 0)) > 0.7  # rounding does not
            if 0 < distance <= _NO_AVERAGE * step and follows and memory_of(held) is not memory_of(one):
                self._copies[id(followed)] = self._copies.get(id(followed), 0) + 1
                if self._copies[id(followed)] == 2:
                    noticed: list[Any] = [change.line.site for change in changes_of(memory_of(held))]
                    if not noticed and issubclass(type(held), nn.Parameter):  # it is given new values: p.data = ...
                        sums = [one for one in assignments(followed.line.code) if isinstance(one[1].value, ast.BinOp)]
                        every = [site for site, one in sums if ast.unparse(one.targets[0]).endswith(".data")]
                        noticed = every if len(every) == 1 else [None]
                    noticed = noticed or [site_of_tensor(held)]
                    average, weight = FailureContext().names([held, one])
                    self.report(AVERAGE_IS_COPY, noticed[-1], average=average, weight=weight, share=distance / step)
                return True
        return False

    def _look_for_targets(self, followed: FollowedOptimizer) -> None:
        """Note the modules called targets that have the shapes of a trained one and were never changed."""
        self._targets = [one for one in self._targets if one[1] is not followed]
        every = [(one, one.parameters) for one in self._modules.values() if one.parameters]
        owned = self.owned()
        trained = [mine for _, mine in every if not followed.keys.isdisjoint(map(id, mine))]
        for called, mine in every:
            twins = [one for one in trained if [two.shape for two in one] == [two.shape for two in mine]]
            if twins and owned.isdisjoint(map(id, mine)):
                self._look_for_old_statistics(called, sum_of(mine[0]) != called.total)
            is_old = called.made <= _FIRST_USED  # else a copy that takes the place of others now and then
            if is_old and twins and owned.isdisjoint(map(id, mine)) and sum_of(mine[0]) == called.total:
                names = FailureContext().names([mine[0], twins[0][0]])
                unused = _swapped_update(twins[0][0], names[0]) or _dead_updates(called.line, names[0])
                if unused is not None and not _FIXED.search(" ".join(one.path.lower() for one in names)):
                    target, module = (variable(re.sub(r"(\[\d+\]|\.(weight|bias))+$", "", one.path)) for one in names)
                    self._targets.append((called, followed, {"target": target, "module": module, "unused": unused}))

    def _look_for_old_statistics(self, called: _Called, follows: bool) -> None:
        """Report a batch norm in evaluation mode that has its initial statistics, in a copy that follows another."""
        module: Any = called.module()
        norms = [one for one in modules_in(module) if issubclass(type(one), nn.modules.batchnorm._BatchNorm)]
        for own in [attributes_of(one)["_buffers"] for one in norms if follows and not is_training(one)]:
            mean, batches = own.get("running_mean"), own.get("num_batches_tracked")
            count = copy_values(batches)
            if is_tensor(mean) and is_zero(mean) and count is not None and not int(count):
                name = FailureContext().names([mean])[0]
                self.report(OLD_STATISTICS, called.line.site, name=name)
                return

    def end(self, every: Sequence[FollowedOptimizer]) -> None:
        since = {one: self.dead.get(id(one), one.steps) for one in every}
        died = [one for one in every if one.steps - since[one] >= max(_DEAD, one.steps / _LONG)]
        self._report_dead_units([one for one in every if one not in died])  # they may be dead by what is behind them
        for followed in died:
            names = followed.names_of(self._dying[id(followed)])
            facts = {"names": names, "backward": followed.backward, "steps": followed.steps}
            self.report(DIES, followed.site, since=since[followed], **facts)
        for called, followed, facts in self._targets:
            if any(sum_of(one) == called.total for one in called.parameters[:1]):  # none of a copy that is gone
                self.report(NEVER_FOLLOWS, called.line.site, steps=followed.steps, **facts)


def _gain(weight: torch.Tensor) -> float:
    """Return by how much a layer makes its input larger, on average; 0 if its numbers cannot be read."""
    with reading_values():
        return float(weight.detach().pow(2).mean() * weight[0].numel()) ** 0.5 if can_read(weight) else 0.0


def _made_last(tensor: torch.Tensor) -> Any:
    """Return the line that gave a tensor its values, by the last change in place or at its making."""
    return ([change.line.site for change in changes_of(memory_of(tensor))] or [site_of_tensor(tensor)])[-1]


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


def _is_computed_from(last: Line, first: Line) -> bool:
    """Return whether a statement computes with the value of an earlier one, through variables of the same function."""
    begin, end = (getattr(one.expr, "node", None) for one in (first, last))
    if last.code is None or begin is None or end is None:
        return False
    begin, end = enclosing_statement(begin), enclosing_statement(end)
    wanted = names_read(end)
    for one in reversed([one for one in statements_of(last.code) if begin.lineno <= one.lineno < end.lineno]):
        if not hasattr(one, "body") and not wanted.isdisjoint(bound := names_bound(one)):
            if one.lineno == begin.lineno:
                return True
            wanted = wanted - bound | names_read(one)
    return begin.lineno == end.lineno


_TARGET = re.compile(r"(?<![a-z])(target|tgt|ema|averaged?|shadow)(?![a-z])")
_FIXED = re.compile("predict|random|rnd|fixed|frozen|prior(?!i)")
"""Words of a network that another learns to predict, as in random network distillation."""
_UPDATES = {"load_state_dict", "copy_", "lerp_", "mul_", "add_", "set_", "data", "update", "update_parameters"}


def _rebound(loop: ast.For, path: str) -> str | None:
    """Return the variable of a loop over parameters, if the loop binds it to new tensors and so changes none."""
    calls = [one.func for one in ast.walk(loop.iter) if isinstance(one, ast.Call)]
    owners = [ast.unparse(one.value) for one in calls if isinstance(one, ast.Attribute) and one.attr == "parameters"]
    names = [one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)]
    last = loop.body[-1]  # what is bound before it may be used in the loop, as a distance
    bound = ast.unparse(last.targets[0]) if isinstance(last, ast.Assign) and isinstance(last.value, ast.BinOp) else ""
    for name, owner in zip(names, owners, strict=False):  # an argument has another name than what it is
        is_of_it = owner.rpartition(".")[2] in re.findall(r"\w+", path) or _TARGET.search(owner.lower())
        if name == bound and is_of_it and name in names_read(last):
            return name
    return None


def _swapped_update(weight: torch.Tensor, name: Name) -> str:
    """Return in words the line that copies weights into a trained parameter between steps, in place of its target."""
    changes = [one for one in changes_of(memory_of(weight)) if re.fullmatch(r"(copy|lerp|mul|add)_", one.operation)]
    loop: Any = getattr(changes[-1].line.expr, "node", None) if changes else None
    while loop is not None and not isinstance(loop, ast.For):
        loop = getattr(loop, "parent", None)
    words = [name.path, "" if loop is None else ast.unparse(loop)]
    if len(changes) < _MANY or not all(_TARGET.search(one.lower()) for one in words):
        return ""
    return f": {changes[-1].line.site} changes the trained one instead, after its steps, as if the two were swapped"


def _dead_updates(line: Line, name: Name) -> str | None:
    """Return in words why no line of a file updates a target, such as a function that is never called; else None."""
    source = None if line.code is None else source_of(line.code)
    nodes = [] if source is None or source.tree is None else list(ast.walk(source.tree))
    bound = next(filter(None, (_rebound(one, name.path) for one in nodes if isinstance(one, ast.For))), None)
    if bound is not None:
        return f": a loop binds `{bound}` to new tensors, which changes no parameter; {bound}.copy_() does"
    if not nodes or not _TARGET.search(name.path.lower()):
        return None
    used = {getattr(one, "id", getattr(one, "attr", None)) for one in nodes}
    functions = [one for one in nodes if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef)]
    unused = [one for one in functions if one.name not in used and not one.name.startswith("__")]
    dead = {id(part): one for one in unused for part in ast.walk(one)}
    parts = (ast.Assign, ast.AugAssign, ast.Expr, ast.For, ast.With)
    updates = [one for one in nodes if isinstance(one, parts) and _TARGET.search(ast.unparse(one).lower())]
    updates = [one for one in updates if _UPDATES & {getattr(part, "attr", None) for part in ast.walk(one)}]
    if any(id(one) not in dead for one in updates):
        return None
    methods = [id(part) for one in nodes if isinstance(one, ast.ClassDef) for part in one.body]
    unused = [dead[id(one)] for one in updates[-1:] if id(dead[id(one)]) not in methods]  # which other files may call
    return f"; {unused[0].name}() is never called" if unused else ""
