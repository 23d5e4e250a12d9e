"""Parameters: parameters and buffers, reported when a forward begins or ends; their gradients once accumulated.

A tensor that a callback returns for a parameter replaces it during that one forward. Gradients flow to this tensor and,
if it was computed from the parameter, on to the parameter. A tensor returned for a buffer is copied into the buffer.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn

from byname.errors import InterjectionError
from byname.model.module_tree import REGISTRY, modules_along
from byname.model.spot import Spot
from byname.reading.frames import runs
from byname.watch.attachment import Attachment
from byname.watch.delivery import ReportedPlace
from byname.watch.handle import remove_all
from byname.watch.hooks import AFTER, BEFORE, BEFORE_STATE_DICT, Hook, Hooks, attachments_of
from byname.watch.requested import NO_GRADIENT_OF_PARAMETER
from byname.watch.value_gradients import OnGradient, leaf_hook


@dataclass(slots=True)
class ParameterSubstitute:
    """A tensor that replaces a parameter while a forward runs; `saved` has a ``state_dict`` pre-hook."""

    registry: dict[str, Any]
    name: str
    value: torch.Tensor
    new: torch.Tensor
    saved: Hooks


class States:
    """The parameters and buffers that one attachment observes.

    If it only reads, parameters are reported when a forward ends, not when it begins.
    """

    def __init__(self, attachment: Attachment) -> None:
        self._attachment = attachment
        self._hooked: dict[str, tuple[torch.Tensor, Any]] = {}
        self._gradients: dict[str, ReportedPlace] = {}
        self._awaiting = False
        self._changing = threading.Lock()
        self._recomputed: list[nn.Module] = []
        self._refusing: dict[str, Hooks] = {}
        self._at_begin: list[ReportedPlace] = []
        self._at_end: list[ReportedPlace] = []

    def observe(self, places: Sequence[ReportedPlace]) -> None:
        """Observe these places from now on, instead of those before."""
        values = [one for one in places if not one.spot.gradient]
        self._at_begin = [] if self._attachment.reads else [one for one in values if one.kind == "parameter"]
        self._at_end = values if self._attachment.reads else [one for one in values if one.kind == "buffer"]
        gradients = [one.spot for one in places if one.kind == "parameter" and one.spot.gradient]
        self._gradients = {spot.full: ReportedPlace(self._attachment, spot, spot.full) for spot in gradients}
        with self._changing:
            for path in self._hooked.keys() - self._gradients.keys():
                self._hooked.pop(path)[1].remove()

    def hook_computed(self, hooks: Hooks, places: Sequence[ReportedPlace]) -> None:
        """Add hooks that report tensors which are computed in the place of a parameter, in forwards of the model."""
        self._recomputed = []
        for place in places:
            spot = place.spot
            before = spot.name and not (self._attachment.reads or spot.gradient)
            hooks.call(BEFORE if before else AFTER, spot.module, partial(self._computed, place))
            self._recomputed += [spot.module] if before else []

    def _computed(self, place: ReportedPlace, module: nn.Module, *given: Any) -> Any:
        spot = place.spot
        value = module.__dict__.get(spot.name) if spot.name else given[-1]  # what a parametrization returns
        again = not spot.name and torch._C._current_graph_task_id() != -1  # a checkpoint's second run
        if value is None or not (self._attachment.thread.state.depth or again):
            return None
        new = place.report(None, (), None, value)
        if spot.name and new is not value:
            self._substitute(spot, module.__dict__, value, new)
        return None if spot.name else new

    def install(self) -> None:
        self._awaiting = True
        for hooks in self._refusing.values():
            hooks.install()
        self._hook_gradients()

    def _hook_gradients(self) -> None:
        substitutes = self._all_substitutes() if self._gradients else []
        for path, place in self._gradients.items():
            spot, known = place.spot, self._hooked.get(path)
            held = spot.module.__dict__["_parameters"].get(spot.name)
            parameter = _own(held, substitutes) if substitutes else held
            if known is None or parameter is not known[0]:
                self._hook_gradient(spot, parameter)

    def _hook_gradient(self, spot: Spot, parameter: Any) -> None:
        """Hook the parameter that is at a place now; it may have been replaced or frozen since the last forward."""
        if type(parameter) is torch.Tensor or (parameter is not None and not parameter.is_leaf):
            self._attachment.note(
                spot.full,
                "a forward ran with another tensor in place of the parameter, as under torch.func.functional_call; "
                "its gradient is not reported",
            )
        elif parameter is None or not parameter.requires_grad:
            self._attachment.note(spot.full, NO_GRADIENT_OF_PARAMETER)
        else:
            with self._changing:  # forwards may begin in several threads at once, or after another thread's `remove`
                known, hook = self._hooked.get(spot.full, (None, None))
                if self._awaiting and known is not parameter:
                    if hook is not None:
                        hook.remove()
                    new = leaf_hook(parameter)
                    self._hooked[spot.full] = parameter, new  # noted first, so that `remove` finds it in any case
                    new.accumulate(parameter, _receiver(weakref.ref(self), spot.full))

    def remove(self) -> None:
        self.put_back()
        remove_all(self._refusing.values())
        with self._changing:
            self._awaiting = False
            for _, hook in self._hooked.values():
                hook.remove()
            self._hooked.clear()

    def begin(self) -> None:
        """Hook and report the parameters, and replace them, when an outermost forward begins."""
        self.put_back()
        self._hook_gradients()
        for hooks in [module.__dict__["_forward_pre_hooks"] for module in self._recomputed]:
            for key in [key for key, hook in hooks.items() if isinstance(hook, Hook)]:
                hooks.move_to_end(key)  # behind one that was added since, which would compute the tensor again
        for place in self._at_begin:
            registry: dict[str, Any] = place.module.__dict__["_parameters"]
            value = registry.get(place.spot.name)
            if value is None:
                continue
            new = place.report(None, (), None, value)
            if new is not value:
                self._substitute(place.spot, registry, value, new)

    def _substitute(self, spot: Spot, registry: dict[str, Any], value: torch.Tensor, new: torch.Tensor) -> None:
        if (torch.is_grad_enabled() or spot.kind == "computed") and spot.path not in self._refusing:
            self._refuse_again(spot)
        saved = Hooks(self._attachment)
        saved.call(BEFORE_STATE_DICT, spot.module, self._saved)
        saved.install()
        self._attachment.substitutes.append(ParameterSubstitute(registry, spot.name, value, new, saved))
        registry[spot.name] = new

    def _refuse_again(self, spot: Spot) -> None:
        """Hook the modules around a replaced parameter: a checkpoint would run them again with the model's own."""
        model = self._attachment.model

        def refuse(*_: object) -> None:
            if torch._C._current_graph_task_id() != -1 and not self._attachment.thread.state.depth:
                raise InterjectionError(_AGAIN.format(spot.path))

        hooks = self._refusing[spot.path] = Hooks(self._attachment)
        for module in modules_along(model, spot.path).values():
            if module is not model:  # whose forward begins anew, with the replacement
                hooks.call(BEFORE, module, refuse)
        hooks.install()

    def put_back(self) -> None:
        """Put the replaced parameters back, when an outermost forward has ended or raised."""
        mine = self._attachment.substitutes
        while mine:
            one = mine[-1]
            one.saved.remove()
            if one.registry.get(one.name) is one.new:
                one.registry[one.name] = one.value
            else:  # a later attachment has replaced our tensor and would put it back; give it the parameter instead
                for other in attachments_of(self._attachment.model):
                    for later in other.substitutes:
                        later.value = one.value if later.value is one.new else later.value
            mine.pop()

    def _saved(self, *_: Any) -> None:
        """Put the parameters back before ``state_dict`` reads them: an interrupt may have left replacements there."""
        if not runs(self._attachment.model):
            self.put_back()

    def _all_substitutes(self) -> list[ParameterSubstitute]:
        """Return the replacements of parameters by all attachments of the model, the latest first."""
        return [
            one for other in reversed(attachments_of(self._attachment.model)) for one in reversed(other.substitutes)
        ]

    def end(self) -> None:
        """Report buffers, or parameters that are only read, after an outermost forward that did not raise."""
        substitutes = self._all_substitutes() if self._at_end else []
        for place in self._at_end:
            held = place.module.__dict__[REGISTRY[place.kind]].get(place.spot.name)
            value = held if place.kind == "buffer" else _own(held, substitutes)
            if value is None:
                continue
            new = place.report(None, (), None, value)
            if new is not value:
                with torch.no_grad():
                    value.copy_(new)


_AGAIN = (
    "`{}` was replaced in the forward, but a checkpoint runs its module again for the backward with the original: "
    "the gradients would be wrong. Replace what the module returns, or run it without the checkpoint"
)


def _receiver(states: weakref.ref[States], path: str) -> OnGradient:
    """Return a function that reports an accumulated gradient, written for speed: each gradient passes here."""

    def receive(gradient: torch.Tensor) -> torch.Tensor | None:
        mine = states()
        if mine is None:
            return None
        number = 0, mine._attachment.iteration, False
        new: torch.Tensor = mine._gradients[path].report(None, (), None, gradient, None, number)
        return None if new is gradient else new

    return receive


def _own(value: Any, substitutes: Sequence[ParameterSubstitute]) -> Any:
    """Return the model's own parameter, which attachments may have replaced; the latest replacement comes first."""
    for one in substitutes:
        if value is one.new:
            value = one.value
    return value
