"""Engine: a wrapper around autograd's backward engine that notifies listeners, and marks of its runs on nodes.

``Tensor.backward``, ``autograd.backward``, ``autograd.grad``, and the training libraries all call
``torch.autograd.graph._engine_run_backward``. `ENGINE` wraps it while there are listeners, and restores it after the
last. If a version of PyTorch has no such function, listeners are never notified and nothing breaks.
"""

from __future__ import annotations

import functools
import itertools
import logging
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from types import FrameType
from typing import Any, NamedTuple, TypeAlias

import torch

from byname.autograd.order import nodes_leading_to
from byname.autograd.slots import has_freed_slot
from byname.autograd.walk import ACCUMULATE, Node, has_graph, leaf_tensors, nodes_behind
from byname.memory.oom import RESERVE
from byname.reading.frames import Line, reported_frame, user_line
from byname.reading.quiet import DisableTorchFunction, collection_paused, dynamo_skip
from byname.reading.tensor import fact, is_tensor
from byname.tracking.lookup import SiteLookup
from byname.undo import Patch, Shared


class BackwardCall(NamedTuple):
    """One backward call of the engine, as plain facts: it holds no tensor and no node."""

    number: int  # of earlier recorded runs in the process
    line: Line  # the user's line that started it
    sequence: int  # autograd's sequence number of the thread at its start
    thread: int  # the thread's identifier
    frees: bool  # it frees the saved tensors of the graph: no ``retain_graph=True``
    partial: bool  # it computes the gradients of some inputs only
    creates: bool = False  # it makes a graph of the gradients: ``create_graph=True``


EndCallback: TypeAlias = Callable[[BaseException | None], None]
"""A function that the engine's wrapper calls after a run, with its error or None."""


Listener: TypeAlias = Callable[[BackwardCall, Sequence[Any], Sequence[Any]], EndCallback | None]
"""A function that is called at the start of each run of the engine, in any thread, with its roots and inputs."""


class _Engine(Shared):
    """The wrapper around the engine's function. Its holders are listeners, which it calls at every run."""

    def __init__(self) -> None:
        super().__init__(self._wrap, self._unwrap)
        self._patches = [Patch(owner, _NAME, self._engine_wrapper) for owner in (torch.autograd, torch.autograd.graph)]
        self._numbers = itertools.count()

    def _wrap(self) -> None:
        for patch in self._patches:
            patch.install()

    def _unwrap(self) -> None:
        for patch in reversed(self._patches):
            patch.remove()

    def _engine_wrapper(self, original: Callable[..., Any]) -> Callable[..., Any]:
        @dynamo_skip
        @functools.wraps(original)
        def engine_run_backward(t_outputs: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
            ended: list[EndCallback] = []
            try:
                run, inputs = self._describe_run(args)
                for listener in self.holders:
                    end = safely(listener, run, t_outputs, inputs)
                    ended[:0] = [] if end is None else [end]
                result = original(t_outputs, *args, **kwargs)
            except BaseException as error:
                for one in ended:
                    safely(one, error)
                raise
            for one in ended:
                safely(one, None)
            return result

        return engine_run_backward

    def _describe_run(self, args: Sequence[Any]) -> tuple[BackwardCall, Sequence[Any]]:
        retains, creates, inputs = _options(args)
        line = user_line(reported_frame(sys._getframe(1)))
        sequence, thread = torch._C._autograd._get_sequence_nr(), threading.get_ident()
        number = next(self._numbers)
        return BackwardCall(number, line, sequence, thread, not retains, bool(inputs), creates), inputs


_NAME = "_engine_run_backward"


def _options(args: Sequence[Any]) -> tuple[bool, bool, Sequence[Any]]:
    """Return ``retain_graph``, ``create_graph`` and ``inputs`` from the positional arguments after the roots."""
    if len(args) < 4 or type(args[3]) not in (tuple, list):
        return True, False, ()
    return bool(args[1]), bool(args[2]), args[3]


def safely(function: Callable[..., Any], *args: Any) -> Any:
    """Call one of byname's own functions past function modes; log an exception, so that the program does not fail."""
    try:
        with DisableTorchFunction():
            return function(*args)
    except MemoryError:
        RESERVE.give_back()
        logging.getLogger("byname").warning("byname had no memory left to look at a backward")
        return None
    except Exception:  # the user's training must go on, whatever goes wrong in byname
        logging.getLogger("byname").warning("byname could not look at a backward", exc_info=True)
        return None


def engine_call(frame: FrameType) -> tuple[Sequence[Any], Sequence[Any]] | None:
    """Return the roots and inputs of a call of the engine, read from its frame; None for any other frame."""
    if frame.f_code is not _ORIGINAL_CODE:
        return None
    found = frame.f_locals
    return found["t_outputs"], _options(found["args"])[2]


_ORIGINAL_CODE = getattr(getattr(torch.autograd.graph, _NAME, None), "__code__", None)

ENGINE = _Engine()
"""The only instance in the process, because it wraps a process-wide function; it is empty without listeners."""


_FREED, _FIRST, _CREATED = "byname: freed by", "byname: first run", "byname: created by"


def stamp(run: BackwardCall, roots: Sequence[Any], inputs: Sequence[Any], failed: bool) -> None:
    """Mark the nodes that a backward call has run or freed with that call.

    A failed run freed the nodes that are now freed, unless they were freed earlier. Only nodes made under a tracker
    are marked then, since an earlier run that freed them would be on record.
    """
    with DisableTorchFunction(), collection_paused():
        behind = [root for root in roots if has_graph(root)]
        gradients = [fact(one, "grad") for one in leaf_tensors(nodes_behind(behind))] if behind and run.creates else []
        for node in [fact(one, "grad_fn") for one in gradients if one is not None]:
            if node is not None:  # the gradient of a leaf has a graph of its own
                node.metadata.setdefault(_CREATED, run)
        key = _FREED if run.frees or failed else _FIRST
        for node in _ran(behind, inputs, failed) if behind else ():
            # The node of a leaf lives as long as the leaf and has nothing to free.
            if type(node) is not ACCUMULATE:
                node.metadata.setdefault(key, run)


def _ran(roots: Sequence[Any], inputs: Sequence[Any], failed: bool) -> Iterable[Node]:
    """Return the nodes that a run has certainly run."""
    if inputs:
        return () if failed else nodes_leading_to(roots, inputs)
    nodes = nodes_behind(roots)
    if not failed:
        return nodes
    lookup = SiteLookup([root for root in roots if is_tensor(root)], set(nodes).__contains__)
    return [node for node in nodes if has_freed_slot(node) and lookup.call(node) is not None] if lookup else []


def creating_run(gradient: torch.Tensor) -> BackwardCall | None:
    """Return the run that left a gradient with a graph of its own; None when unknown."""
    run: BackwardCall | None = fact(gradient, "grad_fn").metadata.get(_CREATED)
    return run


def freed_by(node: Node) -> BackwardCall | None:
    """Return the run that freed the saved tensors of a node; None when unknown."""
    run: BackwardCall | None = node.metadata.get(_FREED)
    return run


def first_run(node: Node) -> BackwardCall | None:
    stamps = node.metadata
    run: BackwardCall | None = stamps.get(_FIRST) or stamps.get(_FREED)
    return run
