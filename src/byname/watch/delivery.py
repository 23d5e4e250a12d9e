"""Delivery: places that report a value as a whole, by items, or later its gradient, and the hooks of modules there."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from byname.model.items import describe_missing, items_in, replace_item, tensors_in
from byname.model.spot import Spot
from byname.place import Segments
from byname.reading.frames import runs
from byname.reading.quiet import DisableTorchFunction, dynamo_skip
from byname.reading.tensor import is_tensor
from byname.text import note_on
from byname.tracing.muted import MUTED_RUNS
from byname.watch.attachment import Attachment, Event, Number, graph_task
from byname.watch.hooks import AFTER, ALWAYS, BEFORE, Hook, Hooks
from byname.watch.replacement import cannot_overwrite, overwrite, returns_its_argument
from byname.watch.requested import MISSED, NO_GRADIENT
from byname.watch.value_gradients import on_gradient

_GONE = object()


class ReportedPlace(Hook):
    """A place whose values are reported; at the output of a module it is the hook itself.

    Attributes:
        reported: whether it has reported something, so that nothing is left to note about it.
        parts: if only parts of a value are reported, a function ``(self, value, inputs, before)`` that reports them,
            and returns what replaces the value.
        hook: if the gradient is reported, a function ``(self, value, inputs, number)`` that hooks a value.
    """

    __slots__ = ("hook", "kind", "module", "parts", "path", "reported", "spot")

    def __init__(self, attachment: Attachment, spot: Spot, path: str) -> None:
        self.attachment = attachment
        self.spot = spot
        self.path = path
        self.module = spot.module
        self.kind = spot.kind
        self.reported = False
        self.parts: Callable[[Any, Any, tuple[Any, ...], Any], Any] | None = None
        self.hook: Callable[[Any, Any, tuple[Any, ...], Number], object] | None = None

    @dynamo_skip
    def report(
        self,
        module: nn.Module | None,
        inputs: tuple[Any, ...],
        kwargs: dict[str, Any] | None,
        value: Any = _GONE,
        before: Any = None,
        number: Number | None = None,
    ) -> Any:
        """Call the callback with a value, muted for what it calls itself; return what replaces the value.

        Each value passes here, so the code is written for speed. If the gradient is requested, the value is counted and
        hooked, and the gradient passes here later, with the numbers of the value. As a hook it does nothing if it was
        removed meanwhile: PyTorch then passes no output. `module` is given only to a hook.
        """
        if value is _GONE:
            return None
        if kwargs:
            inputs = (*inputs, *kwargs.values())
        if self.parts is not None:
            return self.parts(self, value, inputs, before)
        attachment, path = self.attachment, self.path
        here = attachment.thread.state
        active_callbacks = here.active_callbacks
        if (active_callbacks or MUTED_RUNS) and not attachment.observes():
            return value
        if number is not None:
            call, iteration, recomputed = number
        else:
            recomputed = graph_task() != -1
            calls = attachment.again() if recomputed else here.calls
            call = calls.get(path, 0)
            calls[path] = call + 1
            iteration = here.iteration if here.iteration >= 0 else attachment.latest
            if self.hook is not None:
                self.hook(self, value, inputs, (call, iteration, recomputed))
                return value
        if not (self.reported and attachment.everything) and not self._asked_for(call):
            return value
        event = Event(path, self.module, value, inputs, call, recomputed, iteration, before, self.kind)
        try:
            active_callbacks.append(attachment)
            callback = attachment.callback  # reading the attribute before calling it is faster
            new = callback(event)
        except Exception as error:
            note_on(error, f"byname: at `{path}` (call {call} of iteration {iteration})")
            raise
        finally:
            # an interrupt may have come before it was appended
            if active_callbacks and active_callbacks[-1] is attachment:
                active_callbacks.pop()
        if new is None or new is value:
            return value
        attachment.replaced(event, new)
        if module is None or not returns_its_argument(module, inputs, value):
            return new
        return _overwritten(attachment, module, value, new)

    __call__ = report

    def _asked_for(self, call: int) -> bool:
        """Return whether a value is reported, and note that its place has reported something."""
        path, attachment = self.path, self.attachment
        if not attachment.active or (attachment.only and call not in attachment.only.get(path, (call,))):
            return False
        self.reported = True
        attachment.requested.reached.add(path)
        attachment.paths.setdefault(path)
        return True


def reported_place(attachment: Attachment, spot: Spot) -> ReportedPlace:
    return PlaceOfItems(attachment, spot) if spot.items else _place(attachment, spot, ())


def _place(attachment: Attachment, spot: Spot, items: Segments) -> ReportedPlace:
    return (
        _PlaceOfGradient(attachment, spot, items)
        if spot.gradient
        else ReportedPlace(attachment, spot, spot.of_item(items) if items else spot.path)
    )


class PlaceOfItems(ReportedPlace):
    """The place of a value whose items a path asks for; each item has a place of its own."""

    __slots__ = ("_places",)

    def __init__(self, attachment: Attachment, spot: Spot) -> None:
        super().__init__(attachment, spot, spot.full)
        self._places: dict[Segments, ReportedPlace] = {}
        self.parts = PlaceOfItems._report_items

    def _report_items(self, value: Any, inputs: tuple[Any, ...], before: Any) -> Any:
        for segments, one in self.found(value):
            new = self.report_item(segments, one, inputs, before)
            if new is not one:
                value = replace_item(value, segments, new)
        return value

    def found(self, value: Any) -> list[tuple[Segments, Any]]:
        """Return the items of a value that the path asks for; if there are none, note it."""
        spot, noted = self.spot, self.attachment.requested.missing_items
        found, known = items_in(value, spot.items), noted.get(self.path)
        if found and known != "":
            noted[self.path] = ""
        elif not found and known is None and self.attachment.observes():
            noted[self.path] = describe_missing(value, spot.items, spot.path)
        return items_in(value, spot.items, spot.without) if spot.without else found

    def report_item(self, segments: Segments, one: Any, inputs: tuple[Any, ...] = (), before: Any = None) -> Any:
        place = self._places.get(segments)
        if place is None:
            place = self._places[segments] = _place(self.attachment, self.spot, segments)
            self.attachment.requested.add_match(place.path, self.path)
        return place.report(None, inputs, None, one, before)


class _PlaceOfGradient(ReportedPlace):
    """The place of a value whose gradient is reported; if it holds several tensors, each has a place of its own."""

    __slots__ = ("_inner", "_items", "_older", "_waited", "_waiting")

    def __init__(self, attachment: Attachment, spot: Spot, items: Segments) -> None:
        super().__init__(attachment, spot, spot.of_item(items))
        self._items = items
        self._inner: dict[Segments, ReportedPlace] = {}
        self._waiting: dict[int, weakref.ref[torch.Tensor]] = {}
        self._older = spot.kind in ("variable", "input")
        self._waited = False
        self.hook = _PlaceOfGradient._hook

    def _hook(self, value: Any, inputs: tuple[Any, ...], number: Number) -> None:
        attachment, older = self.attachment, self._older  # than the call in which the value is observed
        if not is_tensor(value):
            return self._hook_tensors_in(value, inputs)
        for one in inputs:
            older = older or one is value
        if older and self._was_there_before(value, number):
            return None
        waiting = ValueGradient(self, number)
        hook = on_gradient(value, waiting, waiting.missed, partial(attachment.hooked.keep, (self.path, number[0])))
        if hook is None:
            attachment.requested.missing_gradients.setdefault(self.spot.full, NO_GRADIENT)
            return attachment.note(self.path, NO_GRADIENT) if torch.is_grad_enabled() else None
        if not self._waited:
            self._waited = True
            attachment.requested.missing_gradients[self.spot.full] = "no backward reached its value"
        return None

    def _hook_tensors_in(self, value: Any, inputs: tuple[Any, ...]) -> None:
        if not (found := tensors_in(value)):
            self.attachment.requested.missing_gradients.setdefault(self.spot.full, "no tensor passed there")
        for segments, tensor in found:
            place = self._inner.get(segments)
            if place is None:
                place = self._inner[segments] = _PlaceOfGradient(self.attachment, self.spot, (*self._items, *segments))
                self.attachment.requested.add_match(place.path, self.spot.full)
            place.report(None, inputs, None, tensor)

    def _was_there_before(self, tensor: torch.Tensor, number: Number) -> bool:
        """Return whether a checkpoint's second run reaches an argument, whose gradient the first run awaits already."""
        call, _, recomputed = number
        if not recomputed:
            self._waiting[call] = weakref.ref(tensor)
            return False
        earlier = [one() for one in self._waiting.values()]
        return any(one is not None and (one is tensor or same_memory(one, tensor)) for one in earlier)


