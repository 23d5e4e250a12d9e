"""Evaluation mode: forwards without gradients whose dropout and batch norms are in training mode."""

from __future__ import annotations

import ast
import re
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from byname.diagnose.cause import variable
from byname.diagnose.context import callee_text, enclosing, node_of
from byname.diagnose.followed_optimizer import ENOUGH, FollowedOptimizer, has_modes, is_training
from byname.diagnose.nonfinite.reasons import sum_of
from byname.diagnose.silent.topic import ObservedCall, Topic, Watch, copy_values, on_call, topic_cause
from byname.naming.name import Name
from byname.reading.frames import NO_LINE, Line, find_user_frame, user_line
from byname.reading.modules import modules_in, parameters_in
from byname.reading.tensor import is_tensor
from byname.source.location import Site, is_library
from byname.tracking.log import logs
from byname.undo import Undo

# fmt: off
TRAINS_IN_VALIDATION = topic_cause("evaluated-in-training-mode",
    "suspicious: {modal} of {module} {modal:is|are} in training mode in the forwards {which}{noticed:at}, "
    "after {after}. In this mode a dropout drops values, and a batch norm uses and keeps batch statistics",
    "call {module.path}.eval() {when}; it is right for Monte Carlo dropout")
STAYS_IN_EVALUATION = topic_cause("left-in-evaluation",
    "suspicious: {module} and its {modal} are in evaluation mode in all {steps} steps{stepped:at}, as in the forwards "
    "without gradients{noticed:at} before them: no dropout, and fixed statistics, as after {module.path}.eval()"
    "{put:at} without a {module.path}.train()",
    "call {module.path}.train() after each evaluation, or as each epoch begins; it is right if this is meant")
NEVER_TRAINS = topic_cause("left-in-evaluation",
    "suspicious: {module} and its {modal} are in evaluation mode in all {steps} steps{stepped:at}: {by}() puts "
    "{module.path} into it{noticed:at}, and no train() follows. In this mode a dropout drops nothing, and a batch norm "
    "keeps its statistics",
    "call {module.path}.train() before the training; it is right if this is meant")
DROPS_IN_EVALUATION = topic_cause("dropout-in-evaluation",
    "suspicious: dropout(){noticed:at} drops values although {module} is in evaluation mode, after eval(): the "
    "function does so unless it is given training=False", "F.dropout(..., training=self.training), or an nn.Dropout")
DROPS_UNREACHED = topic_cause("dropout-in-evaluation",
    "suspicious: a {kind}{noticed:at} drops values although {module} is in evaluation mode: it is in no module of "
    "{module}, as where forward makes a new one at each call or a list holds it, and no eval() reaches it",
    "make it once in __init__, as an attribute or in an nn.ModuleList; or F.dropout(..., training=self.training)")
# fmt: on

_LOOKS = 64
"""Forwards of a line whose modules and inputs are looked at."""
_WORDS = re.compile(
    r"valid|\bval_|_val\b|\bval\b|test|eval|accura|\bacc\b|correct|metric|score|criterion|loss|cross_entropy|argmax|predict"
)
_NAMES = re.compile(r"(?<![a-z])(val(?!u)|test|eval|predict)")
"""Words that tell code that evaluates a model, and functions that do, from code that only draws samples."""


@dataclass
class _Forwards:
    """The forwards without gradients on a line: an evaluation in training mode, unless the program means that.

    It does if a forward repeats the input of the one before, is a part of each step as pseudo-labels are, or has no
    module in training mode. A teacher that stays as it is may be a part of each step, and should not drop anything.
    """

    line: Line
    owner: FollowedOptimizer | None  # None of a model that was loaded, and that none trains
    modal: list[str] = field(default_factory=list)  # the classes in training mode
    looks: int = 0
    last: tuple[int, Any] = (-2, None)  # the steps before it, and its input's shape and sum
    is_intended: bool = False
    has_gradients: bool = False
    totals: set[float] | None = None  # sums of a parameter of what may be a teacher: one that no line changes


@dataclass
class _Early:
    """A module that an evaluation before the first step ran in evaluation mode, or that was put into it; its owner."""

    line: Line
    modules: list[weakref.ref[nn.Module]]  # itself, then those that compute otherwise in training
    modal: tuple[Name, ...]
    owner: FollowedOptimizer | None = None
    is_intended: bool = False
    was_set: bool = False
    was_frozen: bool = False  # and trained later
    put: Site | None = None  # the line that put it into evaluation mode


