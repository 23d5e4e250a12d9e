"""Weights: units that stay equal, gradients that are 0 from some step on, averages and targets that do not follow."""

from __future__ import annotations

import ast
import re
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from byname.diagnose.context import FailureContext
from byname.diagnose.followed_optimizer import FollowedOptimizer, has_zero_gradient, sum_of
from byname.diagnose.nonfinite.reasons import is_zero, looking
from byname.diagnose.silent.topic import HeardCall, Topic, row, variable
from byname.naming.name import Name
from byname.reading.frames import Line
from byname.reading.modules import parameters_in
from byname.reading.tensor import PLAIN, fact, memory_of
from byname.source.code import source_of
from byname.tracking.log import changes_of, logs
from byname.tracking.lookup import site_of_tensor

# fmt: off
EQUAL_UNITS = row("equal-units",
    "all rows of {names:3} {names:is|are} equal after {steps} steps, and so are those of {names:its|their} gradients: "
    "the units of a layer stay identical, as if it had one (symmetric initialisation{made:at})",
    "initialise the weights at random, such as nn.init.xavier_uniform_ or kaiming_uniform_; biases may be constant")
DIES = row("gradients-die",
    "{backward:-}all numbers in the gradients of {names:3} are exactly 0 since step {since} of {steps}, and were not "
    "before; the loss is not 0. So it is when a relu gets only negative values: it is dead",
    "leave out a relu at the output (or take softplus, leaky_relu), take a smaller learning rate (lr), or clip")
AVERAGE_IS_COPY = row("average-is-a-copy",
    "{average} is no average of {weight}: after each update{noticed:at} it is nearly equal to it, and differs by "
    "{share:.1g} of what the last step changed. The decay seems to be used the wrong way round",
    "average = decay * average + (1 - decay) * weight, with a decay near 1; or average.lerp_(weight, 1 - decay)")
NEVER_FOLLOWS = row("target-never-updated",
    "suspicious: {target} has the shapes of {module}, is used{noticed:at}, and was never updated in {steps} "
    "steps: it has its initial weights. No line that runs copies weights to it{unused}",
    "call {target.path}.load_state_dict({module.path}.state_dict()) every some steps; it is right for a fixed teacher")
# fmt: on

_EQUAL_AT, _TARGETS_AT, _AVERAGED_AT = 8, (32, 64, 128, 256), (8, 16, 32)
_DEAD, _LONG = 8, 4
"""Steps with no gradient but 0 that are told, and what they are at least of all steps: one in so many."""
_NO_AVERAGE = 0.05
"""The share of the last step by which an average may differ from the weights, until it is called a copy of them."""
_MOST_NUMBERS = 1 << 20
_MOST_MODULES = 64


class _Called(NamedTuple):
    """A module that was called, with the sum of its first parameter then, and the line that called it."""

    module: weakref.ref[nn.Module]
    total: float
    line: Line

    @property
    def parameters(self) -> list[torch.Tensor]:
        """The parameters of the module; none once it is gone."""
        module = self.module()
        return [] if module is None else parameters_in(module)


