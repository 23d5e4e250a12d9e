"""Following: the hook sets at the places of an attachment. A place is a name: what it names now is observed."""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Container, Iterable, Sequence
from functools import cached_property
from itertools import chain, takewhile
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from byname.errors import BynameError
from byname.model.module_tree import REGISTRY, children_of, inside_of, modules_by_path
from byname.model.selectors import Selector
from byname.model.spot import Meaning, Spot, each_once
from byname.model.where import meaning_of
from byname.place import NameSegment, Place, parse
from byname.reading.interrupts import defer_signals
from byname.undo import Undo, weakly
from byname.watch.attachment import Running
from byname.watch.delivery import ReportedPlace, hook_inputs, hook_outputs, reported_place
from byname.watch.forwards import Iterations
from byname.watch.handle import CHANGING, Tap, remove_all
from byname.watch.hooks import Hooks
from byname.watch.late_binding import Binding
from byname.watch.parameters import States
from byname.watch.requested import NOT_REACHED
from byname.watch.variables.assigned import Assigned


class Following:
    """The hook sets of one attachment, made anew when an outermost forward begins and something else stands at a name.

    Each forward compares what stands at the names on the way from the model to the places, nothing else. PyTorch's
    hooks on the registration of modules, parameters and buffers, which are called for the whole process, report new
    ones that may match.
    """

    def __init__(
        self,
        root: nn.Module,
        running: Running,
        states: States,
        meaning: Meaning,
        selectors: Sequence[Selector],
        binding: Binding,
    ) -> None:
        self._root, self._running, self._states = root, running, states
        self._asked = [
            [spot.path for spot in spots] if isinstance(asked, nn.Module) else asked for asked, spots in meaning.asked
        ]
        self._selectors = selectors
        self._open = bool(selectors) or not all(spot.alone for spot in meaning.spots)
        self._of_states = any(
            isinstance(asked, Selector) or (isinstance(asked, str | Place) and not all(spot.alone for spot in spots))
            for asked, spots in meaning.asked  # among them only the selectors that may mean parameters and buffers
        )
        self._stale = False
        self._doubted: set[str] = set()
        self._registrations = Undo()
        self._end: weakref.finalize[[], Following] | None = None
        self._iterations = Iterations(running, states, self.reset, self.end, follow=self.follow)
        self._observe(meaning, binding)

    def _observe(self, meaning: Meaning, binding: Binding) -> None:
        """Make the hook sets for the modules and values that the places name now."""
        running, self.spots, self.binding = self._running, meaning.spots, binding
        outputs = Hooks(running)
        wanted: defaultdict[str, list[ReportedPlace]] = defaultdict(list)
        for spot in meaning.spots:
            wanted["state" if spot.kind in REGISTRY else spot.kind].append(reported_place(running, spot))
        states, computed = wanted["state"], wanted["computed"]
        running.needs_forward = binding.wanted or any(not one.spot.gradient for one in states + computed)
        self._states.observe(states)
        self._iterations.begin_with(outputs)
        hook_inputs(outputs, running, wanted["input"])
        hook_outputs(outputs, running, wanted["module"])
        self._states.hook_computed(outputs, computed)
        self.variables = Assigned(running, wanted["variable"])
        last = Hooks(running) if binding.asked else outputs
        self._iterations.end_with(last)
        first = (self.variables,) if wanted["variable"] else ()
        self._taps: list[Tap] = [*first, outputs, *((binding, last) if binding.asked else ())]
        self._look()

    def _look(self) -> None:
        """Note the modules at the names on the way to the places."""
        self._steps = _steps_to(self._root, (*(spot.path for spot in self.spots), *self.binding.chosen))
        self._held = [
            (spot.module, at, spot.name) for spot in self.spots if spot.name and (at := _REGISTRY.get(spot.kind))
        ]
        holders = {id(module): module for module, _, _ in self._steps} if self._open else {}
        self._counts = [(module, len(module.__dict__["_modules"])) for module in holders.values()]
        self.__dict__.pop("_paths", None)

    def _changed(self) -> bool:
        for module, name, child in self._steps:
            if module.__dict__["_modules"].get(name) is not child:
                return True
        for module, registry, name in self._held:
            if getattr(module, registry).get(name) is None:
                return True
        for module, count in self._counts:
            if len(module.__dict__["_modules"]) != count:
                return True
        return self._stale

    def install(self) -> None:
        self._put_on()
        self._iterations.install()

    def _put_on(self) -> None:
        """Install what may change, and PyTorch's hook on the registration of modules if it may have something to do."""
        if self._open or self.binding.listens_to_functions:
            self._await_modules()
        for tap in self._taps:
            tap.install()

    def _await_modules(self) -> None:
        arrives, held = weakly(self._arrives), weakly(self._is_held)  # so that the model can be freed
        if self._end is None:  # the compiler, which looks into whatever runs inside compiled code, cannot read one
            self._end = weakref.finalize(self, self._registrations)
            self._end.atexit = False
        self._registrations.register(register_module_module_registration_hook, arrives)
        if self._of_states:
            self._registrations.register(register_module_parameter_registration_hook, held)
            self._registrations.register(register_module_buffer_registration_hook, held)

    def remove(self) -> None:
        try:
            remove_all((*self._taps, self._iterations))
        finally:
            self._registrations()

    def forget(self) -> None:
        """Let go of the hooks, which hold this, after the removal for good."""
        self._taps = []
        vars(self).pop("_iterations", None)

    @cached_property
    def _paths(self) -> dict[int, str]:
        """The paths of the modules, by ``id``. Made when the first new module arrives, before it is registered."""
        return {id(module): path for path, module in modules_by_path(self._root).items()}

    def _arrives(self, module: nn.Module, name: str, arriving: nn.Module | None) -> None:
        if arriving is not None and id(module) in self._paths and id(inside_of(arriving)[0]) not in self._paths:
            with CHANGING:  # another thread may be removing the hook sets
                if len(self._registrations):
                    self._stale = self._open
                    self.binding.leave_out(arriving)

    def _is_held(self, module: nn.Module, name: str, state: torch.Tensor | None) -> None:
        """Look again for parameters and buffers that patterns and selectors match."""
        self._stale = self._stale or id(module) in self._paths

    def follow(self) -> bool:
        """Observe what the places name now, when a forward begins; return whether hooks were made anew."""
        if not self._changed():
            return False
        with defer_signals(), CHANGING:
            if not self._running.listening:  # another thread has removed it meanwhile
                return False
            self._stale, meaning = False, self._meaning()
            anew = bool(self._selectors) or [*map(_key, meaning.spots)] != [*map(_key, self.spots)]
            if anew:
                self._note_ends(meaning)
                self._running.requested.renew([spots for _, spots in meaning.asked])
                remove_all(self._taps)
                self._registrations()
                self._observe(meaning, self._bound(meaning))
                self._put_on()
            self._look()
        return anew

    def _bound(self, meaning: Meaning) -> Binding:
        """Return a binding that finds its calls in this forward; the places of selectors that cannot do so end."""
        try:
            return self.binding.again(meaning, self._selectors)
        except BynameError as error:
            known = self._running.requested
            self._running.end({path for path in known.reached if known.means(path, self._selectors)}, str(error))
            return self.binding.again(meaning, ())

    def _meaning(self) -> Meaning:
        """Return what the parts of ``where`` mean now: no place, if nothing matches one any more."""
        found = [(asked, self._meaning_of(asked)) for asked in self._asked]
        spots, _, _ = each_once(chain.from_iterable(one.spots for _, one in found), reads=self._running.reads)
        operations = {path: spots for _, one in found for path, spots in one.operations.items()}
        return Meaning(spots, [], operations, [(asked, one.spots) for asked, one in found])

    def _meaning_of(self, asked: Any) -> Meaning:
        try:
            return meaning_of(asked, self._root, reads=self._running.reads)[0]
        except BynameError:
            return Meaning([])

    def _note_ends(self, meaning: Meaning) -> None:
        """Report the places at which nothing of the kind stands any more, as far as it is known before the forward."""
        requested, before, now = self._running.requested, self.binding.modules, modules_by_path(self._root)
        standing = {spot.full for spot in meaning.spots if spot.kind != "operation"}
        gone = {spot.full for spot in self.spots} - {spot.full for spot in meaning.spots}
        called = {path: _owner(path, before) for path in requested.reached - standing} if before else {}
        ended = {path for path in requested.reached if path in gone or requested.means(path, gone)}
        ended |= {path for path, owner in called.items() if owner not in now}
        self._doubted = {path for path, owner in called.items() if now.get(owner) is not before[owner]} - ended
        self._running.end(ended)

    def reset(self) -> None:
        """Discard what a forward may have left, when an outermost forward begins and when it has ended."""
        if self.binding.asked:
            self.binding.functions.reset()

    def end(self) -> None:
        """Note what a forward that has ended did not reach: in the first one, and at modules that are new."""
        self.variables.look()
        if not self._running.iteration:
            self._note_unreached()
        if self._doubted:
            modules, doubted, self._doubted = self.binding.modules, self._doubted, set()
            self._running.end({path for path in doubted if self.binding.unmet(path, modules[_owner(path, modules)])})
        if self.binding.end():
            self._look()

    def _note_unreached(self) -> None:
        """Note the places that the first forward did not reach; a later one may reach them."""
        running, spots = self._running, self.spots
        unreached = running.unreached(spot.path for spot in spots if spot.kind in ("module", "input", "variable"))
        lacked = running.requested.lacking
        found = "" in lacked.values()  # one place that a pattern matched had the item; others need not
        for spot in spots:
            lacking = lacked.get(spot.full)
            if lacking and (spot.alone or not found):
                running.note(spot.full, lacking)
            elif lacking is None and spot.path in unreached:
                running.note(spot.full, NOT_REACHED)


