"""Patch: values at places of a model replaced, or added to; all edits of values stand on `edit`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from numbers import Number
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from byname.edits.active_steps import ActiveSteps, why_unused
from byname.edits.capture import Capture
from byname.edits.heads import heads_of
from byname.edits.reused import reused_attachments
from byname.edits.selection import SelectedPart, Selection, of_whole
from byname.errors import BadArgumentError, InterjectionError, NoMatchError
from byname.model.feature_dims import FeatureContext
from byname.model.items import tensors_in
from byname.model.module_tree import modules_along
from byname.model.where import resolve_where, unwrapped
from byname.place import is_wild, join
from byname.reading.tensor import is_tensor
from byname.table import closest, listed
from byname.watch.attach import attach
from byname.watch.attachment import Before, Event
from byname.watch.handle import Handle
from byname.watch.interject import accepts
from byname.watch.replacement import describe

MakePart: TypeAlias = Callable[["Edit", Event, SelectedPart], Tensor | None]
"""``(edit, event, part)``: the tensor that takes the place of a part, which ``edit.fitting`` makes; None keeps it."""


def patch(
    model: nn.Module,
    where: Any,
    value: Any,
    *,
    heads: Any = None,
    positions: Any = None,
    features: Any = None,
    channels: Any = None,
    call: int | None = None,
    steps: Any = None,
    example: Any = None,
    attention: str | None = None,
) -> Handle:
    """Put another value at places of a model, in place of the whole value there or of a part of it.

        >>> import torch, byname
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.ReLU())
        >>> clean = byname.capture(model, "0")(torch.ones(1, 2))
        >>> with byname.patch(model, "0", clean):
        ...     torch.equal(model(torch.zeros(1, 2)), clean.output)
        True

        A function is given the selected part alone:

        >>> with byname.patch(model, "0", lambda part: part * 0 + 7, features=[0, 2]):
        ...     model(torch.ones(1, 2))[0, [0, 2]].tolist()
        [7.0, 7.0]

    Gradients flow to a tensor that requires them, and to the rest of the value. The value itself is not written to.

    Args:
        model: any module.
        where: a path, a selector, a class of modules, a module of the model, or a sequence of these.
        value: a tensor, of the shape of the selected part or of the whole value, or one that broadcasts to it; a
            mapping from paths to such tensors, such as a `Capture`; or a function ``f(part) -> part``, where None keeps
            the part.
        heads: attention heads: an int, a slice, a sequence of ints, or a mask. Of values of four dimensions they are
            dimension 1; else the last dimension is split into as many heads as the module around the place, or its
            config, has. ``(dim, indices)`` says the dimension.
        positions: an int, a slice, a sequence or a mask along the dimension before the features (in scores and patterns
            the query), or dimension 0 in layers of PyTorch without ``batch_first=True``. A mask may have all dimensions
            before the features: ``(batch, position)``.
        features: the same along the last dimension; the channels, dimension 1, of what convolutions and what follows
            them give. An int drops the dimension, as it does in PyTorch.
        channels: the same along the dimension of the channels: dimension 1 of what convolutions and what follows them
            give (0 of an image without a batch), the last of what linear layers and norms give, as in the analysers.
        call: the number of the call in a forward that is patched, from 0; by default every call.
        steps: the steps that the patch holds for, by default all: an int, a range or a sequence of ints, or
            ``f(step) -> bool``. In a call of the model's ``generate`` a step is a forward, counted from 0 in each call;
            ``"prompt"`` is step 0 of ``generate`` alone, which runs the prompt, and an encoder if there is one.
            Elsewhere a step is an iteration: a forward of the model, counted as `byname.record` does: since the
            attaching, separately in training and evaluation mode, with the forwards within ``generate``.
        example: arguments to run the model with first, where a selector needs to know the flow of data.
        attention: ``"explicit"`` runs attention step by step, so that its scores and pattern have places; see `attach`.

    Raises:
        NoMatchError: nothing matches, or a place is not in the mapping.
        BadArgumentError: an argument is invalid.
        InterjectionError: in the forward, where the value has no such part, or another shape.
    """
    selection = Selection(heads, positions, features, channels)
    made = _given(model, where, value) or (_computed(value) if callable(value) else None)
    if made is None:
        raise BadArgumentError(
            f"value= takes a tensor, a mapping from paths to tensors, or a function f(value), not {describe(value)}"
        )
    return edit(model, where, made, selection, call=call, steps=steps, example=example, attention=attention)


def steer(
    model: nn.Module,
    where: Any,
    vector: Any,
    *,
    scale: float | Tensor = 1.0,
    positions: Any = None,
    channels: Any = None,
    steps: Any = None,
    example: Any = None,
    attention: str | None = None,
) -> Handle:
    """Add a vector to the values at places of a model.

        >>> import torch, byname
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Identity())
        >>> with byname.steer(model, "0", torch.ones(3), scale=2):
        ...     steered = model(torch.ones(1, 2))
        >>> torch.allclose(steered, model(torch.ones(1, 2)) + 2)
        True

    Args:
        model: any module.
        where: a path, a selector, a class of modules, a module of the model, or a sequence of these.
        vector: a tensor that broadcasts to the selected part, such as one of the width of the features; or a mapping
            from paths to such tensors. Another dtype or device is made that of the value, which the notes of the handle
            say.
        scale: what the vector is multiplied by.
        positions: as in `patch`; all by default.
        channels: as in `patch`; all by default.
        steps: as in `patch`; all by default.
        example: as in `patch`.
        attention: as in `patch`.

    Raises:
        NoMatchError, BadArgumentError, InterjectionError: as in `patch`.
    """
    direction = _given(model, where, vector)
    if direction is None:
        raise BadArgumentError(f"vector= takes a tensor or a mapping from paths to tensors, not {describe(vector)}")
    if not isinstance(scale, Number) and not is_tensor(scale):
        raise BadArgumentError(f"scale= takes a number or a tensor, not {describe(scale)}")

    def steered(edit: Edit, event: Event, part: SelectedPart) -> Tensor:
        return part.of(event.value) + scale * direction(edit, event, part)

    selection = Selection(None, positions, None, channels)
    return edit(model, where, steered, selection, steps=steps, example=example, attention=attention)


def edit(
    model: nn.Module,
    where: Any,
    made: MakePart,
    selection: Selection,
    *,
    call: int | None = None,
    steps: Any = None,
    example: Any = None,
    attention: str | None = None,
    before: Before | None = None,
) -> Handle:
    """Attach an edit, and return its handle; `made` makes what takes the place of a part, the rest is as in `patch`."""
    if call is not None and (type(call) is not int or call < 0):
        raise BadArgumentError(f"call= takes the number of a call in a forward, from 0, not {call!r:.40}")
    root = unwrapped(model)
    counted = ActiveSteps.of(root, steps)
    stamp = None if counted is None else counted.stamp
    callback = Edit(root, made, selection, call, counted)
    reused = reused_attachments()
    if reused is not None and type(where) is str and all(one is None for one in (steps, example, before, call)):
        return reused.attach(model, where, attention, callback)
    callback.handle = handle = attach(
        model, where, callback, example=example, attention=attention, before=before, stamp=stamp, enabled=False
    )
    if limits := [f"call={call}"] * (call is not None) + ([] if counted is None else [counted.words]):
        handle.requested.seen = partial(why_unused, callback.used, " and ".join(limits))
    if counted is not None:
        handle.add(counted)
    return handle.switched(True)


class Edit:
    """The callback of an edit, for some calls and steps, or for all; `used` are the places that it was used at."""

    handle: Handle

    def __init__(
        self, root: nn.Module, made: MakePart, selection: Selection, call: int | None, steps: ActiveSteps | None = None
    ) -> None:
        self._root = root
        self._made = made
        self._selection = selection
        self._call = call
        self._steps = steps
        self.used: set[str] = set()
        self.surroundings: dict[str, FeatureContext] = {}
        self.numbers_of_heads: dict[Any, int | None] = {}

    def __call__(self, event: Event) -> Tensor | None:
        if self._call is not None and event.call != self._call:
            return None
        if self._steps is not None and not self._steps.is_active(event.path, event.before):
            return None
        self.used.add(event.path)
        value = event.value
        if not is_tensor(value):
            items = [f"`{event.path}{join(at)}`" for at, _ in tensors_in(value)]
            hint = f"; name the item: {listed(items, 6)}" if items else ""
            raise InterjectionError(f"`{event.path}`: expected a tensor; got {describe(value)}{hint}")
        if self._selection.channels is not None and event.kind in ("parameter", "buffer"):
            raise InterjectionError(f"`{event.path}` is a {event.kind}, which has no channels; {of_whole(event.path)}")
        part = self._selection.part_of(event.path, value, self._around(event.path), self._heads_of(event))
        new = self._made(self, event, part)
        return None if new is None else part.replace_item(value, new)

    def fitting(self, event: Event, part: SelectedPart, new: Tensor, *, whole: bool = False) -> Tensor:
        """Return a tensor as one that can take the place of a part; see `SelectedPart.fitting`."""
        return part.fitting(event.value, self._cast(event, new), whole=whole)

    def _around(self, path: str) -> FeatureContext:
        if path not in self.surroundings:
            self.surroundings[path] = FeatureContext.at(modules_along(self._root, path), path)
        return self.surroundings[path]

    def _heads_of(self, event: Event) -> int | None:
        if self._selection.heads is None:
            return None
        value, dim, known = event.value, self._selection.dim, self.numbers_of_heads
        at = dim if dim is not None and -value.ndim <= dim < value.ndim else 1 if value.ndim == 4 else -1
        key = event.path, value.ndim, value.shape[at] if value.ndim else 0, dim
        if key not in known:
            known[key] = heads_of(self._root, event, value, self._around(event.path), dim)
        return known[key]

    def _cast(self, event: Event, new: Tensor) -> Tensor:
        """Return a tensor of the dtype and on the device of the value, and note where it was of another."""
        value = event.value
        if new.dtype == value.dtype and new.device == value.device:
            return new
        if new.is_meta:
            raise InterjectionError(f"at `{event.path}`: a tensor on the meta device has no values")
        if not torch.can_cast(new.dtype, value.dtype):
            raise InterjectionError(
                f"at `{event.path}`: a tensor of {new.dtype} cannot take the place of one of {value.dtype} without "
                f"loss; convert it first, as by .to({value.dtype})"
            )
        self.handle.note(
            f"`{event.path}`: a tensor of {new.dtype} on {new.device} was converted to {value.dtype} on "
            f"{value.device}, as the original is"
        )
        return new.to(device=value.device, dtype=value.dtype)


def _given(model: nn.Module, where: Any, value: Any) -> Callable[[Edit, Event, SelectedPart], Tensor] | None:
    """Return what takes a tensor, or those of a mapping; None for another value."""
    if isinstance(value, Mapping):
        checked_keys(model, where, value)
        return partial(_of_mapping, value)
    return (lambda edit, event, part: edit.fitting(event, part, value)) if is_tensor(value) else None


def _computed(function: Callable[[Tensor], Any]) -> MakePart:
    accepts(function, "f(value)", 1, BadArgumentError)

    def made(edit: Edit, event: Event, part: SelectedPart) -> Tensor | None:
        new = function(part.of(event.value).clone())
        if new is None:
            return None
        if not is_tensor(new):
            raise InterjectionError(
                f"at `{event.path}`: the function must return a tensor; it returned {describe(new)}"
            )
        return edit.fitting(event, part, new)

    return made


def _of_mapping(values: Mapping[str, Any], edit: Edit, event: Event, part: SelectedPart) -> Tensor:
    """Return the tensor that a mapping has for a place; of several, that of the same call."""
    path = event.path
    if path not in values:
        raise NoMatchError(_not_in(path, values))
    found = values.calls(path) if isinstance(values, Capture) else values[path]
    if isinstance(found, tuple) and len(found) == 1:
        found = found[0]
    if isinstance(found, tuple) and all(map(is_tensor, found)):
        if event.call >= len(found):
            raise InterjectionError(f"at `{path}`: there are {len(found)} values, but none for call {event.call}")
        found = found[event.call]
    if not is_tensor(found):
        raise InterjectionError(f"at `{path}`: expected a tensor in the mapping; got {describe(found)}")
    return edit.fitting(event, part, found, whole=True)


def checked_keys(model: nn.Module, where: Any, values: Mapping[str, Any]) -> None:
    """Refuse places that a mapping lacks, as far as they are known before the model runs."""
    if type(where) is str and where in values:
        return
    resolution, _ = resolve_where(where, unwrapped(model))
    for spot in resolution.spots:
        open_yet = spot.kind == "operation" or any(is_wild(one) for one in spot.items)
        if not open_yet and spot.full not in values:
            raise NoMatchError(_not_in(spot.full, values))


def _not_in(path: str, values: Mapping[str, Any]) -> str:
    return f"`{path}` is not in the given mapping; it has {closest(path, [f'`{one}`' for one in values]) or 'no paths'}"
