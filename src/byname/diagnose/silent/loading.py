"""Loading: calls of ``load_state_dict`` that restore nothing, load nothing, or whose result is overwritten."""

from __future__ import annotations

import ast
import math
import re
import weakref
from bisect import bisect
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from os.path import commonprefix
from types import CodeType
from typing import Any

import torch
from torch import nn

from byname.diagnose.cause import variable
from byname.diagnose.context import FailureContext, callee_text, enclosing, node_of, value_of
from byname.diagnose.followed_optimizer import FollowedOptimizer
from byname.diagnose.nonfinite.reasons import sum_of
from byname.diagnose.silent.topic import ObservedCall, Topic, Watch, arg_name, on_call, topic_cause
from byname.naming.name import Name, at
from byname.reading.frames import NO_LINE, Line, caller, reported_frame, variables_of
from byname.reading.modules import modules_in, parameters_in, state_of
from byname.reading.objects import living, snapshot
from byname.reading.tensor import is_tensor, memory_of
from byname.source.code import copied_in, enclosing_statement
from byname.source.location import Site, assignments, is_library
from byname.source.tracebacks import walk_frames
from byname.table import counted
from byname.tracking.log import DetachPoint, changes_of, changes_so_far, logs
from byname.tracking.lookup import site_of_tensor
from byname.undo import Undo

# fmt: off
LOADS_ITSELF = topic_cause("loads-itself",
    "{state} restores nothing{noticed:at}: {call}{kept:at} gives references to the model's own tensors, not copies, "
    "and {steps} since changed them too", "keep copies: {remedy}")
KEEPS_REFERENCES = topic_cause("loads-itself",
    "{state} restores nothing{noticed:at}: {call}{kept:at} gives references to the model's own tensors, not copies. It "
    "ran {times} times with steps between, and all its results change with the model",
    "keep copies: {remedy}")
COPIES_ITSELF = topic_cause("loads-itself",
    "suspicious: {state} restores nothing{noticed:at}: it is {name} itself, no copy: {steps} so far changed it, too",
    "keep a copy, made by x.detach().clone(), and copy that")
SHARES = topic_cause("same-module",
    "suspicious: load_state_dict(){noticed:at} copies to {module} what another model has, and {names:3} "
    "{names:is a parameter|are parameters} of both, {names:which is|which are} trained: {names:it changes|they change} "
    "in {module} at every step, not when it is loaded",
    "give {module} parts of its own, as copy.deepcopy() of the whole other model does")
BEST_IS_MODEL = topic_cause("loads-itself",
    "{copy} has the memory of {module} since `{assigned.statement}`{assigned:at}, and is no copy: the steps "
    "since{noticed:at} changed it, too, so that it always has the latest values",
    "keep a copy: {copy.path} = {remedy}")
LOADS_NO_OTHER = topic_cause("loads-nothing",
    "load_state_dict(){noticed:at} changes nothing in {module}: {state} has its own tensors only, as its "
    "state_dict(){kept:at} gave them{same}",
    "load the state of another model, which copy.deepcopy() makes and an assignment does not, or of a checkpoint; if "
    "the program compares names first, no name was equal")
LOADS_NOTHING = topic_cause("loads-nothing",
    "load_state_dict(strict=False){noticed:at} loads {matched} of the {given} of {state}: their names, such as "
    "'{name}', are not those of {module}, such as '{wanted}'", "{remedy}")
LOADS_ANOTHER = topic_cause("loads-another-model",
    "load_state_dict(){noticed:at} gives its weights to a {kind} that is never called; {model}{called:at}, another one "
    "of the same shapes, is {use}, and had none of these weights: probably the program made it after the loading, or "
    "loaded a copy",
    "load the weights into the model that is trained, after the last line that makes it")
CHANGES_A_DICT = topic_cause("loads-nothing",
    "`{changed.statement}`{changed:at} changes no weight: each state_dict(){noticed:at} makes a new dictionary, and "
    "nothing loads this one", "load it: {module.path}.load_state_dict(...)")
