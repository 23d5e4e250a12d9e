"""Sites: the interjections in a rewritten model, and their state in each thread."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import nn

from byname.reading.interrupts import defer_signals
from byname.reading.quiet import dynamo_skip
from byname.text import note_on
from byname.tracing.tracer import OpenCalls
from byname.watch.boundary_edges import CallInputs
from byname.watch.call_gradients import follow
from byname.watch.interject import (
    Interjection,
    WrappedForwardBackwardInterjection,
    WrappedForwardInterjection,
    gradients_from,
    process_of,
    tensors_of,
)
from byname.watch.replacement import check_replacement
from byname.watch.value_gradients import LeafHooks


class _RewritingState(threading.local):
    """The state of one thread.

    Attributes:
        running: the interjections, and the models with an example, that are running; what they call is not reported.
        parted: while the compiler traces, the inputs of the modules in place that are running.
        open: the calls of modules with gradients requested that have begun.
    """

    def __init__(self) -> None:
        self.running: list[object] = []
        self.parted: list[torch.Tensor] = []
        self.open: OpenCalls[CallInputs | None] = OpenCalls()


rewriting_state = _RewritingState()


class InterjectionSite:
    """An interjection in a rewritten model; its sites share it, also those of models that are made from this one.

    If it is at operations of a module, `names` are theirs, which may have wildcards.
    """

    def __init__(self, path: str, interjection: Interjection, names: Sequence[str] = ()) -> None:
        self.path = path
        self.names = tuple(names)
        self.interjection = interjection
        self.with_inputs = isinstance(interjection, WrappedForwardInterjection)
        self.with_gradients = isinstance(interjection, WrappedForwardBackwardInterjection)
        self.lasting = LeafHooks()

    def __call__(
        self,
        path: str,
        module: nn.Module | None,
        inputs: tuple[Any, ...],
        value: Any,
        call_inputs: CallInputs | None = None,
    ) -> Any:
        """Return the interjection's replacement for the value of a call; None if it stays.

        If the gradients are requested, `call_inputs` is what `note_inputs` returned when the call began.
        """
        if call_inputs is not None:
            self._await_gradients(path, module, value, call_inputs)
        running, process = rewriting_state.running, process_of(self.interjection)
        running.append(self)
        try:
            new = process(path, module, inputs, value) if self.with_inputs else process(path, module, value)
        except Exception as error:
            note_on(error, f"byname: at `{path}`")
            raise
        finally:
            running.pop()
        if new is None:
            return None
        if type(value) is tuple and torch.compiler.is_compiling():  # it cannot compare tuples by `is`
            return new
        if new is value:
            return None
        check_replacement(path, value, new)
        return new

    @dynamo_skip
    def _await_gradients(self, path: str, module: nn.Module | None, value: Any, call_inputs: CallInputs) -> None:
        """Call the interjection's ``process_backward`` when the gradients of this call are known."""
        interjection: Any = self.interjection
        receive = partial(gradients_from, interjection.process_backward, path, module)
        with defer_signals():  # a hook of a leaf that is not kept would never go
            followed = follow(call_inputs, tensors_of(value), receive)
            if followed is not None:
                self.lasting.keep(path, followed)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "lasting": LeafHooks()}