class ValueGradient:
    """The hook of a tensor; it reports the gradient of one value."""

    __slots__ = ("number", "place", "stamp")

    def __init__(self, place: ReportedPlace, number: Number) -> None:
        self.place = place
        self.number = number
        stamp = place.attachment.stamp
        self.stamp = None if stamp is None else stamp(number[1])

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor | None:
        new = self.place.report(None, (), None, gradient, self.stamp, self.number)
        return None if new is gradient else new

    def missed(self) -> None:
        self.place.attachment.note(self.place.path, MISSED)


def same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors share address, shape and strides; False for other layouts than strided."""
    with DisableTorchFunction():
        if one.layout != torch.strided or other.layout != torch.strided:
            return False
        return one.data_ptr() == other.data_ptr() != 0 and one.shape == other.shape and one.stride() == other.stride()


# Hooks of modules


def _by_module(places: Iterable[ReportedPlace]) -> Iterator[tuple[nn.Module, list[ReportedPlace]]]:
    groups: dict[int, list[ReportedPlace]] = {}
    for place in places:
        groups.setdefault(id(place.module), []).append(place)
    return ((group[0].module, group) for group in groups.values())


def hook_inputs(hooks: Hooks, places: Sequence[ReportedPlace]) -> None:
    for module, found in _by_module(places):
        hooks.call(BEFORE, module, partial(_report_inputs, found))


def _report_inputs(
    found: list[ReportedPlace], module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Report the arguments at each of the places; return what replaces them all, or None."""
    given: dict[int | str, Any] = dict(enumerate(args))  # by their index, or their name
    given.update(kwargs)
    inputs = tuple(given.values())
    now = dict(given)
    for place in found:
        if place.spot.items:
            now = place.report(None, inputs, None, now)
        elif now:
            first = next(iter(now))
            now[first] = place.report(None, inputs, None, now[first])
        elif place.attachment.observes():
            place.attachment.requested.missing_items.setdefault(
                place.path, f"{type(module).__name__} was called without an argument"
            )
    if all(now[key] is one for key, one in given.items()):
        return None
    return tuple(now[at] for at in range(len(args))), {name: now[name] for name in kwargs}