INIT_AFTER_LOAD = topic_cause("overwritten-after-loading",
    "{names:3} {names:was|were} loaded from a checkpoint{loaded:at}, and overwritten by {operation}(){noticed:at} "
    "before the first step: the initialisation replaces what was loaded",
    "initialise before load_state_dict(), or only the layers that the checkpoint does not have")
REPLACED_AFTER_LOAD = topic_cause("overwritten-after-loading",
    "suspicious: {names:3} {names:is|are} new since a checkpoint was loaded{noticed:at}, with the shapes of what was "
    "loaded there and other values{made:at}: the module was replaced, and what was loaded is lost",
    "replace it before load_state_dict(); it is right if it should learn anew")
# fmt: on

_OVERWRITES = frozenset("normal_ uniform_ kaiming_uniform_ constant_ zero_ fill_ exponential_ bernoulli_ eye_".split())
_FEW, _MOST = 0.1, 16
"""The share of a model's tensors below which a load with ``strict=False`` is reported; the loads that are noted."""


@dataclass
class _Load:
    """A module that was loaded, until it is called, and a module of the same shapes that was called in its place."""

    kind: type
    shapes: list[torch.Size]
    parameters: list[weakref.ref[torch.Tensor]]
    totals: set[float]
    line: Line
    twin: Line | None = None
    keys: frozenset[int] = frozenset()
    model: Name | None = None  # of the twin

    def note_twin(self, module: nn.Module, line: Line) -> None:
        """Note a module that is like the loaded one, and has none of its weights."""
        mine = parameters_in(module) if self.twin is None and type(module) is self.kind else []
        is_another = bool(mine) and {*map(id, mine)}.isdisjoint(id(one()) for one in self.parameters)
        if is_another and [one.shape for one in mine] == self.shapes and self.totals.isdisjoint(map(sum_of, mine)):
            self.twin, self.keys = line, frozenset(map(id, mine))
            parts = re.split(r"(?=[.\[])", FailureContext().names(mine[:1])[0].path)  # of a parameter in it
            path = "".join(parts[: -1 - next(iter(dict(state_of(module)))).count(".")])
            self.model = variable(callee_text(line) or path or "model")


