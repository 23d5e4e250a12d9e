"""Attach: call a function with the values at places of a model; everything that observes a model is built on it.

`byname.model` resolves ``where`` to `Spot`s, one for each place. Each kind of place is observed in its own way: outputs
of modules by hooks, operations by a function mode, variables by rewritten source. Each value then passes one function,
made by `delivery`, which calls the callback.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from byname.errors import BadArgumentError, NoMatchError
from byname.model.methods import callable_instead
from byname.model.module_tree import notes_on_fast_paths
from byname.model.spot import Meaning, Spot
from byname.model.where import meaning_of, unwrapped
from byname.tracing.eager import EAGERLY, Uncompiled, notes_on_compiled
from byname.tracking.depth import Deeper
from byname.watch.arrivals import Arrivals
from byname.watch.attachment import Before, Callback, Running
from byname.watch.delivery import Deliver, delivery
from byname.watch.explicit_attention import checked_attention
from byname.watch.forwards import Iterations
from byname.watch.handle import Handle, Tap
from byname.watch.heard import not_come_to
from byname.watch.hooks import Hooks
from byname.watch.late_binding import Binding
from byname.watch.module_inputs import hook_inputs
from byname.watch.module_outputs import hook_outputs
from byname.watch.parameters import States
from byname.watch.variables.assigned import Assigned

__all__ = ["attach"]


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

    Returns:
        The handle of the attachment, which removes it.

    Raises:
        NoMatchError: nothing matches; for operations without an example this is raised at the end of the first forward.
        BadPathError, NotAModuleError, BadArgumentError: an argument is invalid.
    """
    root = unwrapped(model)
    if not callable(callback):
        raise BadArgumentError(f"a callback is called with an event; {type(callback).__name__} cannot be called")
    running = Running(root, callback, before, reads=reads)
    running.stamp, running.begun, running.unmatched = stamp, begun, unmatched
    running.heard.methods = callable_instead
    meaning, selectors = meaning_of(where, root, reads=reads)
    running.ask(meaning, selectors)
    explicit = checked_attention(attention, meaning, selectors)
    binding = _bound(Binding(root, running, meaning, selectors, explicit=explicit), example)
    return _handle(root, model, running, meaning, binding).switched(enabled)


def _handle(root: nn.Module, given: nn.Module, running: Running, meaning: Meaning, binding: Binding) -> Handle:
    """Return the handle of an attachment that is not installed yet."""
    wanted = [(spot, delivery(running, spot)) for spot in meaning.spots]
    of_states = _of_kind(wanted, "parameter", "buffer")
    running.needs_forward = binding.wanted or any(not spot.gradient for spot, _ in of_states)
    states = States(running, of_states)
    of_model = _following(root, running, states, binding, wanted)
    taps: list[Tap] = [Deeper(), Uncompiled(given, running.notes), running, states, *of_model]
    of_places = (spot.module for spot in meaning.spots if spot.kind in ("module", "input"))
    hooked = {id(module) for module in (root, *binding.hooked, *of_places)}
    noticed = _Noticed(root, given, hooked, mode=binding.listens_to_functions)
    handle = Handle(taps, running.paths, running.notes, staying=(running, states), noticed=noticed)
    handle.heard = running.heard
    binding.missing = handle.give_up
    return handle


def _of_kind(wanted: list[tuple[Spot, Deliver]], *kinds: str) -> list[tuple[Spot, Deliver]]:
    return [one for one in wanted if one[0].kind in kinds]


def _bound(binding: Binding, example: Any) -> Binding:
    """Return the binding; its calls are known from the example, or it will find them in the first forward."""
    if example is None:
        binding.choose_online()
        return binding
    with EAGERLY.held():
        binding.bind(example)
    return binding


def _following(
    root: nn.Module, running: Running, states: States, binding: Binding, wanted: list[tuple[Spot, Deliver]]
) -> list[Tap]:
    """Return the hook sets that act during the forwards of the model; their hooks run in this order."""
    spots = [spot for spot, _ in wanted]
    variables = Assigned(running, _of_kind(wanted, "variable"))

    def ended() -> None:
        variables.look()
        _ended(running, spots, binding)

    iterations = Iterations(running, states, binding.begin, ended, running.begun)
    first, outputs, last = (Hooks(root, running) for _ in range(3))
    iterations.begin_with(first)
    hook_inputs(outputs, running, _of_kind(wanted, "input"))
    hook_outputs(outputs, running, _of_kind(wanted, "module"))
    iterations.end_with(last)
    return [variables, first, outputs, binding, last, Arrivals(root, running, binding), iterations]


class _Noticed:
    """The notes on a whole model, made when it is called; it does not keep the model alive.

    Args:
        root: the model.
        given: the model as it was given, with the wrappers around it.
        hooked: the ``id``s of the modules with hooks.
        mode: whether a function mode is active during the forwards.
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
    """Handle the end of a forward that did not raise; after the first one, note the places that it did not reach."""
    if not running.iteration:
        unreached = running.unreached(spot.path for spot in spots if spot.kind in ("module", "input", "variable"))
        found = "" in running.heard.lacking.values()  # one place that a pattern matched had the item; others need not
        for spot in spots:
            if without := running.heard.without(spot):
                if spot.alone or not found:
                    running.notes.setdefault(without)
            elif spot.path in unreached and spot.full not in running.heard.lacking:
                running.notes.setdefault(not_come_to(spot))
    binding.end()