Wanting = Callable[[], Sequence[ReportedPlace]]
"""A function that returns the places that match a call."""


def hook_outputs(hooks: Hooks, places: Sequence[ReportedPlace]) -> None:
    at_end = hooks.attachment.before is None
    if at_end and len({id(one.module) for one in places if one.parts is None}) == len(places):
        hooks.pending += [(one.module, one, AFTER) for one in places]
        return
    for module, found in _by_module(places):
        hook_calls(hooks, module, partial(list, found), at_end=at_end)


def hook_calls(hooks: Hooks, module: nn.Module, wanting: Wanting, *, at_end: bool) -> None:
    """Add hooks that report the output of a module at the places that match when the call begins, or when it ends."""
    hook = OutputHook(hooks.attachment, wanting)
    if not at_end:
        hooks.call(BEFORE, module, hook.begin)
    hooks.pending.append((module, hook, AFTER))
    if not at_end:
        hooks.call(ALWAYS, module, hook.end)


class OutputHook(Hook):
    """The hook that reports the output of a module at several places, or at those that match its call.

    In each thread it notes how each call that has begun reports its output: the places with the results of ``before``.
    """

    __slots__ = ("_wanting",)

    def __init__(self, attachment: Attachment, wanting: Wanting) -> None:
        self.attachment = attachment
        self._wanting = wanting

    @dynamo_skip
    def __call__(self, module: nn.Module, args: Any, kwargs: Any, output: Any = _GONE) -> Any:
        """Report the output; do nothing if the hook was removed meanwhile: PyTorch then passes no output."""
        if output is _GONE:
            return None
        attachment, new, inputs = self.attachment, output, (*args, *kwargs.values()) if kwargs else args
        for place, before in self._found():
            new = place.report(None, inputs, None, new, before)
        if new is output:
            return None
        return _overwritten(attachment, module, output, new) if returns_its_argument(module, args, output) else new

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the matching places when a call begins, and call ``before`` for each."""
        open_calls, run_before = self.attachment.thread.state.open.setdefault(self, []), self.attachment.run_before
        if open_calls and not runs(module, 2):  # an interrupt came between the hooks of an earlier call
            open_calls.clear()
        found = self._wanting() if self.attachment.observes() else ()
        open_calls.append([(place, run_before(place.spot.full, module, args, kwargs)) for place in found])

    def _found(self) -> Iterable[tuple[ReportedPlace, Any]]:
        """Return how the innermost call reports its output; it may have begun before the hooks were installed."""
        if open_calls := self.attachment.thread.state.open.get(self):
            return open_calls[-1]
        return [(place, None) for place in self._wanting()] if self.attachment.observes() else ()

    def end(self, *_: Any) -> None:
        """Forget the call when it has ended or raised."""
        calls = self.attachment.thread.state.open
        if len(calls.get(self, ())) > 1:
            calls[self].pop()
        else:
            calls.pop(self, None)


def _overwritten(attachment: Attachment, module: nn.Module, output: Any, new: Any) -> Any:
    """Overwrite an output that was changed in place, since the caller may use the argument; return what replaces it."""
    if cannot_overwrite(output):
        attachment.notes.setdefault(
            f"a {type(module).__name__} works in place on a view, or in a checkpoint: code that uses its return value "
            "gets the replacement; code that keeps using the input tensor does not"
        )
        return new
    overwrite(output, new)
    return output
