"""Following: the hook sets at the places of an attachment. A place is a name: what stands there now is observed."""

from __future__ import annotations

import weakref
from collections.abc import Container, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook

from byname.errors import BynameError
from byname.model.module_tree import inside_of, modules_by_path
from byname.model.selectors import Selector
from byname.model.spot import Meaning, Spot, each_once
from byname.model.where import meaning_of
from byname.place import NameSegment, parse
from byname.reading.interrupts import defer_signals
from byname.undo import Undo
from byname.watch.attachment import Running
from byname.watch.delivery import Delivered, by_module, delivery
from byname.watch.handle import CHANGING, Tap
from byname.watch.heard import not_come_to
from byname.watch.hooks import Hooks
from byname.watch.late_binding import Binding
from byname.watch.module_outputs import hook_outputs
from byname.watch.parameters import States
from byname.watch.variables.assigned import Assigned


class Following:
    """The hook sets of one attachment, made anew when an outermost forward begins and something else stands at a name.

    Each forward compares what stands at the names on the way from the model to the places, nothing else. PyTorch's
    hook on the registration of modules, which is called for the whole process, tells of new ones that may match.

    Args:
        root: the observed model.
        running: the attachment.
        states: its parameters and buffers.
        meaning: the places that were asked for.
        selectors: the selectors that were asked for.
        binding: the operations and selected calls.
        last: the hooks of the model that run after all others.
    """

    def __init__(
        self,
        root: nn.Module,
        running: Running,
        states: States,
        meaning: Meaning,
        selectors: Sequence[Selector],
        binding: Binding,
        last: Hooks,
    ) -> None:
        self._root, self._running, self._states, self._last = root, running, states, last
        self._asked = [
            [spot.path for spot in spots] if isinstance(asked, nn.Module) else asked for asked, spots in meaning.asked
        ]
        self._selectors = selectors
        self._open = bool(selectors) or not all(spot.alone for spot in meaning.spots)
        self._stale = False
        self._doubted: set[str] = set()
        self._stop_hearing: weakref.finalize[[], Following] | None = None
        self._observe(meaning, binding)

    def _observe(self, meaning: Meaning, binding: Binding) -> None:
        """Make the hook sets for what stands at the places now."""
        running, self.spots, self.binding = self._running, meaning.spots, binding
        outputs, wanted = Hooks(self._root, running), [(spot, delivery(running, spot)) for spot in meaning.spots]
        states, computed = _of_kind(wanted, "parameter", "buffer"), _of_kind(wanted, "computed")
        running.needs_forward = binding.wanted or any(not spot.gradient for spot, _ in states + computed)
        self._states.observe(states)
        hook_inputs(outputs, running, _of_kind(wanted, "input"))
        hook_outputs(outputs, running, _of_kind(wanted, "module"))
        self._states.hook_computed(outputs, computed)
        self.variables = Assigned(running, _of_kind(wanted, "variable"))
        self._taps: list[Tap] = [self.variables, outputs, binding, self._last]
        self._look()

    def _look(self) -> None:
        """Note what stands at the names on the way to the places."""
        ways = chain.from_iterable(_way(self._root, spot.path) for spot in self.spots)
        chosen = chain.from_iterable(_way(self._root, path) for path in self.binding.chosen)
        self._steps = [*{(id(one[0]), one[1]): one for one in chain(ways, chosen)}.values()]
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
        """Install the hook sets, and PyTorch's hook on the registration of modules."""
        held = weakref.WeakMethod(self._arrives)  # weak, so that the model can be freed

        def arrives(module: nn.Module, name: str, arriving: nn.Module | None) -> None:
            told = held()
            if told is not None:
                told(module, arriving)

        self._stop_hearing = weakref.finalize(self, register_module_module_registration_hook(arrives).remove)
        self._stop_hearing.atexit = False
        for tap in self._taps:
            tap.install()

    def remove(self) -> None:
        """Remove them."""
        undo = Undo()
        if self._stop_hearing is not None:
            undo.add(self._stop_hearing)
        for tap in self._taps:
            undo.add(tap.remove)
        undo()

    @cached_property
    def _paths(self) -> dict[int, str]:
        """The paths of the modules, by ``id``. Made when the first new module arrives, before it is registered."""
        return {id(module): path for path, module in modules_by_path(self._root).items()}

    def _arrives(self, module: nn.Module, arriving: nn.Module | None) -> None:
        if arriving is not None and id(module) in self._paths and id(inside_of(arriving)[0]) not in self._paths:
            self._stale = self._open
            self.binding.leave_out(arriving)

    def follow(self) -> bool:
        """Observe what stands at the places now, when a forward begins; return whether hooks were made anew."""
        if not self._changed():
            return False
        with defer_signals(), CHANGING:
            self._stale, meaning = False, self._meaning()
            anew = bool(self._selectors) or [*map(_key, meaning.spots)] != [*map(_key, self.spots)]
            if anew:
                self._note_ends(meaning)
                self._running.heard.renew([spots for _, spots in meaning.asked])
                self.remove()
                self._observe(meaning, self._bound(meaning))
                self.install()
            self._look()
        return anew

    def _bound(self, meaning: Meaning) -> Binding:
        """Return a binding that finds its calls in this forward; the places of selectors that cannot do so end."""
        try:
            return self.binding.again(meaning, self._selectors)
        except BynameError as error:
            heard = self._running.heard
            self._running.end({path for path in heard.reached if heard.means(path, self._selectors)}, str(error))
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
        heard, before, now = self._running.heard, self.binding.modules, modules_by_path(self._root)
        standing = {spot.full for spot in meaning.spots if spot.kind != "operation"}
        gone = {spot.full for spot in self.spots} - {spot.full for spot in meaning.spots}
        called = {path: _owner(path, before) for path in heard.reached - standing} if before else {}
        ended = {path for path in heard.reached if path in gone or heard.means(path, gone)}
        ended |= {path for path, owner in called.items() if owner not in now}
        self._doubted = {path for path, owner in called.items() if now.get(owner) is not before[owner]} - ended
        self._running.end(ended)

    def begin(self) -> None:
        """Discard what an earlier forward may have left, when an outermost forward begins."""
        self.binding.begin()

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
        found = "" in running.heard.lacking.values()  # one place that a pattern matched had the item; others need not
        for spot in spots:
            if without := running.heard.without(spot):
                if spot.alone or not found:
                    running.notes.setdefault(without)
            elif spot.path in unreached and spot.full not in running.heard.lacking:
                running.notes.setdefault(not_come_to(spot))


