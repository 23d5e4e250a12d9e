"""How does a value get from a tap to the callback? Whole, item by item, or its gradient once there is one."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any, TypeAlias

import torch

from byname.model.items import Segments, items_in, lacking, put, tensors_in
from byname.model.spot import Spot
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import is_tensor
from byname.watch.attachment import Event, Running
from byname.watch.value_gradients import missed_at, on_gradient

__all__ = ["Deliver", "delivery"]

Deliver: TypeAlias = Callable[..., Any]
"""``(value, inputs=(), before=None)``: what takes the value's place."""


def delivery(running: Running, spot: Spot) -> Deliver:
    """What a tap calls with each value that passes a spot."""
    if spot.gradient:
        return _OfGradients(running, spot)
    if spot.items:
        return _OfItems(running, spot)
    path, module, kind, event = spot.full, spot.module, spot.kind, running.event
    return lambda value, inputs=(), before=None: event(path, module, value, inputs, before, kind)


class _OfItems:
    """Tells of the items of a value that a path means."""

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
        """The items of a value that the path means; it is noted where there is none."""
        spot, noted = self._spot, self._running.heard.lacking
        found, known = items_in(value, spot.items), noted.get(self._asked)
        if found and known != "":
            noted[self._asked] = ""
        elif not found and known is None and self._running.hears():
            noted[self._asked] = lacking(value, spot.items, spot.path)
        return items_in(value, spot.items, spot.without) if spot.without else found

    def item(self, segments: Segments, one: Any, inputs: tuple[Any, ...] = (), before: Any = None) -> Any:
        """Tells of one item; what takes its place."""
        spot = self._spot
        return self._running.event(self._path(segments), spot.module, one, inputs, before, spot.kind)

    def _path(self, segments: Segments) -> str:
        path = self._paths.get(segments)
        if path is None:
            path = self._paths[segments] = self._spot.of_item(segments)
            self._running.heard.mean(path, self._spot.full)
        return path


class _OfGradients(_OfItems):
    """Waits for the gradients of the tensors in a value."""

    def __init__(self, running: Running, spot: Spot) -> None:
        super().__init__(running, spot)
        self._waiting: dict[tuple[str, int], weakref.ref[torch.Tensor]] = {}

    def __call__(self, value: Any, inputs: tuple[Any, ...] = (), before: Any = None) -> Any:
        if self._spot.items or not is_tensor(value):
            return super().__call__(value, inputs, before)
        if self._running.hears():
            self._wait_for((), value, inputs)
        return value

    def item(self, segments: Segments, one: Any, inputs: tuple[Any, ...] = (), before: Any = None) -> Any:
        """Waits for the gradients of one item, which stays as it is."""
        if self._running.hears():
            for inner, tensor in tensors_in(one):
                self._wait_for((*segments, *inner), tensor, inputs)
        return one

    def _wait_for(self, segments: Segments, tensor: torch.Tensor, inputs: tuple[Any, ...]) -> None:
        running, path = self._running, self._path(segments)
        iteration, call, recomputed = running.number(path)
        if self._was_given(tensor, inputs) and self._was_there_before(path, call, tensor, recomputed):
            return
        stamp = None if running.stamp is None else running.stamp(iteration)
        waiting = _Waiting(running, path, self._spot, call, recomputed, iteration, stamp)
        hook = on_gradient(tensor, waiting, waiting.missed)
        if hook is not None:
            running.heard.waited.add(self._spot.full)
        if hook is not None and hook.lasting:
            running.hook_leaf((path, call), hook)
        elif hook is None and torch.is_grad_enabled():
            running.notes.setdefault(f"`{path}`: no gradient flows there, the value does not require one")

    def _was_given(self, tensor: torch.Tensor, inputs: tuple[Any, ...]) -> bool:
        """Whether the tensor may be older than the call or the function in which it is met."""
        return self._spot.kind == "variable" or any(tensor is one for one in inputs)

    def _was_there_before(self, path: str, call: int, tensor: torch.Tensor, recomputed: bool) -> bool:
        """Whether the second run of a checkpoint has come to a value whose gradient the first run waits for already.

        That is so for what is given to the checkpoint: it is the same tensor, or another for the same memory whose
        gradient flows on to it.
        """
        if not recomputed:
            self._waiting[path, call] = weakref.ref(tensor)
            return False
        earlier = [one() for (place, _), one in self._waiting.items() if place == path]
        return any(one is not None and (one is tensor or same_memory(one, tensor)) for one in earlier)


class _Waiting:
    """Is called with a gradient when there is one. It is one object, for there are many of them in a graph."""

    __slots__ = ("_call", "_iteration", "_kind", "_module", "_path", "_recomputed", "_running", "_stamp")

    def __init__(
        self, running: Running, path: str, spot: Spot, call: int, recomputed: bool, iteration: int, stamp: Any
    ) -> None:
        self._running = running
        self._path = path
        self._module = spot.module
        self._kind = spot.kind
        self._call = call
        self._recomputed = recomputed
        self._iteration = iteration
        self._stamp = stamp

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor | None:
        if not self._running.hears():  # the hook of a leaf is there for every backward
            return None
        event = Event(
            self._path,
            self._module,
            gradient,
            (),
            self._call,
            self._recomputed,
            self._iteration,
            self._stamp,
            self._kind,
        )
        new: torch.Tensor = self._running.told(event)
        return None if new is gradient else new

    def missed(self) -> None:
        """A backward has had a gradient that is out of reach."""
        self._running.notes.setdefault(missed_at(self._path))


def same_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors lie at the same place in memory."""
    with DisableTorchFunction():
        if one.layout != torch.strided or other.layout != torch.strided:
            return False
        return one.data_ptr() == other.data_ptr() != 0 and one.shape == other.shape and one.stride() == other.stride()