class Loading(Topic):
    """Watches what ``load_state_dict`` is given, and whether it stays."""

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._loads: dict[int, tuple[weakref.ref[nn.Module], Line, dict[int, int], list[tuple[Any, ...]]]] = {}
        self.uncalled: list[_Load] = []  # what was loaded, and not called since then
        self._others: dict[int, tuple[Any, Line, list[DetachPoint]]] = {}  # loads of other values, the cuts before
        self._at: Counter[Any] = Counter()  # loads of a model's own tensors, by line
        self._given_at: set[Any] = set()  # calls of `state_dict`, by line
        self._missed: dict[int, tuple[weakref.ref[nn.Module], dict[str, Any]]] = {}
        self._chosen: dict[str, list[tuple[Site, ast.expr, ast.expr]]] = {}  # by file, as `_chosen_as_best` gives them

    def begin(self, block: Undo) -> None:
        on_call(block, nn.Module, "load_state_dict", self._loaded)
        on_call(block, nn.Module, "state_dict", self._given)

    def _given(self, call: ObservedCall, result: Any) -> None:
        """Report a line that changes what ``state_dict()`` gives, where nothing else takes that."""
        if is_library(call.frame.f_code.co_filename) or call.line.place in self._given_at:
            return
        self._given_at.add(call.line.place)
        node, site = node_of(call.line), call.line.site
        if site is not None and isinstance(node, ast.Call) and (changed := _changed_alone(node)) is not None:
            other = replace(site, line=changed.lineno, statement=ast.unparse(changed))
            at_once = changed is enclosing_statement(node)
            module = arg_name(call.line, -1, "model")
            self.report(CHANGES_A_DICT, site, changed=site if at_once else other, module=module)

    def _loaded(self, call: ObservedCall, result: Any) -> None:
        module, state, line = call.args[0], call.given(1, "state_dict"), call.programs_line
        entries = dict(snapshot(state)) if issubclass(type(state), dict) else {}
        given = {key: one for key, one in entries.items() if is_tensor(one)}
        own = dict(state_of(module))
        matched = [key for key in given if key in own]
        known = {*matched, *getattr(result, "missing_keys", own)}
        by_hooks = [one for key, one in own.items() if key not in known and issubclass(type(one), nn.Parameter)]
        is_own = all(memory_of(given[key]) is memory_of(own[key]) for key in matched)
        if matched and is_own and not call.given(3, "assign"):
            self._loads_itself(module, [given[key] for key in matched], line)
        elif matched and any(memory_of(given[key]) is memory_of(own[key]) for key in matched) and self._watch.steps:
            self._shares(own, given, line)
        elif len(matched) > _FEW * len(own):
            self._missed.pop(id(module), None)
            cuts = [log.detaches[-1] for log in logs() if log.detaches]
            self._others[id(module)] = weakref.ref(module), line, cuts
            large = [(key, own[key]) for key in matched if own[key].dim() > 1]
            held = [(weakref.ref(one), sum_of(one), key, one.shape) for key, one in large]
            if _renamed(own, given):
                self._note_missed(module, own, given, line)
            every = parameters_in(module)
            if every and not self._watch.steps:  # a later load may end a run
                self._loads[id(module)] = weakref.ref(module), line, changes_so_far(), held
            if len(every) > 1 and len(self.uncalled) < _MOST:
                shapes, references = [one.shape for one in every], [weakref.ref(one) for one in every]
                totals = {total for _, total, *_ in held}
                self.uncalled.append(_Load(type(module), shapes, references, totals, line))
        elif entries and own and not by_hooks:
            self._note_missed(module, own, entries, line)

    def ran(self, call: ObservedCall) -> None:
        """Note a call of a module that was loaded, or of one of the same shapes."""
        mine = parameters_in(call.called) if self.uncalled and not (call.depth and self._watch.steps) else []
        keys = set(map(id, mine))
        loaded = [any(id(one()) in keys for one in load.parameters) for load in self.uncalled]
        self.uncalled = [load for load, is_used in zip(self.uncalled, loaded, strict=True) if not is_used]
        for load in self.uncalled if not any(loaded) and not self._watch.steps else ():
            load.note_twin(call.called, call.line)

    def evaluated(self, call: ObservedCall) -> None:
        """Note a call of a module that was loaded: what was loaded is used then, and may be overwritten after it."""
        self._loads.pop(id(call.called), None)
        self.ran(call)

    def applied(self, call: ObservedCall) -> None:
        """Report values that are copied to a parameter though they are its own."""
        if call.called is torch.Tensor.copy_ and not is_library(call.frame.f_code.co_filename):
            sources = [cut.inputs[0][0]() for log in logs() for cut in log.detaches_of(call.args[1])]
            if sources and isinstance(sources[0], nn.Parameter):
                self._restores_nothing([call.args[1]], call.line)
            elif call.args[0] is call.args[1]:
                self._copies_itself(call.args[1], call.line)

    def _copies_itself(self, one: torch.Tensor, line: Line) -> None:
        """Report a trained parameter that is copied to itself."""
        name, steps = FailureContext().names([one])[0], counted(self._watch.steps, "step")
        if name.path and id(one) in self.owned() and not self._at[line.place]:
            self._at[line.place] += 1
            self.report(COPIES_ITSELF, line.site, state=arg_name(line, 0), name=name, steps=steps)

    def _shares(self, own: Mapping[str, Any], given: Mapping[str, Any], line: Line) -> None:
        """Report a target that shares trained parameters with the model whose state it loads."""
        both = [one for key, one in own.items() if key in given and memory_of(given[key]) is memory_of(one)]
        shared = set(map(id, both))
        cuts = [cut for one in given.values() for log in logs() for cut in log.detaches_of(one)[:1]]
        mine, sources = set(map(id, own.values())), [cut.inputs[0][0]() for cut in cuts]
        is_anothers = any(isinstance(one, nn.Parameter) and id(one) not in mine for one in sources)
        owned = self.owned()
        trained = [one for one in both if id(one) in owned]
        is_target = owned.isdisjoint(id(one) for one in own.values() if id(one) not in shared)
        if is_anothers and is_target and len({cut.line.place for cut in cuts}) == 1 and trained:
            names = tuple(FailureContext().names(trained))
            self.report(SHARES, line.site, names=names, module=arg_name(line, -1, "the model"))

    def _loads_itself(self, module: nn.Module, given: Sequence[torch.Tensor], line: Line) -> None:
        self._at[line.place] += 1
        is_trained = not self.owned().isdisjoint(map(id, parameters_in(module)))
        kept = None if (cut := self._restores_nothing(given, line, module)) is None else cut.line.site
        names = {"module": arg_name(line, -1, "the model"), "state": arg_name(line, 0, "the state")}
        given_by = [ast.unparse(one) for one in getattr(node_of(line), "args", ())[:1]]
        is_anothers = kept == line.site and given_by != [f"{names['module'].path}.state_dict()"]
        if kept is not None and (is_anothers or not is_trained) and (self._watch.steps or kept != line.site):
            same = f"; {given_by[0]} is that of the same module" if is_anothers else ""
            self.report(LOADS_NO_OTHER, line.site, kept=kept, same=same, **names)

    def _restores_nothing(self, given: Sequence[torch.Tensor], line: Line, module: Any = None) -> DetachPoint | None:
        """Report references kept before some steps; return the call that made them if there was no step since."""
        cuts = [cut for one in given for log in logs() for cut in log.detaches_of(one)[:1]]
        steps = [step for log in logs() for step in log.steps if cuts and step.number > cuts[0].number]
        loaded = self._loaded_after(cuts[:1], module)
        kept = self._times_kept(cuts[0]) if cuts and module is not None and self._at[line.place] == 1 else 0
        if not steps and loaded is None and kept < 3:
            return cuts[0] if cuts else None
        call, remedy = "state_dict()", "copy.deepcopy(model.state_dict()), or save it by torch.save"
        if module is None:
            call = ".data" if cuts[0].name == "data" else f".{cuts[0].name}()"
            remedy = f"x{call}.clone()"
        since = counted(len(steps), "step") if loaded is None else f"load_state_dict(){at(loaded.site)}"
        facts = {"kept": cuts[0].line.site, "steps": since, "call": call, "remedy": remedy}
        cause = KEEPS_REFERENCES if not steps and loaded is None else LOADS_ITSELF
        self.report(cause, line.site, state=arg_name(line, 0, "the state"), times=kept, **facts)
        return None

    def _loaded_after(self, cuts: Sequence[DetachPoint], module: Any) -> Line | None:
        """Return the last load of other values into a module, if it comes after a detach point."""
        reference, line, last = self._others.get(id(module), (None, None, ()))
        if reference is None or reference() is not module:
            return None
        order = {id(one): number for log in logs() for number, one in enumerate(log.detaches)}
        is_after = any(order.get(id(one), math.inf) <= order.get(id(two), -1) for one in cuts for two in last)
        return line if is_after else None

    def _times_kept(self, last: DetachPoint) -> int:
        """Return how often a line made references to a parameter, with steps between."""
        source, found = last.inputs[0][0](), set()
        for log in logs():
            steps = [one.number for one in log.steps]
            same = [one for one in log.detaches if one.line.place == last.line.place and one.inputs[0][0]() is source]
            found |= {bisect(steps, one.number) for one in same}
        return len(found)

    def _note_missed(self, module: nn.Module, own: Mapping[str, Any], given: Mapping[str, Any], line: Line) -> None:
        matched, state = len(own.keys() & given.keys()), arg_name(line, 0, "state")
        keys = [*given, *own]
        prefixes = {key[: at + 1] for key in keys for at, sign in enumerate(key) if sign == "."}
        stripped = [(sum(key.removeprefix(one) in own for key in given), one, "removeprefix") for one in prefixes]
        added = [(sum(one + key in own for key in given), one, "") for one in prefixes]
        fits, prefix, method = max([*stripped, *added, (0, "", "")])
        renamed = _renamed(own, given)
        if matched >= fits > 0 and not renamed:
            return
        remedy = "compare the names of both; without strict=False it is an error"
        inner = [key for key, one in given.items() if issubclass(type(one), dict) and not own.keys().isdisjoint(one)]
        if inner:
            remedy = f"load {state.path}[{inner[0]!r}], whose names fit"
        if fits:
            key = f"k.removeprefix('{prefix}')" if method else f"'{prefix}' + k"
            remedy = f"load {{{key}: v for k, v in {state.path}.items()}}: with this prefix {fits} names fit"
        remedy = (renamed and f"load {{{renamed}: v for k, v in {state.path}.items()}}, whose names fit") or remedy
        name = next((key for key in given if key not in own), "")
        wanted = next((key for key in own if key not in given), "")
        names = {"name": name, "wanted": wanted, "remedy": remedy, "noticed": line.site}
        facts = {"matched": matched or "none", "state": state, **names}
        facts["given"] = counted(len(given), "entry", "entries")
        self._missed[id(module)] = weakref.ref(module), {"module": arg_name(line, -1, "the model"), **facts}

    def before_step(self, followed: FollowedOptimizer) -> None:
        """Report, before the first step of an optimizer, loads that did not reach its parameters."""
        for key, load in [*self._loads.items()] if followed.steps == 1 else ():
            module = load[0]()
            if module is not None and not followed.keys.isdisjoint(map(id, parameters_in(module))):
                del self._loads[key]
                self._look_for_overwriting(*load[1:])
                self._look_for_replacing(dict(state_of(module)), followed.keys, load[1].site, load[3])
        self.end([])
        if followed.steps == 1 < self._watch.steps and self.uncalled:  # a whole model may be that of another run
            whole = [one for one in living(nn.Module) if not followed.keys.isdisjoint(map(id, parameters_in(one)))]
            for part in [inner for one in whole for inner in modules_in(one) if inner is not one]:
                for one in self.uncalled:
                    one.note_twin(part, NO_LINE)
        if followed.is_sampled_step and followed.steps > 1:
            self._look_for_best(followed)

    def _look_for_best(self, followed: FollowedOptimizer) -> None:
        """Report a variable for the best model that is bound, where that is better, to the trained model itself."""
        frames = [*walk_frames(reported_frame(caller()))]
        for code in [one.f_code for one in frames if not is_library(one.f_code.co_filename)]:
            if code.co_filename not in self._chosen:
                self._chosen[code.co_filename] = [*_chosen_as_best(code)]
        for site, target, value in chain.from_iterable(self._chosen.values()):
            for variables in map(variables_of, frames):
                both = [_memories_of(value_of(one, variables)) for one in (target, value)]
                if both[0] and both[0] == both[1] <= {id(memory_of(one)) for one in followed.parameters()}:
                    facts = {"copy": variable(ast.unparse(target)), "module": variable(path := ast.unparse(value))}
                    is_module = issubclass(type(value_of(value, variables)), nn.Module)
                    remedy = f"copy.deepcopy({path})" if is_module else f"{path}.detach().clone()"
                    self.report(BEST_IS_MODEL, followed.site, assigned=site, remedy=remedy, **facts)

    def _look_for_replacing(self, own: Mapping[str, Any], keys: frozenset[int], site: Any, held: Sequence[Any]) -> None:
        """Report new parameters, of the same shapes, in the places of most of those that were loaded."""
        lost = [(own.get(key), total, shape) for one, total, key, shape in held if one() is not own.get(key)]
        new: list[Any] = [one for one, _, shape in lost if id(one) in keys and getattr(one, "shape", None) == shape]
        if not 1 < len(new) == len(lost) or any(sum_of(one) == lost[at][1] for at, one in enumerate(new)):
            return
        if 2 * len(new) > len(held) and 2 * sum(map(torch.numel, new)) > sum(shape.numel() for *_, shape in held):
            names, made = tuple(FailureContext().names(new)), site_of_tensor(new[0])
            self.report(REPLACED_AFTER_LOAD, site, names=names, made=made)

    def _look_for_overwriting(self, line: Line, changes: Mapping[int, int], held: Sequence[tuple[Any, ...]]) -> None:
        weights = [(one, total) for reference, total, *_ in held if (one := reference()) is not None]
        made = [changes_of(memory_of(one), changes) if sum_of(one) != total else [] for one, total in weights]
        found = [[change for change in one if change.operation in _OVERWRITES] for one in made]
        if found and all(found):
            names = tuple(FailureContext().names([one for one, _ in weights]))
            change = found[0][0]
            self.report(INIT_AFTER_LOAD, change.line.site, names=names, operation=change.operation, loaded=line.site)

    def end(self, every: Sequence[FollowedOptimizer]) -> None:
        for reference, facts in self._missed.values():
            if reference() is not None:
                self.report(LOADS_NOTHING, **facts)
        self._missed = {}
        for load in self.uncalled:
            used = "part of a model that is trained" if load.twin is NO_LINE else "called in training"
            use = "trained" if load.keys & self.owned() else used
            steps = [one.steps for one in every if use != "trained" or load.keys & one.keys]
            if load.twin is not None and any(steps):
                facts = {"use": use, "model": load.model, "called": load.twin.site}
                self.report(LOADS_ANOTHER, load.line.site, kind=load.kind.__name__, **facts)


