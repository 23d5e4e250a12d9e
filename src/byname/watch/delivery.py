"""Delivery: functions that report the value at a place to the callback: as a whole, by items, or later its gradient."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

import torch
from torch import nn

from byname.model.items import Segments, items_in, lacking, put, tensors_in
from byname.model.spot import Spot
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import is_tensor
from byname.tracing.muted import UNDER_WAY
from byname.watch.attachment import Event, Running
from byname.watch.value_gradients import missed_at, on_gradient

Deliver: TypeAlias = Callable[..., Any]
"""A function ``(value, inputs=(), before=None)`` that reports a value and returns what replaces it."""


Delivered: TypeAlias = tuple[Spot, Deliver]
"""A place, with the function that reports its values."""


def by_module(found: Iterable[Delivered]) -> Iterator[tuple[nn.Module, list[Delivered]]]:
    """Return each module with its places."""
    groups: dict[int, list[Delivered]] = {}
    for spot, deliver in found:
        groups.setdefault(id(spot.module), []).append((spot, deliver))
    return ((group[0][0].module, group) for group in groups.values())


def delivery(running: Running, spot: Spot) -> Deliver:
    """Return the function that is to be called with each value at a place."""
    if spot.gradient:
        return OfGradients(running, spot)
    if spot.items:
        return _OfItems(running, spot)
    path, module, kind, event = spot.full, spot.module, spot.kind, running.event
    return lambda value, inputs=(), before=None: event(path, module, value, inputs, before, kind)


class _OfItems:
    """Reports the items of a value that a path asks for."""

    def __init__(self, running: Running, spot: Spot) -> None:
        self._running = running
        self._spot = spot
        self._asked = spot.full
        self._paths: dict[Segments, str] = {}

    def __call__(self, value: Any, inputs: tuple[Any, ...] = (), before: Any = None) -> Any:
        for segments, one in self.found(value):
            new = self.item(segments, one, inputs, before)
            if new is not one:
                value = put(value, segments, new)
        return value

    def found(self, value: Any) -> list[tuple[Segments, Any]]:
        """Return the items of a value that the path asks for; if there are none, note it."""
        spot, noted = self._spot, self._running.heard.lacking
        found, known = items_in(value, spot.items), noted.get(self._asked)
        if found and known != "":
            noted[self._asked] = ""
        elif not found and known is None and self._running.hears():
            noted[self._asked] = lacking(value, spot.items, spot.path)
        return items_in(value, spot.items, spot.without) if spot.without else found

    def item(self, segments: Segments, one: Any, inputs: tuple[Any, ...] = (), before: Any = None) -> Any:
        """Report one item; return what replaces it."""
        spot = self._spot
        return self._running.event(self._path(segments), spot.module, one, inputs, before, spot.kind)

    def _path(self, segments: Segments) -> str:
        path = self._paths.get(segments)
        if path is None:
            path = self._paths[segments] = self._spot.of_item(segments)
            self._running.heard.mean(path, self._spot.full)
        return path


class OfGradients(_OfItems):
    """Hooks the tensors in a value, to report their gradients."""

    def __init__(self, running: Running, spot: Spot) -> None:
        super().__init__(running, spot)
        self._waiting: dict[tuple[str, int], weakref.ref[torch.Tensor]] = {}
        self._places: dict[Segments, GradientPlace] = {}

    def __call__(self, value: Any, inputs: tuple[Any, ...] = (), before: Any = None) -> Any:
        """Hook the tensors in a value, and return the value unchanged."""
        if self._spot.items or not is_tensor(value):
            return super().__call__(value, inputs, before)
        if self._running.hears():
            self._wait_for((), value, inputs)
        return value

    def item(self, segments: Segments, one: Any, inputs: tuple[Any, ...] = (), before: Any = None) -> Any:
        """Hook the tensors in one item, and return the item unchanged."""
        if self._running.hears():
            for inner, tensor in tensors_in(one):
                self._wait_for((*segments, *inner), tensor, inputs)
        return one

    def place(self, segments: Segments = ()) -> GradientPlace:
        """Return the place at which the gradients of one item, or of the whole value, are reported."""
        place = self._places.get(segments)
        if place is None:
            place = GradientPlace(self._running, self._path(segments), self._spot)
            self._places[segments] = place
        return place

    def _wait_for(self, segments: Segments, tensor: torch.Tensor, inputs: tuple[Any, ...]) -> None:
        running, place = self._running, self.place(segments)
        path = place.path
        iteration, call, recomputed = running.number(path)
        if self._was_given(tensor, inputs) and self._was_there_before(path, call, tensor, recomputed):
            return
        waiting = place.waiting(call, iteration, recomputed=recomputed)
        hook = on_gradient(tensor, waiting, place.missed)
        if hook is not None:
            running.heard.waited.add(self._spot.full)
            place.waited = True
        if hook is not None and hook.lasting:
            running.hook_leaf((path, call), hook)
        elif hook is None and torch.is_grad_enabled():
            running.notes.setdefault(f"`{path}`: no gradient flows there, the value does not require one")

    def _was_given(self, tensor: torch.Tensor, inputs: tuple[Any, ...]) -> bool:
        """Return whether the tensor may be older than the call in which it is observed."""
        return self._spot.kind in ("variable", "input") or any(tensor is one for one in inputs)

    def _was_there_before(self, path: str, call: int, tensor: torch.Tensor, recomputed: bool) -> bool:
        """Return whether a recomputation has reached a value that the first run has hooked already.

        This happens to the arguments of the checkpoint. In the recomputation they are the same tensors, or other
        tensors on the same memory whose gradients flow to the first ones.
        """
        if not recomputed:
            self._waiting[path, call] = weakref.ref(tensor)
            return False
        earlier = [one() for (place, _), one in self._waiting.items() if place == path]
        return any(one is not None and (one is tensor or same_memory(one, tensor)) for one in earlier)


class GradientPlace:
    """A place whose gradients are reported.

    Attributes:
        running: the attachment.
        path, module, kind: the attributes of its events.
        waited: whether a tensor was hooked there.
        told: whether a gradient was reported, so that nothing is left to note about the place.
    """

    __slots__ = ("kind", "module", "path", "running", "told", "waited")

    def __init__(self, running: Running, path: str, spot: Spot) -> None:
        self.running = running
        self.path = path
        self.module = spot.module
        self.kind = spot.kind
        self.waited = self.told = False

    def waiting(self, call: int, iteration: int, *, recomputed: bool) -> ValueGradient:
        """Return the hook for a value of one call; see `Event` for the arguments."""
        stamp = self.running.stamp
        return ValueGradient(self, call, iteration, None if stamp is None else stamp(iteration), recomputed)

    def missed(self) -> None:
        """Note that a gradient of a backward could not be observed."""
        self.running.notes.setdefault(missed_at(self.path))


class ValueGradient:
    """The hook of a tensor; it reports the gradient of one value.

    Attributes:
        place, call, iteration, recomputed: the place of the value and the facts of its events.
        stamp: the attribute ``before`` of its events.
        then: the hook that is called next, with the result of this one.
    """

    __slots__ = ("call", "iteration", "place", "recomputed", "stamp", "then")

    def __init__(self, place: GradientPlace, call: int, iteration: int, stamp: Any, recomputed: bool = False) -> None:
        self.place = place
        self.call = call
        self.iteration = iteration
        self.stamp = stamp
        self.recomputed = recomputed
        self.then: ValueGradient | None = None

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor | None:
        """Report the gradient; return what replaces it, or None."""
        place = self.place
        running = place.running
        here = running.thread.here
        usual = place.told and running.everything and not (here.busy or UNDER_WAY)
        new = gradient
        if usual or running.hears():  # a hook on a leaf runs in every backward
            event = Event(
                place.path,
                place.module,
                gradient,
                (),
                self.call,
                self.recomputed,
                self.iteration,
                self.stamp,
                place.kind,
            )
            new = running.call(event) if usual else running.told(event)
            place.told = place.told or place.path in running.heard.reached
        if self.then is not None:
            last = self.then(new)
            new = new if last is None else last
        return None if new is gradient else new

    def append(self, other: ValueGradient) -> None:
        """Add a hook at the end of the chain; it is called with the result of the hook before it."""
        last = self
        while last.then is not None:
            last = last.then
        last.then = other


class ReshapedGradient(ValueGradient):
    """The hook for a value that is a view of a hidden base; it is a pre-hook of the node of that base.

    Attributes:
        size: the shape of the value.
        slot: the index of the gradient of the base among the gradients that the node gets.
    """

    __slots__ = ("__weakref__", "size", "slot")
    size: torch.Size
    slot: int

    def __call__(self, gradients: Any) -> Any:
        """Report the gradient of the base, in the shape of the value; return the gradients if it was replaced."""
        slot = self.slot
        whole = gradients[slot]
        if whole is None:
            return None
        new = super().__call__(whole.reshape(self.size))
        return None if new is None else (*gradients[:slot], new.reshape(whole.shape), *gradients[slot + 1 :])


def same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Return whether two tensors share address, shape and strides; False for other layouts than strided."""
    with DisableTorchFunction():
        if one.layout != torch.strided or other.layout != torch.strided:
            return False
        return one.data_ptr() == other.data_ptr() != 0 and one.shape == other.shape and one.stride() == other.stride()
