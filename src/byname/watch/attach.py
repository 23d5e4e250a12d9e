"""Attach: call a function with the values at places of a model; everything that observes a model is built on it.

`byname.model` resolves ``where`` to `Spot`s, one for each place. Each kind of place is observed in its own way: outputs
of modules by hooks, operations by a function mode, variables by rewritten source. Each value then passes
`ReportedPlace.report`, which calls the callback. A place is a name: what it names now is observed (`Following`).
"""

from __future__ import annotations

import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import chain, takewhile
from typing import Any, TypeAlias

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from byname.errors import BadArgumentError, BynameError, NoMatchError
from byname.model.module_tree import REGISTRY, children_of, modules_by_path, notes_on_fast_paths, unwrap_module
from byname.model.selectors import Selector
from byname.model.spot import Resolution, Spot, deduplicate
from byname.model.where import resolve_where, unwrapped
from byname.place import NameSegment, Place, parse
from byname.reading.interrupts import defer_signals
from byname.tracing.eager import EagerExecution, notes_on_compiled
from byname.undo import Undo, weak_callback
from byname.watch.attachment import Attachment, Before, Callback
from byname.watch.delivery import ReportedPlace, hook_inputs, hook_outputs, reported_place
from byname.watch.explicit_attention import checked_attention
from byname.watch.forwards import Iterations
from byname.watch.handle import HOOK_LOCK, Handle, HookSet, remove_all
from byname.watch.hooks import Hooks
from byname.watch.late_binding import Binding
from byname.watch.parameters import States
from byname.watch.requested import NOT_REACHED
from byname.watch.variables.assigned import VariableHooks


def attach(
    model: nn.Module,
    where: Any,
    callback: Callback,
    *,
    example: Any = None,
    enabled: bool = True,
    attention: str | None = None,
    before: Before | None = None,
    begun: Callable[[int], object] | None = None,
    stamp: Callable[[int], object] | None = None,
    reads: bool = False,
    unmatched: Callable[[NoMatchError], None] | None = None,
    ended: Callable[[Collection[str], str], None] | None = None,
) -> Handle:
    """Call a function with every value at places of a model; the function may return a replacement.

        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> handle = attach(model, "1", lambda event: event.value + 1)
        >>> bool((model(torch.ones(4, 2)) >= 1).all())
        True
        >>> handle.remove()

    Args:
        model: any module. A wrapper such as ``DistributedDataParallel`` is unwrapped.
        where: a path, a selector, a class of modules, a module of the model, or a sequence of these.
        callback: a function that is called with an `Event`. Unless it returns None, its result replaces the value.
            Calls that it makes itself are not reported.
        example: arguments to run the model with once, to find its operations. Selectors that ask for the last match,
            or for the flow of data, need it.
        enabled: whether to install the attachment at once.
        attention: ``"explicit"`` runs calls of ``scaled_dot_product_attention`` (in `nn.MultiheadAttention`, of
            ``multi_head_attention_forward``) step by step if their scores or their pattern are requested:
            ``<module>.scaled_dot_product_attention.pattern``, ``select.attention.pattern``. Results are the same up to
            rounding; dropout draws other numbers.
        before: a function ``before(path, module, inputs, kwargs)`` that is called when a matched call begins. Its
            result becomes ``event.before``.
        begun: a function that is called with the number of each forward of the whole model when it begins, before any
            value of this forward is reported.
        stamp: a function that is called with the number of the forward when a value is computed whose gradient is
            requested. Its result becomes ``event.before`` of the gradient.
        reads: whether the callback only reads. Parameters are then reported at the end of a forward, as buffers are;
            otherwise at its beginning, so that they can be replaced.
        unmatched: a function that is called with the error for each operation that matches nothing. Without it the
            first forward raises one of these errors, and everything is removed.
        ended: a function that is called with places that report nothing any more, since the model was changed, and with
            the reason. Without it there is a warning.

    Returns:
        The handle of the attachment, which removes it.

    Raises:
        NoMatchError: nothing matches; for operations without an example this is raised at the end of the first forward.
        BadPathError, NotAModuleError, BadArgumentError: an argument is invalid.
    """
    root = unwrapped(model)
    if not callable(callback):
        raise BadArgumentError(f"a callback is a function of an event; {type(callback).__name__} cannot be called")
    attachment = Attachment(root, callback, before, reads=reads)
    attachment.stamp, attachment.begun, attachment.unmatched, attachment.ended = stamp, begun, unmatched, ended
    resolution, selectors = resolve_where(where, root, reads=reads)
    attachment.add_request(resolution, selectors)
    explicit = checked_attention(attention, resolution, selectors)
    binding = Binding(root, attachment, resolution, selectors, explicit=explicit)
    if example is None:
        binding.prepare_first_forward()
    else:
        binding.bind(example)
    states = States(attachment)
    places = Following(root, attachment, states, resolution, selectors, binding)
    hook_sets: list[HookSet] = [EagerExecution(attachment.notes), attachment, states, places]
    of_places = (spot.module for spot in resolution.spots if spot.kind in ("module", "input"))
    hooked = {id(module) for module in (root, *binding.hooked, *of_places)}
    late_notes = partial(_model_notes, weakref.ref(root), weakref.ref(model), hooked, binding.needs_function_mode)
    kept_when_paused = (attachment, states)
    handle = Handle(
        hook_sets, attachment.paths, attachment.notes, attachment.requested, kept_when_paused, late_notes, places.forget
    )
    binding.missing = handle.remove_silently
    return handle.switched(enabled)