_REGISTRY = {"parameter": "_parameters", "buffer": "_buffers", "computed": "__dict__"}
"""Where a module holds what goes by a name."""


def _of_kind(wanted: list[Delivered], *kinds: str) -> list[Delivered]:
    return [one for one in wanted if one[0].kind in kinds]


def _key(spot: Spot) -> tuple[object, ...]:
    return spot.kind, spot.full, id(spot.module), spot.name


def _owner(path: str, modules: Container[str]) -> str:
    """Return the path of the module at or around a place."""
    while path and path not in modules:
        path = path.rpartition(".")[0]
    return path


def _way(module: nn.Module, path: str) -> Iterator[tuple[nn.Module, str, Any]]:
    """Yield a module, a name, and the module that stands at it, for each step on the way to a place."""
    for segment in parse(path).segments:
        modules = module.__dict__.get("_modules")  # None in a scripted module
        if modules is None or not isinstance(segment, NameSegment):
            return
        names = [segment.plain]
        if segment.plain not in modules and "parametrizations" in modules:
            names.insert(0, "parametrizations")
        for name in names:
            child = module.__dict__["_modules"].get(name)
            yield module, name, child
            if child is None:
                return
            module = inside_of(child)[0]


Given = dict[int | str, Any]
"""The arguments of a call, positional ones by their index, the others by their name."""


def hook_inputs(hooks: Hooks, running: Running, spots: Sequence[Delivered]) -> None:
    """Add hooks that report the arguments of modules.

    Args:
        hooks: the hooks of the attachment.
        running: the attachment.
        spots: the places of inputs, each with the function that reports its values.
    """
    for module, found in by_module(spots):
        hooks.before(module, partial(_deliver, running, found))


def _deliver(
    running: Running,
    found: list[Delivered],
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Report the arguments at each of the places; return what replaces them all, or None."""
    given: Given = dict(enumerate(args))
    given.update(kwargs)
    inputs = tuple(given.values())
    now = dict(given)
    for spot, deliver in found:
        if spot.items:
            now = deliver(now, inputs)
        elif now:
            first = next(iter(now))
            now[first] = deliver(now[first], inputs)
        elif running.hears():
            running.heard.lacking.setdefault(spot.full, f"{type(module).__name__} was called without an argument")
    if all(now[key] is one for key, one in given.items()):
        return None
    return tuple(now[at] for at in range(len(args))), {name: now[name] for name in kwargs}