def _changed_alone(call: Any) -> ast.stmt | None:
    """Return the statement that changes the dictionary that a call gives, if all else that uses it are lookups."""
    statement: Any = enclosing_statement(call)
    uses = [call]
    if isinstance(statement, ast.Assign) and statement.value is call and isinstance(statement.targets[0], ast.Name):
        scope = enclosing(statement, ast.Module, ast.FunctionDef, ast.AsyncFunctionDef)
        every = [one for one in ast.walk(scope) if getattr(one, "id", None) == statement.targets[0].id]
        uses = [one for one in every if one is not statement.targets[0]]
    changes = [enclosing_statement(one) for one in uses if _changes(one)]
    return changes[0] if changes and all(_changes(one) or _looks_up(one) for one in uses) else None


def _changes(one: Any) -> bool:
    """Return whether a statement assigns an entry of a dictionary, or is an ``update()`` of it."""
    used, statement = one.parent, enclosing_statement(one)
    if isinstance(statement, ast.Assign):
        return isinstance(used, ast.Subscript) and used in statement.targets and used.value is one
    return getattr(used, "attr", "") == "update" and isinstance(statement, ast.Expr) and statement.value is used.parent


def _looks_up(one: Any) -> bool:
    """Return whether a dictionary is only asked for its keys, or for facts of an entry, such as its shape."""
    used = one.parent
    is_fact = getattr(used.parent, "attr", "") in ("shape", "size", "dtype", "numel")  # of an entry
    return is_fact or isinstance(used, ast.Compare) or getattr(used, "attr", "") == "keys"


