"""What does a callback get to know when a value passes a place?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

__all__ = ["Event"]


@dataclass(slots=True, eq=False)
class Event:
    """A value on its way through a place.

    Attributes:
        path: the place, without wildcards: ``"layers.0.attn.softmax_1"``.
        module: the module called, or the one that owns the variable, operation or parameter.
        value: the value itself, not a copy.
        inputs: what the call was given, positional arguments first, then those given by keyword; empty for places that
            are no calls. A module that works in place has changed them by now.
        call: how many times this place was reached before in this iteration.
        recomputed: whether a checkpoint runs this part a second time, for the backward pass.
        iteration: the number of the forward of the whole model, from 0; -1 where a part of the model runs before the
            first. In a backward, and so in the second run of a checkpoint, it is that of the latest forward; the
            gradient of a value has the iteration and call of the value.
        before: what ``before`` returned when the call began; of the gradient of a value what ``stamp`` returned when
            the value passed.
        kind: what is at the place: ``module`` (what a module returned), ``operation``, ``variable``, ``parameter`` or
            ``buffer``; that of its gradient is the same.
    """

    path: str
    module: nn.Module
    value: Any
    inputs: tuple[Any, ...]
    call: int
    recomputed: bool
    iteration: int
    before: Any = None
    kind: str = ""
