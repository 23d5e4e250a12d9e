"""Copies: averages and targets that do not follow a model, or are the model itself, and weights that are untied."""

from __future__ import annotations

import ast
import re
import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

from byname.autograd.walk import leaf_tensors
from byname.diagnose.cause import variable
from byname.diagnose.causes.loss import NORMS, Loss, differences
from byname.diagnose.context import FailureContext, callee_text, enclosing, node_of
from byname.diagnose.followed_optimizer import FollowedOptimizer
from byname.diagnose.nonfinite.reasons import is_zero, reading_values, sum_of
from byname.diagnose.silent.topic import ObservedCall, Topic, Watch, copy_values, on_call, topic_cause
from byname.naming.name import Name, in_words
from byname.reading.frames import Line
from byname.reading.modules import modules_in, parameters_in
from byname.reading.objects import attributes_of
from byname.reading.tensor import PLAIN, fact, is_tensor, memory_of
from byname.source.code import copied_in, enclosing_statement, names_bound, names_read, source_of, statements_of
from byname.source.location import assignments, is_library
from byname.tracking.log import changes_of, logs
from byname.tracking.lookup import creation_record_of, site_of_tensor
from byname.undo import Undo

# fmt: off
AVERAGE_IS_COPY = topic_cause("average-is-a-copy",
    "{average} is no average of {weight}: after each update{noticed:at} it is nearly equal to it, and differs by "
    "{share:.1g} of what the last step changed. The decay seems to be used the wrong way round",
    "average = decay * average + (1 - decay) * weight, with a decay near 1; or average.lerp_(weight, 1 - decay)")
NEVER_FOLLOWS = topic_cause("target-never-updated",
    "suspicious: {target} has the shapes of {module}, is used{noticed:at}, and was never updated in {steps} "
    "steps: it has its initial weights. No line that runs copies weights to it{unused}",
    "call {target.path}.load_state_dict({module.path}.state_dict()) every few steps; it is right for a fixed teacher")
NEVER_AVERAGED = topic_cause("average-without-updates",
    "{average}, an AveragedModel that is called{noticed:at}, has the weights that its model had when it was made: "
    "update_parameters() was not called in {steps} steps",
    "call {average.path}.update_parameters(model) after each step or epoch that the average is to include")
OLD_STATISTICS = topic_cause("average-without-buffers",
    "{name} is 0 as it was made, and a batch norm uses it in evaluation mode{noticed:at}: the parameters of this "
    "copy follow those of a trained model, and its buffers, as running_mean and running_var, do not",
    "copy the buffers in each update, too: for mine, other in zip(copy.buffers(), model.buffers()): mine.copy_(other); "
    "of an AveragedModel, use_buffers=True or update_bn()")
SAME_MODULE = topic_cause("same-module",
    "suspicious: {copy} and {module} have the same parameters since `{assigned.statement}`{assigned:at}: what {copy} "
    "gives without gradients{noticed:at} changes with every step of {module}",
    "make a copy of its own, `{copy.path} = copy.deepcopy({module.path}).requires_grad_(False)`, and update it "
    "from time to time: {copy.path}.load_state_dict({module.path}.state_dict())")
UNTIED = topic_cause("weights-untied",
    "suspicious: {first} and {second} were one parameter{tied:at}, and are two since a new one was assigned"
    "{noticed:at}: each learns by itself",
    "change values in place, as nn.init does, or by copy_() under torch.no_grad(), or tie them again afterwards; it is "
    "right if each should learn by itself")
ALWAYS_ZERO = topic_cause("difference-always-zero",
    "the difference{noticed:at} in the loss is still exactly 0 after {steps} steps, and changes no gradient: both "
    "sides have the same numbers, as where one keeps references to {whose:3}{kept:at} and no copies",
    "keep copies: x.detach().clone(), or copy.deepcopy(model)")
# fmt: on