_REGISTRY = {**REGISTRY, "computed": "__dict__"}
"""Where a module holds what goes by a name."""


def _key(spot: Spot) -> tuple[object, ...]:
    return spot.kind, spot.full, id(spot.module), spot.name


def _owner(path: str, modules: Container[str]) -> str:
    """Return the path of the module at or around a place."""
    while path and path not in modules:
        path = path.rpartition(".")[0]
    return path


_Step: TypeAlias = tuple[nn.Module, str, Any]


def _steps_to(root: nn.Module, paths: Iterable[str]) -> list[_Step]:
    """Return the steps on the ways to places, each once: a module, a name, and the module that stands at it."""
    steps: list[_Step] = []
    known: dict[str, nn.Module | None] = {"": root}
    for path in paths:
        if path not in known:
            _reach(_plain(path) if "[" in path or "\\" in path else path, known, steps)
    return steps


def _reach(path: str, known: dict[str, nn.Module | None], steps: list[_Step]) -> nn.Module | None:
    """Return the module at a path, after noting the steps to it that are not known yet."""
    if path not in known:
        around, _, name = path.rpartition(".")
        holder = known[around] if around in known else _reach(around, known, steps)
        known[path] = None if holder is None else _step(holder, name, steps)
    return known[path]


def _step(module: nn.Module, name: str, steps: list[_Step]) -> nn.Module | None:
    """Note the step from a module to the module at a name in it, and return that module."""
    modules = children_of(module)
    if name not in modules and "parametrizations" in modules:
        around = _step(module, "parametrizations", steps)
        return None if around is None else _step(around, name, steps)
    child = modules.get(name)
    steps.append((module, name, child))
    return None if child is None else inside_of(child)[0]


def _plain(path: str) -> str:
    """Return the names at the beginning of a path, up to its first item, without backslashes; none has a dot."""
    names = takewhile(lambda one: isinstance(one, NameSegment), parse(path).segments)
    return ".".join(one.plain for one in names)  # type: ignore[union-attr]