def _renamed(own: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """Return an expression of the names that are missing, if all that is missing is given with another prefix."""
    missing, extra = ([key for key in one if key not in other] for one, other in ((own, given), (given, own)))
    if len(missing) < 2 or not extra:
        return ""
    tail = commonprefix([missing[0][::-1], extra[0][::-1]])[::-1].partition(".")[2]  # noqa: RUF071 - no paths of files
    new, old = (one[0].removesuffix(tail) for one in (missing, extra))
    fits = {new + key.removeprefix(old): getattr(given[key], "shape", None) for key in extra if key.startswith(old)}
    is_whole = all(fits.get(key) == own[key].shape for key in missing)
    return f"k.replace('{old}', '{new}', 1)" if is_whole and old != new else ""


def _chosen_as_best(code: CodeType) -> Iterator[tuple[Site, ast.expr, ast.expr]]:
    """Yield where the file of some code assigns a best one under a comparison: the line, the targets and the values."""
    for site, node in assignments(code):
        test = getattr(node.parent, "test", None)  # type: ignore[attr-defined]  # set by executing
        is_compared = test is not None and re.search("[<>=]|better|improve", ast.unparse(test))
        if is_compared and re.search("(?i)best|champion|winner", ast.unparse(node.targets[0])):
            targets, values = (getattr(one, "elts", [one]) for one in (node.targets[0], node.value))
            yield from ((site, target, copied_in(value)) for target, value in zip(targets, values, strict=False))


def _memories_of(one: Any) -> set[int]:
    """Return the memory of a tensor, or that of each parameter of a module."""
    tensors = parameters_in(one) if issubclass(type(one), nn.Module) else [one] if is_tensor(one) else []
    return {id(memory_of(tensor)) for tensor in tensors}