_TARGETS_AT, _AVERAGED_AT = (16, 32, 64, 128, 256), (8, 16, 32)
_ZERO_AT = 7
"""The backward call of a line at which the differences in a loss are looked at, and at the next one again."""
_NO_AVERAGE = 0.05
"""An average that differs from the weights by less than this share of the last step is called a copy."""
_MOST_NUMBERS = 1 << 20
_MOST_MODULES, _FIRST_USED, _COMPARED, _MANY = 64, 2, 8, 4


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
    kind: str

    def is_same_slot(self, other: _ParameterSlot) -> bool:
        """Return whether another place is the same attribute of the same module."""
        return self.name == other.name and self.module() is other.module() is not None

    @property
    def now(self) -> Any:
        return attributes_of(self.module()).get("_parameters", {}).get(self.name)


class WeightCopies(Topic):
    """Watches averages and targets at a few steps, and parameters that were one."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._last: dict[int, list[tuple[weakref.ref[torch.Tensor], torch.Tensor]]] = {}
        self._copies: dict[int, int] = {}
        self._modules: dict[int, _Called] = {}
        self._targets: list[tuple[_Called, FollowedOptimizer, dict[str, Any]]] = []
        self._target_calls: dict[Any, Line | None] = {}  # calls without gradients named as a target
        self._parameter_slots: dict[int, _ParameterSlot] = {}
        self._ties: list[tuple[_ParameterSlot, _ParameterSlot, list[Line]]] = []
        self._zero: dict[Any, tuple[int, set[Line]]] = {}  # the steps and the differences that were 0, by backward

    def begin(self, block: Undo) -> None:
        on_call(block, nn.Module, "register_parameter", self._registered)

    def _registered(self, call: ObservedCall, result: Any) -> None:
        parameter = call.given(2, "param")
        if parameter is None or len(self._parameter_slots) >= _MOST_NUMBERS:
            return
        held, kind = (weakref.ref(parameter), weakref.ref(call.args[0])), type(call.args[0]).__name__
        slot = _ParameterSlot(*held, call.given(1, "name"), call.programs_line, kind)
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
        for *both, broken in self._ties:
            now = [self._successor(one, followed) if one.module() is None else one for one in both]
            broken += [one.line for one, before in zip(now, both, strict=True) if one is not before]
            site, mine = broken[-1].site if broken else None, [one.now for one in now]
            is_copy = site is None or is_library(site.file) or "clone(" in site.statement
            if not is_copy and mine[0] is not mine[1] and followed.keys.issuperset(map(id, mine)):
                names = FailureContext().names(mine)
                self.report(UNTIED, site, first=names[0], second=names[1], tied=both[1].line.site)

    def _successor(self, gone: _ParameterSlot, followed: FollowedOptimizer) -> _ParameterSlot:
        """Return the only place of a trained parameter in a module like one that is gone, or else that one."""
        like = [one for one in self._parameter_slots.values() if (one.name, one.kind) == (gone.name, gone.kind)]
        trained = [one for one in like if one.now is not None and id(one.now) in followed.keys]
        return trained[0] if len(trained) == 1 else gone

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
            value = copied_in(node.value)
            module = ast.unparse(value) if isinstance(value, ast.Name | ast.Attribute) else ""
            if module and path in map(ast.unparse, node.targets) and not _TARGET.search(module.lower()):
                names = {"copy": variable(path), "module": variable(module)}
                self.report(SAME_MODULE, line.site, assigned=site, **names)

    def backward(self, loss: Loss) -> None:
        """Report a difference that is exactly 0 in two calls of a line, with a step between them and some before."""
        if self._watch.steps < 2 or not _ZERO_AT <= loss.number <= _ZERO_AT + 1:
            return
        made: dict[Line, list[tuple[Any, torch.Tensor]]] = {}
        for minus, _, values in differences(loss, {*NORMS, "LinalgVectorNormBackward"}):
            if (call := loss.call(minus)) is not None:
                made.setdefault(call.line, []).append((minus, values))
        zero = {line for line, same in made.items() if all(is_zero(values) for _, values in same)}
        before, known = self._zero.get(loss.line.place, (self._watch.steps, zero))
        for line in zero & known if before < self._watch.steps else ():
            leaves = leaf_tensors([below for minus, _ in made[line] for below, _ in minus.next_functions])
            cuts = [cut for log in logs() for cut in log.detaches if any(cut.inputs[0][0]() is one for one in leaves)]
            whose = tuple(FailureContext().names(leaves)) or in_words("the same weights")
            kept = cuts[-1].line.site if cuts else None
            self.report(ALWAYS_ZERO, line.site, steps=self._watch.steps, whose=whose, kept=kept)
        self._zero[loss.line.place] = self._watch.steps, zero

    def before_step(self, followed: FollowedOptimizer) -> None:
        steps = followed.steps
        if steps == 1:
            self._look_for_ties(followed)
        if steps - 1 in _AVERAGED_AT and id(followed) in self._last:
            any(self._finds_copy(followed, *one) for one in self._last.pop(id(followed)))
        if steps in _AVERAGED_AT:
            matrices = [one for one in followed.parameters() if one.dim() > 1 and type(one) in PLAIN]
            smallest = [one for one in sorted(matrices, key=torch.numel)[:_COMPARED] if one.numel() <= _MOST_NUMBERS]
            with reading_values():
                self._last[id(followed)] = [(weakref.ref(one), one.detach().clone()) for one in smallest]
        if steps in _TARGETS_AT:
            self._look_for_targets(followed)

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
        parts = [part for one, _ in every for part in attributes_of(one.module())["_modules"].values()]
        sets = [*(mine for _, mine in every), *(parameters_in(part) for part in parts if part is not None)]
        trained = [mine for mine in sets if not followed.keys.isdisjoint(map(id, mine))]
        for called, mine in every:
            twins = [one for one in trained if [two.shape for two in one] == [two.shape for two in mine]]
            if not twins or not owned.isdisjoint(map(id, mine)):
                continue
            if sum_of(mine[0]) != called.total:
                if "Norm" in followed.modes.modal:  # else the model has its initial statistics, too
                    self._look_for_old_statistics(called)
            elif called.made <= _FIRST_USED:  # else a copy that takes the place of others now and then
                names = FailureContext().names([mine[0], twins[0][0]])
                unused = _swapped_update(twins[0][0], names[0]) or _dead_updates(called.line, names[0])
                if unused is not None and not _FIXED.search(" ".join(one.path.lower() for one in names)):
                    target, module = (variable(re.sub(r"(\[\d+\]|\.(weight|bias))+$", "", one.path)) for one in names)
                    self._targets.append((called, followed, {"target": target, "module": module, "unused": unused}))

    def _look_for_old_statistics(self, called: _Called) -> None:
        """Report batch norms that all have their initial statistics, in a copy that was called and updated."""
        module: Any = called.module()
        inner = modules_in(module)[1:]  # a norm alone is like any other of its size
        norms = [one for one in inner if issubclass(type(one), nn.modules.batchnorm._BatchNorm)]
        every = [own for one in norms if is_tensor((own := attributes_of(one)["_buffers"]).get("running_mean"))]
        counts = [copy_values(own.get("num_batches_tracked")) for own in every]  # of calls in training mode
        are_new = all(one is not None and not int(one) for one in counts)  # else one may be unused
        if every and are_new and all(is_zero(own["running_mean"]) for own in every):
            self.report(OLD_STATISTICS, called.line.site, name=FailureContext().names([every[0]["running_mean"]])[0])

    def end(self, every: Sequence[FollowedOptimizer]) -> None:
        for called, followed, facts in self._targets:
            last = [sum_of(one) for one in called.parameters[:1]]  # none of a copy that is gone
            if called.total in last or (facts["unused"] and not last and not followed.parameters()):
                self.report(NEVER_FOLLOWS, called.line.site, steps=followed.steps, **facts)
        self._look_for_averages_without_updates()

    def _look_for_averages_without_updates(self) -> None:
        for called in self._modules.values():
            averages = getattr(type(called.module()), "update_parameters", None) is AveragedModel.update_parameters
            mine = called.parameters if averages and called.made else []
            counts = [attributes_of(called.module())["_buffers"]["n_averaged"]] if mine else []
            if any(map(is_zero, counts)) and all(fact(one, "_version") == 0 for one in mine):
                path = FailureContext().names(counts)[0].path.removesuffix(".n_averaged")
                self.report(NEVER_AVERAGED, called.line.site, average=variable(path), steps=self._watch.steps)


def _is_computed_from(last: Line, first: Line) -> bool:
    """Return whether a statement computes with the value of an earlier one, through variables of the same function."""
    begin, end = map(node_of, (first, last))
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
    loop = enclosing(node_of(changes[-1].line), ast.For) if changes else None
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