def _model_notes(
    root: weakref.ref[nn.Module], given: weakref.ref[nn.Module], hooked: set[int], mode: bool
) -> Iterator[str]:
    """Yield the notes on a whole model, and on its wrappers."""
    if (model := root()) is not None:
        yield from notes_on_fast_paths(model, hooked, mode=mode)
    if (model := given()) is not None:
        yield from notes_on_compiled(model)


class Following:
    """The hook sets of one attachment, made anew when an outermost forward begins and something else stands at a name.

    Each forward compares what stands at the names on the way from the model to the places, nothing else. PyTorch's
    hooks on the registration of modules, parameters and buffers, which are called for the whole process, report new
    ones that may match.
    """

    def __init__(
        self,
        root: nn.Module,
        attachment: Attachment,
        states: States,
        resolution: Resolution,
        selectors: Sequence[Selector],
        binding: Binding,
    ) -> None:
        self._root, self._attachment, self._states = root, attachment, states
        self._asked = [
            [spot.path for spot in spots] if isinstance(asked, nn.Module) else asked
            for asked, spots in resolution.requests
        ]
        self._selectors = selectors
        self._open = bool(selectors) or not all(spot.exact for spot in resolution.spots)
        self._of_states = any(
            isinstance(asked, Selector) or (isinstance(asked, str | Place) and not all(spot.exact for spot in spots))
            for asked, spots in resolution.requests  # only the selectors that may select parameters and buffers
        )
        self._stale = False
        self._doubted: set[str] = set()
        self._registrations = Undo()
        self._end: weakref.finalize[[], Following] | None = None
        self._iterations = Iterations(attachment, states, self.reset, self.end, follow=self.follow)
        self._observe(resolution, binding)

    def _observe(self, resolution: Resolution, binding: Binding) -> None:
        """Make the hook sets for the modules and values that the places name now."""
        attachment, self.spots, self.binding = self._attachment, resolution.spots, binding
        outputs = Hooks(attachment)
        wanted: defaultdict[str, list[ReportedPlace]] = defaultdict(list)
        for spot in resolution.spots:
            wanted["state" if spot.kind in REGISTRY else spot.kind].append(reported_place(attachment, spot))
        states, computed = wanted["state"], wanted["computed"]
        self._states.observe(states)
        self._iterations.begin_with(outputs)
        hook_inputs(outputs, wanted["input"])
        hook_outputs(outputs, wanted["module"])
        self._states.hook_computed(outputs, computed)
        self.variables = VariableHooks(attachment, wanted["variable"])
        last = Hooks(attachment) if binding.asked else outputs
        self._iterations.end_with(last)
        first = (self.variables,) if wanted["variable"] else ()
        self._hook_sets: list[HookSet] = [*first, outputs, *((binding, last) if binding.asked else ())]
        self._note_modules()

    def _note_modules(self) -> None:
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
        if self._open or self.binding.needs_function_mode:
            self._await_modules()
        for hook_set in self._hook_sets:
            hook_set.install()

    def _await_modules(self) -> None:
        # weak, so that the model can be freed
        on_module, on_state = weak_callback(self._on_module_registered), weak_callback(self._on_state_registered)
        if self._end is None:  # the compiler, which looks into whatever runs inside compiled code, cannot read one
            self._end = weakref.finalize(self, self._registrations)
            self._end.atexit = False
        self._registrations.register(register_module_module_registration_hook, on_module)
        if self._of_states:
            self._registrations.register(register_module_parameter_registration_hook, on_state)
            self._registrations.register(register_module_buffer_registration_hook, on_state)

    def remove(self) -> None:
        try:
            remove_all((*self._hook_sets, self._iterations))
        finally:
            self._registrations()

    def forget(self) -> None:
        """Let go of the hooks, which hold this, after the removal for good."""
        self._hook_sets = []
        vars(self).pop("_iterations", None)

    @cached_property
    def _paths(self) -> dict[int, str]:
        """The paths of the modules, by ``id``. Made when the first new module arrives, before it is registered."""
        return {id(module): path for path, module in modules_by_path(self._root).items()}

    def _on_module_registered(self, module: nn.Module, name: str, arriving: nn.Module | None) -> None:
        if arriving is not None and id(module) in self._paths and id(unwrap_module(arriving)[0]) not in self._paths:
            with HOOK_LOCK:  # another thread may be removing the hook sets
                if len(self._registrations):
                    self._stale = self._open
                    self.binding.exclude_new_modules(arriving)

    def _on_state_registered(self, module: nn.Module, name: str, state: torch.Tensor | None) -> None:
        """Look again for parameters and buffers that patterns and selectors match."""
        self._stale = self._stale or id(module) in self._paths

    def follow(self) -> bool:
        """Observe what the places name now, when a forward begins; return whether hooks were made anew."""
        if not self._changed():
            return False
        with defer_signals(), HOOK_LOCK:
            if not self._attachment.active:  # another thread has removed it meanwhile
                return False
            self._stale, resolution = False, self._resolution()
            anew = bool(self._selectors) or [*map(_key, resolution.spots)] != [*map(_key, self.spots)]
            if anew:
                self._note_ends(resolution)
                self._attachment.requested.renew([spots for _, spots in resolution.requests])
                remove_all(self._hook_sets)
                self._registrations()
                self._observe(resolution, self._bound(resolution))
                self._put_on()
            self._note_modules()
        return anew

    def _bound(self, resolution: Resolution) -> Binding:
        """Return a binding that finds its calls in this forward; the places of selectors that cannot do so end."""
        try:
            return self.binding.rebind(resolution, self._selectors)
        except BynameError as error:
            known = self._attachment.requested
            self._attachment.end(
                {path for path in known.reached if known.matches_any(path, self._selectors)}, str(error)
            )
            return self.binding.rebind(resolution, ())

    def _resolution(self) -> Resolution:
        """Return what the parts of ``where`` mean now: no place, if nothing matches one any more."""
        found = [(asked, self._resolve_request(asked)) for asked in self._asked]
        spots, _, _ = deduplicate(chain.from_iterable(one.spots for _, one in found), reads=self._attachment.reads)
        operations = {path: spots for _, one in found for path, spots in one.operations.items()}
        return Resolution(spots, [], operations, [(asked, one.spots) for asked, one in found])

    def _resolve_request(self, asked: Any) -> Resolution:
        try:
            return resolve_where(asked, self._root, reads=self._attachment.reads)[0]
        except BynameError:
            return Resolution([])

    def _note_ends(self, resolution: Resolution) -> None:
        """Report the places at which nothing of the kind stands any more, as far as it is known before the forward."""
        requested, before, now = self._attachment.requested, self.binding.modules, modules_by_path(self._root)
        standing = {spot.full for spot in resolution.spots if spot.kind != "operation"}
        gone = {spot.full for spot in self.spots} - {spot.full for spot in resolution.spots}
        called = {path: _owner(path, before) for path in requested.reached - standing} if before else {}
        ended = {path for path in requested.reached if path in gone or requested.matches_any(path, gone)}
        ended |= {path for path, owner in called.items() if owner not in now}
        self._doubted = {path for path, owner in called.items() if now.get(owner) is not before[owner]} - ended
        self._attachment.end(ended)

    def reset(self) -> None:
        """Discard what a forward may have left, when an outermost forward begins and when it has ended."""
        if self.binding.asked:
            self.binding.functions.reset()

    def end(self) -> None:
        """Note what a forward that has ended did not reach: in the first one, and at modules that are new."""
        self.variables.look()
        if not self._attachment.iteration:
            self._note_unreached()
        if self._doubted:
            modules, doubted, self._doubted = self.binding.modules, self._doubted, set()
            self._attachment.end(
                {path for path in doubted if self.binding.ran_without_match(path, modules[_owner(path, modules)])}
            )
        if self.binding.end():
            self._note_modules()

    def _note_unreached(self) -> None:
        """Note the places that the first forward did not reach; a later one may reach them."""
        attachment, spots = self._attachment, self.spots
        unreached = attachment.unreached(spot.path for spot in spots if spot.kind in ("module", "input", "variable"))
        lacked = attachment.requested.missing_items
        found = "" in lacked.values()  # one place that a pattern matched had the item; others need not
        for spot in spots:
            missing_items = lacked.get(spot.full)
            if missing_items and (spot.exact or not found):
                attachment.note(spot.full, missing_items)
            elif missing_items is None and spot.path in unreached:
                attachment.note(spot.full, NOT_REACHED)


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
    return None if child is None else unwrap_module(child)[0]


def _plain(path: str) -> str:
    """Return the names at the beginning of a path, up to its first item, without backslashes; none has a dot."""
    names = takewhile(lambda one: isinstance(one, NameSegment), parse(path).segments)
    return ".".join(one.plain for one in names)  # type: ignore[union-attr]
