"""How is an interjection in a graph called? As `byname.interject` calls it, without anything attached."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from byname.model.items import tensors_in
from byname.reading.quiet import dynamo_skip
from byname.text import note_on
from byname.watch.boundary_edges import Entered
from byname.watch.call_gradients import Followed, Gradients, before, follow
from byname.watch.inplace import overwrite
from byname.watch.interject import (
    ForwardInterjection,
    Interjection,
    WrappedForwardBackwardInterjection,
    WrappedForwardInterjection,
)
from byname.watch.replacement import same_gradients, same_kind

__all__ = ["Begun", "Inserted"]


class Inserted(nn.Module):
    """A place of a rewritten model, with the interjection that is called there. It stands in the graph as a module.

    Args:
        path: the place.
        module: the module called; None for an operation.
        interjection: shared, not copied.
    """

    interjection: Interjection
    module: nn.Module | None
    _is_impure = True  # so that torch.fx leaves it in the graph also where nobody reads its value

    def __init__(self, path: str, module: nn.Module | None, interjection: Interjection) -> None:
        super().__init__()
        self.path = path
        self.with_inputs = isinstance(interjection, WrappedForwardInterjection)
        self.with_gradients = isinstance(interjection, WrappedForwardBackwardInterjection)
        lasting: list[Followed] = []
        self.__dict__.update(module=module, interjection=interjection, lasting=lasting)  # past the registry of modules

    def forward(
        self, value: Any, inputs: Sequence[Any] = (), entered: Entered | None = None, changed: Any = None
    ) -> Any:
        """What takes the place of the value.

        Args:
            value: what the call returned.
            inputs: what it was given, where the interjection is told.
            entered: what was noted when it began, where its gradients are wanted.
            changed: what the call has changed in place, if the model goes on with that.
        """
        if entered is not None:
            self._await_gradients(value, entered)
        new = self._process(value, tuple(inputs))
        if new is None or new is value:
            return value
        same_kind(self.path, value, new)
        if changed is not None and changed is value:
            overwrite(changed, new)
            return changed
        return new

    def _process(self, value: Any, inputs: tuple[Any, ...]) -> Any:
        interjection: Any = self.interjection
        try:
            if self.with_inputs:
                return interjection.process(self.path, self.module, inputs, value)
            if isinstance(interjection, ForwardInterjection):
                return interjection.process(self.path, self.module, value)
            return interjection(self.path, self.module, value)
        except Exception as error:
            note_on(error, f"byname: at `{self.path}`")
            raise

    @dynamo_skip
    def _await_gradients(self, value: Any, entered: Entered) -> None:
        """Has the gradients of this call told."""
        outputs = [tensor for _, tensor in tensors_in(value)]
        followed = follow(entered, outputs, self._gradients)
        if followed is not None and followed.lasting:
            for earlier in self.__dict__["lasting"]:
                earlier.remove()
            self.__dict__["lasting"] = [followed]

    def _gradients(self, inputs: Gradients, outputs: Gradients) -> Gradients | None:
        interjection: Any = self.interjection
        try:
            new = interjection.process_backward(self.path, self.module, inputs, outputs)
            if new is not None:
                same_gradients(self.path, inputs, new)
        except Exception as error:
            note_on(error, f"byname: in the backward of `{self.path}`")
            raise
        return None if new is None else tuple(new)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "lasting": []}

    def extra_repr(self) -> str:
        """The place, as `print` shows it."""
        named = getattr(self.interjection, "__name__", type(self.interjection).__name__)
        return f"{self.path}: {named}"


class Begun(nn.Module):
    """Notes in the graph that the call of a place begins, for its gradients."""

    _is_impure = True

    def __init__(self, path: str) -> None:
        super().__init__()
        self.path = path

    @dynamo_skip
    def forward(self, *inputs: Any) -> Entered | None:
        """What the end of the call is to know."""
        if not torch.is_grad_enabled():
            return None
        return before([tensor for _, tensor in tensors_in(inputs)])
