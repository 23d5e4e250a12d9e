"""How does a callback get to the values of a model? The one way: everything that watches a model stands on `attach`.

A ``where`` becomes `Spot`s (`byname.watch.places`), each kind of spot has its tap (`byname.watch.taps`): hooks for
outputs, a function mode for operations, rewritten source for variables; and each value goes through a `delivery` to the
callback.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from torch import nn

from byname.errors import BadArgumentError, NoMatchError, NotAModuleError
from byname.place import Place, parse
from byname.reading.objects import parents_of
from byname.tracking.depth import Deeper
from byname.watch.compiling import EAGERLY, Uncompiled, notes_on_compiled
from byname.watch.fastpath import notes_on_fast_paths
from byname.watch.handle import Handle, Tap
from byname.watch.heard import in_words, not_come_to
from byname.watch.iterations import Iterations
from byname.watch.places.once import each_once
from byname.watch.places.reachable import callable_instead
from byname.watch.places.resolve import never_called, resolve
from byname.watch.places.spot import Meaning, Spot
from byname.watch.running import Before, Callback, Running
from byname.watch.selecting.selectors import Selector
from byname.watch.taps.arrivals import Arrivals
from byname.watch.taps.assigned import Assigned
from byname.watch.taps.binding import Binding
from byname.watch.taps.delivery import delivery
from byname.watch.taps.hooks import Hooks
from byname.watch.taps.modules import hook_outputs
from byname.watch.taps.states import States
from byname.watch.wrappers import inside_of, is_called, is_script, modules_by_path, unseen_in_script

__all__ = ["attach", "meaning_of", "parts_of", "unwrapped"]


def attach(
    model: nn.Module,
    where: Any,
    callback: Callback,
    *,
    example: Any = None,
    enabled: bool = True,
    before: Before | None = None,
    begun: Callable[[int], object] | None = None,
    stamp: Callable[[int], object] | None = None,
    reads: bool = False,
    unmatched: Callable[[NoMatchError], None] | None = None,
) -> Handle:
    """Has a callback told of every value that passes a place of a model, and lets it put another there.

        >>> import torch
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> handle = attach(model, "1", lambda event: event.value + 1)
        >>> bool((model(torch.ones(4, 2)) >= 1).all())
        True
        >>> handle.remove()

    Args:
        model: any module; wrappers such as ``DistributedDataParallel`` are seen through.
        where: a path, a selector, a class of modules, a module of the model, or a sequence of these.
        callback: is called with an `Event`; what it returns, unless None, takes the value's place. What it calls itself
            is not told of.
        example: arguments to run the model with once, to find out which operations there are; where a selector asks for
            the last match or for the flow of data it is needed.
        enabled: whether it is put in place at once.
        before: ``before(path, module, inputs, kwargs)`` is called when a matched call begins; ``event.before`` is what
            it returned.
        begun: is called when a forward of the whole model begins, with its number, before anything of it is told.
        stamp: is called with the number of the forward when a value passes whose gradient is wanted; ``event.before``
            of the gradient is what it returned.
        reads: whether the callback only looks. Parameters are then told at the end of a forward, as buffers are, where
            otherwise they are told at its beginning, so that another can stand in their place.
        unmatched: is given the errors of operations that match nothing, of which the first forward raises one otherwise
            and everything is taken off.

    Raises:
        NoMatchError: if nothing matches; for operations without an example at the end of the first forward.
        BadPathError, NotAModuleError, BadArgumentError: if an argument is none.
    """
    root = unwrapped(model)
    if not callable(callback):
        raise BadArgumentError(f"a callback is called with an event; {type(callback).__name__} cannot be called")
    running = Running(root, callback, before, reads=reads)
    running.stamp = stamp
    meaning, selectors = meaning_of(where, root, reads=reads)
    running.heard.methods = callable_instead
    for asked, spots in meaning.asked:
        running.heard.ask(in_words(asked), spots)
    for selector in selectors:
        running.heard.ask(in_words(selector), (), selector)
    running.notes.update(dict.fromkeys(meaning.notes))
    running.paths.update((spot.full, None) for spot in meaning.spots if not spot.items and spot.kind != "operation")
    uncompiled = Uncompiled(model, running.notes)
    handle = _handle(root, model, running, uncompiled, meaning, selectors, example, begun, reads, unmatched)
    return handle.switched(enabled)


def _handle(
    root: nn.Module,
    model: nn.Module,
    running: Running,
    uncompiled: Uncompiled,
    meaning: Meaning,
    selectors: list[Selector],
    example: Any,
    begun: Callable[[int], object] | None,
    reads: bool,
    unmatched: Callable[[NoMatchError], None] | None,
) -> Handle:
    wanted = [(spot, delivery(running, spot)) for spot in meaning.spots]
    of_kind = {
        kind: [one for one in wanted if one[0].kind in kinds]
        for kind, kinds in (("module", ("module",)), ("state", ("parameter", "buffer")), ("variable", ("variable",)))
    }
    binding = Binding(root, running, meaning, selectors, unmatched)
    if example is not None:
        with EAGERLY.held():
            binding.bind(example)
    else:
        binding.choose_online()
    running.needs_forward = binding.wanted or any(not spot.gradient for spot, _ in of_kind["state"])
    states = States(running, of_kind["state"], reads=reads)
    variables = Assigned(running, of_kind["variable"])

    def ended() -> None:
        variables.look()
        _ended(running, meaning.spots, binding)

    iterations = Iterations(running, states, binding.begin, ended, begun)
    first, outputs, last = (Hooks(root, running) for _ in range(3))
    iterations.begin_with(first)
    hook_outputs(outputs, running, of_kind["module"])
    iterations.end_with(last)
    arrivals = Arrivals(root, running, binding)
    taps: list[Tap] = [
        Deeper(),
        uncompiled,
        running,
        states,
        variables,
        first,
        outputs,
        binding,
        last,
        arrivals,
        iterations,
    ]
    of_places = (spot.module for spot in meaning.spots if spot.kind == "module")
    hooked = {id(module) for module in (root, *binding.hooked, *of_places)}
    noticed = _Noticed(root, model, hooked, mode=binding.listens_to_functions)
    handle = Handle(taps, running.paths, running.notes, staying=(running, states), noticed=noticed)
    handle.heard = running.heard
    binding.missing = handle.give_up
    return handle


class _Noticed:
    """What there is to note of a whole model; it does not keep the model alive.

    Args:
        root: the model.
        given: the model as it was given, with the wrappers around it.
        hooked: the modules with hooks, by ``id``.
        mode: whether a function mode is on.
    """

    def __init__(self, root: nn.Module, given: nn.Module, hooked: set[int], *, mode: bool) -> None:
        self._root, self._given = weakref.ref(root), weakref.ref(given)
        self._hooked = hooked
        self._mode = mode

    def __call__(self) -> Iterator[str]:
        root, given = self._root(), self._given()
        if root is not None:
            yield from notes_on_fast_paths(root, self._hooked, mode=self._mode)
        if given is not None:
            yield from notes_on_compiled(given)


def _ended(running: Running, spots: list[Spot], binding: Binding) -> None:
    """The first forward has ended well: says what it has not come to, and has the binding draw its conclusions."""
    if not running.iteration:
        unreached = running.unreached(spot.path for spot in spots if spot.kind in ("module", "variable"))
        found = "" in running.heard.lacking.values()  # by a pattern, where others need not have it
        for spot in spots:
            if without := running.heard.without(spot):
                if spot.alone or not found:
                    running.notes.setdefault(without)
            elif spot.path in unreached and spot.full not in running.heard.lacking:
                running.notes.setdefault(not_come_to(spot))
    binding.end()


def unwrapped(model: Any) -> nn.Module:
    """The module inside of wrappers for several processes or devices, and of compiled ones."""
    if not isinstance(model, nn.Module):
        raise NotAModuleError(f"a model is an nn.Module; this is {type(model).__name__}")
    inner, _ = inside_of(model)
    if is_script(inner):
        raise BadArgumentError(
            "TorchScript runs this model, and knows no hooks: attach to the module that was scripted or traced"
        )
    return inner


def meaning_of(where: Any, model: nn.Module, *, reads: bool = False) -> tuple[Meaning, list[Selector]]:
    """The places that ``where`` means, and the selectors in it, which are told only by what the model calls.

    Args:
        where: as in `attach`.
        model: the module that paths start from.
        reads: as in `attach`.
    """
    meaning, selectors = Meaning([]), []
    for one in parts_of(where):
        if isinstance(one, Selector):
            selectors.append(one)
            continue
        found = _meaning(one, model)
        found.spots = without_scripts(found.spots)
        meaning.asked.append((one, found.spots))
        meaning.spots += found.spots
        meaning.notes += found.notes
        operations = [spot for spot in found.spots if spot.kind == "operation"]
        if operations:
            meaning.operations[str(one)] = operations
    meaning.spots, firsts, notes = each_once(meaning.spots, reads=reads)
    rest = iter(firsts)
    meaning.asked = [(asked, list(islice(rest, len(spots)))) for asked, spots in meaning.asked]
    meaning.notes += notes
    return meaning, [*dict.fromkeys(selectors)]


def parts_of(where: Any) -> tuple[Any, ...]:
    """The parts of a ``where``: paths, selectors, classes of modules, and modules.

    Raises:
        BadArgumentError: if it is empty, or has something else in it.
    """
    if isinstance(where, str | Place | Selector | nn.Module | type):
        where = (where,)
    several = isinstance(where, Sequence | set | frozenset)
    wrong = [repr(one)[:80] for one in where if not _is_part(one)] if several else [type(where).__name__]
    if wrong or not where:
        hint = "; byname.record alone takes a mapping, from places to their options" * isinstance(where, Mapping)
        hint += "; `list` makes a list of it" * isinstance(where, Iterator)
        raise BadArgumentError(
            "where= is a path such as 'layers.*.attn', a selector such as byname.select.relu, a class of modules, a "
            f"module, or a sequence of these, not {wrong[0] if wrong else f'an empty {type(where).__name__}'}{hint}"
        )
    return tuple(where)


def _is_part(one: Any) -> bool:
    return isinstance(one, str | Place | Selector | nn.Module) or (
        isinstance(one, type) and nn.Module in parents_of(one)
    )


def _meaning(where: Any, model: nn.Module) -> Meaning:
    if isinstance(where, str):
        return resolve(parse(where), model)
    if isinstance(where, Place):
        return resolve(where, model)
    alone, modules = isinstance(where, nn.Module), modules_by_path(model)
    if alone:
        where = inside_of(where)[0]
    found = [(path, one) for path, one in modules.items() if (one is where if alone else isinstance(one, where))]
    if not found:
        named = f"this {type(where).__name__}" if alone else where.__name__
        classes = sorted({type(module).__name__ for module in modules.values()})
        raise NoMatchError(f"{named} is not in this {type(model).__name__}, which has {', '.join(classes)}")
    uncalled = never_called(*found[0])
    found = [(path, module) for path, module in found if is_called(module)]
    if not found:
        raise NoMatchError(uncalled)
    return Meaning([Spot("module", path or "forward", module, alone=alone) for path, module in found])


def without_scripts(spots: list[Spot]) -> list[Spot]:
    """The places that can be got at, where some were asked for by wildcards.

    Raises:
        BadArgumentError: for a place in a scripted module that was asked for by its own path.
    """
    lost = [spot for spot in spots if is_script(spot.module) and spot.kind not in ("parameter", "buffer")]
    for spot in lost:
        if spot.alone or len(lost) == len(spots):
            raise BadArgumentError(unseen_in_script(spot.full, spot.module))
    return [spot for spot in spots if spot not in lost] if lost else spots