class Weights(Topic):
    """Watches the values of parameters, and of their copies, at a few steps."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.dead: dict[int, int] = {}
        self._dying: dict[int, list[int]] = {}
        self._last: dict[int, tuple[weakref.ref[torch.Tensor], torch.Tensor]] = {}
        self._copies: dict[int, int] = {}
        self._modules: dict[int, _Called] = {}
        self._targets: list[tuple[_Called, FollowedOptimizer, dict[str, Any]]] = []
        self._loss_is_zero = False

    def note_losses(self, roots: Sequence[Any]) -> None:
        """Note whether a loss is 0: then a gradient of 0 is right, as that of a hinge loss."""
        self._loss_is_zero = any(map(is_zero, roots))

    def ran(self, call: HeardCall) -> None:
        """Remember the modules that are called."""
        if not call.depth and id(call.called) not in self._modules and len(self._modules) < _MOST_MODULES:
            for first in parameters_in(call.called)[:1]:
                self._modules[id(call.called)] = _Called(weakref.ref(call.called), sum_of(first), call.line)

    def before_step(self, followed: FollowedOptimizer) -> None:
        """Look at the values at a few steps."""
        steps = followed.steps
        if steps == _EQUAL_AT:
            self._look_for_equal_units(followed)
        if steps - 1 in _AVERAGED_AT and id(followed) in self._last:
            self._look_for_copies(followed, *self._last.pop(id(followed)))
        if steps in _AVERAGED_AT:
            matrices = [one for one in followed.parameters() if one.dim() > 1 and type(one) in PLAIN]
            for one in sorted(matrices, key=torch.numel)[:1]:
                with looking():
                    self._last[id(followed)] = weakref.ref(one), one.detach().clone()
        if steps in _TARGETS_AT:
            self._look_for_targets(followed)
        if id(followed) in self.dead or steps & (steps - 1) == 0:
            self._look_for_death(followed)

    def _look_for_equal_units(self, followed: FollowedOptimizer) -> None:
        with looking():
            graded = [one for one in followed.parameters() if type(one) in PLAIN and fact(one, "grad") is not None]
            found = [one for one in graded if _all_equal(one) and _all_equal(fact(one, "grad"))]
        if found:
            made = [change.line.site for change in changes_of(memory_of(found[0]))] or [site_of_tensor(found[0])]
            names = tuple(FailureContext().names(found))
            self.say(EQUAL_UNITS, followed.site, names=names, steps=followed.steps, made=made[-1])

    def _look_for_death(self, followed: FollowedOptimizer) -> None:
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

    def _look_for_copies(self, followed: FollowedOptimizer, reference: weakref.ref[Any], before: torch.Tensor) -> None:
        one: Any = reference()
        owned = {key for other in self._watch.optimizers() for key in other.keys}
        records = [record for log in logs() if log.of_this_thread() for record in [*log.made.values()]]
        for held in [record() for record in records] if one is not None else ():
            if held is None or held.shape != one.shape or held.dtype != one.dtype or id(held) in owned:
                continue
            with looking():
                last, rest = (other - one for other in (before, held.detach().to(one.device)))
                step, apart = float(last.abs().max()), float(rest.abs().max())
                follows = float(torch.cosine_similarity(last.flatten(), rest.flatten(), 0)) > 0.7  # rounding does not
            if 0 < apart <= _NO_AVERAGE * step and follows and memory_of(held) is not memory_of(one):
                self._copies[id(followed)] = self._copies.get(id(followed), 0) + 1
                if self._copies[id(followed)] == 2:
                    noticed = [change.line.site for change in changes_of(memory_of(held))] or [site_of_tensor(held)]
                    average, weight = FailureContext().names([held, one])
                    self.say(AVERAGE_IS_COPY, noticed[-1], average=average, weight=weight, share=apart / step)
                return

    def _look_for_targets(self, followed: FollowedOptimizer) -> None:
        """Note the modules called targets that have the shapes of a trained one and were never changed."""
        self._targets = []
        every = [(one, one.parameters) for one in self._modules.values() if one.parameters]
        owned = {key for other in self._watch.optimizers() for key in other.keys}
        trained = [mine for _, mine in every if not followed.keys.isdisjoint(map(id, mine))]
        for called, mine in every:
            twins = [one for one in trained if [two.shape for two in one] == [two.shape for two in mine]]
            if twins and owned.isdisjoint(map(id, mine)) and sum_of(mine[0]) == called.total:
                names = FailureContext().names([mine[0], twins[0][0]])
                unused = _dead_updates(called.line, names[0])
                if unused is not None:
                    target, module = (variable(re.sub(r"(\[\d+\]|\.(weight|bias))+$", "", one.path)) for one in names)
                    said = f"; {unused[-1]}() is never called" if unused else ""
                    self._targets.append((called, followed, {"target": target, "module": module, "unused": said}))

    def end(self, every: Sequence[FollowedOptimizer]) -> None:
        """Tell of what stayed so until the end."""
        for followed in every:
            since = self.dead.get(id(followed), followed.steps)
            if followed.steps - since >= max(_DEAD, followed.steps / _LONG):
                names = followed.names_of(self._dying[id(followed)])
                facts = {"names": names, "backward": followed.backward, "steps": followed.steps}
                self.say(DIES, followed.site, since=since, **facts)
        for called, followed, facts in self._targets:
            if all(sum_of(one) == called.total for one in called.parameters[:1]):
                self.say(NEVER_FOLLOWS, called.line.site, steps=followed.steps, **facts)


def _all_equal(tensor: torch.Tensor) -> bool:
    """Return whether all rows of a matrix are equal, up to rounding, and not 0."""
    if tensor.dim() < 2 or len(tensor) < 2 or tensor.numel() > _MOST_NUMBERS or not tensor.is_floating_point():
        return False
    rows = tensor.detach().reshape(len(tensor), -1)
    largest = float(rows[0].abs().max())
    if not largest or float((rows[0] - rows[1]).abs().max()) > 1e-4 * largest:
        return False
    return float((rows - rows[0]).abs().max()) <= 1e-4 * largest


_TARGET = re.compile(r"(?<![a-z])(target|tgt|ema|averaged?|shadow)(?![a-z])")
_UPDATES = {"load_state_dict", "copy_", "lerp_", "mul_", "add_", "set_", "data", "update", "update_parameters"}


def _dead_updates(line: Line, name: Name) -> list[str] | None:
    """Return the functions of the file that would update a target, if none of them is called; else None."""
    source = None if line.code is None else source_of(line.code)
    if source is None or source.tree is None or not _TARGET.search(name.path.lower()):
        return None
    nodes = list(ast.walk(source.tree))
    used = {
        getattr(one, "id", getattr(one, "attr", None)) for one in nodes if isinstance(one, ast.Name | ast.Attribute)
    }
    functions = [
        one for one in nodes if isinstance(one, ast.FunctionDef | ast.AsyncFunctionDef) and one.name not in used
    ]
    dead = {id(part): one.name for one in functions if not one.name.startswith("__") for part in ast.walk(one)}
    parts = (ast.Assign, ast.AugAssign, ast.Expr, ast.For, ast.With)
    updates = [one for one in nodes if isinstance(one, parts) and _TARGET.search(ast.unparse(one).lower())]
    updates = [one for one in updates if _UPDATES & {getattr(part, "attr", None) for part in ast.walk(one)}]
    return None if any(id(one) not in dead for one in updates) else [dead[id(one)] for one in updates]