class EvaluationMode(Topic):
    """Watches the outermost calls of modules without gradients."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._lines: dict[Any, _Forwards] = {}
        self._early: dict[int, _Early] = {}
        self._loaded: dict[int, tuple[weakref.ref[nn.Module], bool]] = {}  # and whether it follows another model
        self._put_at: dict[int, Line] = {}  # where a module was last put into evaluation mode

    def begin(self, block: Undo) -> None:
        """Watch in which mode a module is put between an evaluation and the first step."""
        on_call(block, nn.Module, "train", self._put)
        on_call(block, nn.Module, "load_state_dict", self._loads)

    def _loads(self, call: ObservedCall, result: Any) -> None:
        state: Any = call.given(1, "state_dict")
        first: Any = next(iter(state.values()), None) if issubclass(type(state), dict) else None
        cuts = [cut for log in logs() for cut in log.detaches_of(first)] if is_tensor(first) else []
        sources = [reference() for cut in cuts for reference, _ in cut.inputs[:1]]
        follows = id(call.args[0]) in self._loaded or any(isinstance(one, nn.Parameter) for one in sources)
        self._loaded[id(call.args[0])] = weakref.ref(call.args[0]), follows

    def _put(self, call: ObservedCall, result: Any) -> None:
        line, trains, early = call.programs_line, call.given(1, "mode", True), self._early.get(id(call.args[0]))
        is_alone = call.frame.f_code is not call.called.__code__  # else it is inside of another
        if trains and is_alone:  # as to adapt the statistics of its norms
            self._loaded.pop(id(call.args[0]), None)
        if not trains:
            self._put_at[id(call.args[0])] = line
        beside = line.code is None or "backward" in line.code.co_names
        if self._watch.steps and early is not None and early.was_set:  # again, beside its steps
            early.is_intended = early.is_intended or early.line.place == line.place
        elif self._watch.steps:
            return
        elif early is not None:
            early.is_intended = early.is_intended or trains or (beside and not early.was_set)
        elif not trains and is_alone:
            early = self._note_early(call.args[0], line)
            early.was_set, drops = True, any("Norm" not in one.path for one in early.modal)
            early.is_intended = early.is_intended or (beside and not drops)

    def evaluated(self, call: ObservedCall) -> None:
        """Note a call without gradients of a module that an optimizer trains, or before the first step of any."""
        user, inside = find_user_frame(call.frame)
        if inside or user is not call.frame.f_back:  # by PyTorch: a checkpoint
            return
        if not self._watch.steps and evaluates(call.line):
            self._note_early(call.called, call.line)
        known = self._lines.get(call.line.place)
        if known is None:
            owners = self._owners(call.called)
            reference, follows = self._loaded.get(id(call.called), (None, True))
            is_loaded = reference is not None and reference() is call.called
            if not owners and not is_loaded:
                return
            is_fixed = not any(one.requires_grad for one in parameters_in(call.called)) if owners else not follows
            known = _Forwards(call.line, [*owners, None][0], totals=set() if is_fixed else None)
            self._lines[call.line.place] = known
        self._note(known, call)

    def graded(self, call: ObservedCall) -> bool:
        """Note a call with gradients, after the first step, in code that evaluates alone; return whether to go on."""
        known = self._lines.get(call.line.place)
        if known is None:
            owners = self._owners(call.called)
            if not owners or not _evaluates_alone(call.line):
                return False
            known = self._lines[call.line.place] = _Forwards(call.line, owners[0], has_gradients=True)
        self._note(known, call)
        return not known.is_intended

    def _note(self, known: _Forwards, call: ObservedCall) -> None:
        if known.is_intended or known.looks >= _LOOKS:
            return
        modal = {type(one).__name__ for one in modules_in(call.called) if is_training(one) and has_modes(one)}
        values = copy_values(call.tensors[0]) if modal and call.tensors else None
        steps = self._watch.steps if known.owner is None else known.owner.steps
        now = steps, None if values is None else (values.shape, float(values.double().sum()))
        repeats = now == known.last and values is not None
        if known.totals is not None and modal:
            known.totals.update(map(sum_of, parameters_in(call.called)[:1]))
        is_part = now[0] - known.last[0] == 1 and (known.totals is None or len(known.totals) > 1)
        known.is_intended = repeats or is_part or not modal
        known.modal, known.looks, known.last = known.modal or sorted(modal), known.looks + 1, now

    def _owners(self, module: nn.Module) -> list[FollowedOptimizer]:
        keys = set(map(id, parameters_in(module)))
        return [one for one in self._watch.optimizers() if one.steps and not keys.isdisjoint(one.keys)]

    def _note_early(self, module: nn.Module, line: Line) -> _Early:
        modes = [one for one in modules_in(module) if has_modes(one)]
        kinds = tuple(map(variable, sorted({type(one).__name__ for one in modes})))
        references = [*map(weakref.ref, [module, *modes])]
        self._early[id(module)] = early = _Early(line, references, kinds, is_intended=not modes)
        early.put = self._put_at.get(id(module), NO_LINE).site
        return early

    def applied(self, call: ObservedCall) -> None:
        """Report a dropout that eval() does not reach: one called as a function, or a module that is in no other."""
        running = [one() for log in logs() if log.of_this_thread() for one in log.modules]
        module, inner = (running[0], running[-1]) if running else (None, None)
        is_late = self._watch.steps and call.called is F.dropout and not torch.is_grad_enabled()
        if not is_late or module is None or inner is None or is_training(module):
            return
        user, inside = find_user_frame(call.frame)
        line = user_line(user)
        node, site = node_of(line), line.site
        given = [*node.args[2:], *node.keywords] if isinstance(node, ast.Call) else [None]
        says = any(getattr(one, "arg", "training") == "training" for one in given)
        is_apart = has_modes(inner) and is_training(inner) and all(inner is not one for one in modules_in(module))
        drops = is_apart if inside else not says and call.kwargs.get("training")
        if drops and site is not None and not is_library(site.file):
            cause, name = DROPS_UNREACHED if inside else DROPS_IN_EVALUATION, variable(type(module).__name__)
            self.report(cause, site, kind=type(inner).__name__, module=name)

    def before_step(self, followed: FollowedOptimizer) -> None:
        """Note whether modules are still in the mode in which an evaluation left them, and what put them into it."""
        lines = [line for one in followed.modes.modules if (line := self._put_at.get(id(one())))]
        followed.modes.put = lines[0].site if lines else None
        for early in [one for one in self._early.values() if not one.is_intended]:
            looked_at = early.modules if followed.steps == 1 else early.modules[:2]
            alive = [one for known in looked_at if (one := known()) is not None]
            early.is_intended = any(map(is_training, alive)) or len(alive) < len(looked_at)
            mine = parameters_in(alive[0]) if followed.steps == 1 and not early.is_intended else []
            keys, drops = frozenset(map(id, mine)), any("Norm" not in one.path for one in early.modal)
            is_all = followed.keys == keys or (early.was_frozen and drops) or not early.was_set  # else a part is frozen
            if mine and followed.keys >= keys and is_all:
                early.owner = followed
            early.was_frozen = early.was_frozen or (bool(mine) and not any(one.requires_grad for one in mine))

    def end(self, every: Sequence[FollowedOptimizer]) -> None:
        """Report the lines whose forwards looked like that in the whole run."""
        for early in [one for one in self._early.values() if not one.is_intended]:
            if early.owner is not None and early.owner.steps >= 2 * ENOUGH:
                facts = {"steps": early.owner.steps, "stepped": early.owner.site, "modal": early.modal}
                if early.was_set:
                    module, by = _eval_call(early.line)
                    self.report(NEVER_TRAINS, early.line.site, module=variable(module), by=by, **facts)
                else:
                    module = callee_text(early.line) or "model"
                    self.report(STAYS_IN_EVALUATION, early.line.site, module=variable(module), put=early.put, **facts)
        for known in self._lines.values():
            has_norms, owner = any("Norm" in one for one in known.modal), known.owner
            # one forward of a model that is not trained may be one of several, as of Monte Carlo dropout
            is_known = known.looks > 1 or has_norms if owner is None else owner.steps > 1
            teaches = known.totals is not None and len(known.totals) == 1 and known.looks > ENOUGH
            if not known.is_intended and is_known and (known.has_gradients or teaches or evaluates(known.line)):
                name = variable(callee_text(known.line) or "model")
                modal = tuple(map(variable, known.modal))
                which = "that no backward follows" if known.has_gradients else "without gradients"
                after = "load_state_dict()" if known.owner is None else "training steps"
                when = f"before the evaluation and {name.path}.train() after it" if known.owner else "before it is used"
                named = {"modal": modal, "module": name, "which": which, "after": after, "when": when}
                self.report(TRAINS_IN_VALIDATION, known.line.site, **named)


def _eval_call(line: Line) -> tuple[str, str]:
    """Return the variable of the module that a line puts into evaluation mode, and the function that does so."""
    module, _, by = callee_text(line).rpartition(".")
    if by not in ("eval", "train") or "(" in module:  # as in ``model = Net.from_pretrained(path)``
        module = (line.site and line.site.target) or "model"
    return module, by or "eval"


def _evaluates_alone(line: Line) -> bool:
    """Return whether a call is in a loop over data for an evaluation, or of a function for it, without a backward."""
    node = _programs_node(line)
    loop, function = enclosing(node, ast.For, ast.FunctionDef), enclosing(node, ast.FunctionDef)
    if not isinstance(loop, ast.For) or not _NAMES.search(f"{ast.unparse(loop.iter)} {getattr(function, 'name', '')}"):
        return False
    return not re.search(r"backward|grad\(|step\(|append\((?!.*item\()", ast.unparse(loop))


def evaluates(line: Line) -> bool:
    """Return whether the code around a call speaks of an evaluation: the block without gradients, or the function."""
    block = enclosing(_programs_node(line), ast.With, ast.FunctionDef)
    named = line.code is not None and _NAMES.search(line.code.co_name)
    return block is not None and bool(named or _WORDS.search(ast.unparse(block)))


def _programs_node(line: Line) -> Any:
    """Return the expression on a line of the program; None for one of a library."""
    return None if line.code is None or is_library(line.code.co_filename) else node_of(line)
