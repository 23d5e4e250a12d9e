"""Reused attachments: a sweep attaches once at each place, and changes what the edit does there from point to point."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook, register_module_module_registration_hook

from byname.edits.edited import checked_handle
from byname.model.where import unwrapped
from byname.undo import Undo, weak_callback
from byname.watch.attach import attach
from byname.watch.attachment import Event, order_of_attaching
from byname.watch.handle import Handle
from byname.watch.hooks import attachments_of


class ReusedAttachment:
    """The callback of an attachment at one place, which calls one edit after the other.

    An edit receives what it would receive in an attachment of its own: its forwards are numbered from 0.
    """

    def __init__(self, model: nn.Module, where: str, attention: str | None) -> None:
        self.key = id(model), where, attention
        self.surroundings: dict[Any, Any] = {}
        self.numbers_of_heads: dict[Any, Any] = {}
        self.handle = attach(model, where, self, attention=attention, begun=self._begin, enabled=False)
        self.order = next(order_of_attaching)
        self._lasts = self.handle.paths == (where,) and not where.endswith(".grad")

    def switch_on(self, edit: Any) -> None:
        self._edit, self._first, self._reached = edit, -1, False
        self._forwards = self.handle.requested.forwards
        edit.handle, edit.surroundings, edit.numbers_of_heads = self.handle, self.surroundings, self.numbers_of_heads
        self.handle.enabled = True

    def _begin(self, number: int) -> None:
        self._first = number if self._first < 0 else self._first

    def __call__(self, event: Event) -> Any:
        self._reached = True
        event.iteration = -1 if self._first < 0 else event.iteration - self._first
        return self._edit(event)

    def may_stay(self) -> bool:
        """Return whether another edit may follow; where this one was not reached, the handle has to warn of it."""
        requested = self.handle.requested
        if not self._reached:
            requested.reached.clear()
            requested.forwards -= self._forwards
        return self._reached and self._lasts and not self.handle.removed


class ReusedAttachments:
    """The attachments of a sweep; leaving the context removes them."""

    def __init__(self) -> None:
        self._idle: dict[object, ReusedAttachment] = {}
        self._on: dict[int, ReusedAttachment] = {}
        self._latest: ReusedAttachment | None = None
        self._removed = Undo()

    def __enter__(self) -> ReusedAttachments:
        self._removed.register(register_module_module_registration_hook, weak_callback(self._forget))
        return self

    def __exit__(self, *_: object) -> None:
        self._removed()

    def _forget(self, *_: object) -> None:
        """Have the edits look again at what is around their places, since the model may have another module."""
        for one in [*self._idle.values(), *self._on.values()]:
            one.surroundings.clear()
            one.numbers_of_heads.clear()

    def put_on(self, edit: Callable[..., Handle], model: nn.Module, point: Mapping[str, Any]) -> Handle:
        token, hook = _OF_SWEEP.set(self), register_module_forward_pre_hook(self._switch_off)
        try:
            return checked_handle(edit(model, **point))
        finally:
            hook.remove()
            _OF_SWEEP.reset(token)
            self._switch_off()

    def _switch_off(self, *_: object) -> None:
        """Switch the latest attachment off, unless the next edit is at the same place; also before a module runs."""
        latest, self._latest = self._latest, None
        if latest is not None:
            latest.handle.enabled = False

    def attach(self, model: nn.Module, where: str, attention: str | None, edit: Any) -> Handle:
        one = self._idle.pop((id(model), where, attention), None)
        if one is not None and one is self._latest:
            self._latest = None
        self._switch_off()
        if one is not None and any(later.order > one.order for later in attachments_of(unwrapped(model))):
            one.handle.remove()  # a new one runs after what was attached since
            one = None
        if one is None:
            one = ReusedAttachment(model, where, attention)
            self._removed.add(one.handle.remove)
        self._on[id(one.handle)] = one
        one.switch_on(edit)
        return one.handle

    def take_off(self, handle: Handle) -> None:
        """Remove an edit, and keep its attachment for the next one if that is possible."""
        one = self._on.pop(id(handle), None)
        if one is None or not one.may_stay():
            handle.remove()
        else:
            self._idle[one.key] = self._latest = one


_OF_SWEEP: ContextVar[ReusedAttachments | None] = ContextVar("attachments of a sweep", default=None)
reused_attachments = _OF_SWEEP.get
"""Return the attachments of the sweep that makes an edit now; None outside of a sweep."""
