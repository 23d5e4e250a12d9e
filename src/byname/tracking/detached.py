"""Detach points: calls whose inputs require grad and whose result does not, as recorded in a log."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from operator import attrgetter
from types import FrameType
from typing import Any

import torch
from torch.distributions import constraints, distribution

from byname.reading.frames import NO_LINE, Line, is_user_computation, user_line
from byname.reading.functions import tensors_among
from byname.reading.tensor import PLAIN, fact, memory_of
from byname.source.tracebacks import walk_frames
from byname.tracking.log import DataEdit, DetachPoint, Log

ALIASING_PROPERTIES = frozenset("data T mT H mH real imag".split())
"""Names of properties that return a tensor with the values of theirs."""

_MOST_INPUTS = 32
_MOST_CUTS = 4
_LOOKED_BACK = 64
_in_backward = torch._C._current_graph_task_id


def detaches_of_call(
    log: Log,
    name: str,
    inputs: Sequence[Any],
    result: torch.Tensor | None,
    number: int,
    frame: FrameType,
    line: Line | None = None,
) -> tuple[DetachPoint, ...]:
    """Return the detach points behind the result of a call that made no node: the call itself, and those of its inputs.

    Callers hold `DisableTorchFunction`, and know that the result does not require grad.

    Args:
        log: the log that records the call's own detach point.
        name, inputs: the name of the called function, and its arguments.
        result: the resulting tensor, which has no node; None if there was none or several.
        number: the thread's sequence number at the call.
        frame, line: the frame that called, and the user's line if it is known already.
    """
    inherited: tuple[DetachPoint, ...] = ()
    requiring = []
    tensor_records = log.tensor_records
    for tensor in tensors_among(inputs):
        if tensor.requires_grad if type(tensor) in PLAIN else requires_grad(tensor):
            requiring.append(_source_of(tensor))
        record = tensor_records.get(id(tensor))
        if record is not None and record.detaches and record() is tensor and record.detaches is not inherited:
            inherited = _merged((*inherited, *record.detaches)) if inherited else record.detaches
    gradient = name == "grad"  # of autograd.grad(outputs, inputs, grad_outputs, retain_graph, create_graph)
    if not requiring or _copies_no_values(name) or _in_backward() != -1 or not (gradient or is_user_computation(frame)):
        return inherited
    if gradient and any(inputs[4:5]):
        return inherited
    origins = tuple([(weakref.ref(tensor), _number_of(log, tensor)) for tensor in requiring[:_MOST_INPUTS]])
    own = _note_detach(log, name, origins, result, number, line or user_line(frame))
    if own is None:
        return inherited
    return _merged((own, *inherited)) if inherited else (own,)


def note_conversion(log: Log, name: str, tensor: torch.Tensor, number: int, frame: FrameType) -> None:
    """Record that a tensor of the graph, or a detached one, was converted to a Python number or an array."""
    if requires_grad(tensor):
        detaches_of_call(log, name, [tensor], None, number, frame)
        return
    inherited = log.detaches_of(tensor)
    if inherited and _in_backward() == -1 and is_user_computation(frame):
        origins = tuple([one for cut in inherited for one in cut.inputs])[:_MOST_INPUTS]
        _note_detach(log, name, origins, None, number, user_line(frame))


def note_checkpoint(log: Log, results: Any, number: int, frame: FrameType) -> None:
    """Record that a reentrant checkpoint cut off what it computed, since none of its inputs requires grad.

    It runs its part under ``no_grad``, so the results have the detach points of that part. Callers hold
    `DisableTorchFunction`.
    """
    for tensor in tensors_among([results]) if torch.is_grad_enabled() else ():
        record = log.tensor_record_of(tensor)
        if record is None or requires_grad(tensor):
            continue
        inside = [cut for cut in record.detaches if cut.reason == "no_grad"]
        origins = tuple([one for cut in inside for one in cut.inputs])[:_MOST_INPUTS]
        own = (
            _note_detach(log, "checkpoint", origins, tensor, number, user_line(frame), "checkpoint") if inside else None
        )
        if own is not None:
            record.detaches = (own,)


def note_data_assignment(log: Log, tensor: torch.Tensor, frame: FrameType) -> None:
    """Record an assignment to ``.data`` of a tensor that has a node. Callers hold `DisableTorchFunction`."""
    if requires_grad(tensor) and not fact(tensor, "is_leaf"):
        _note_edit(log, _number_of(log, tensor), "data", frame)


def note_data_change(log: Log, tensor: torch.Tensor, name: str, frame: FrameType) -> None:
    """Record a change in place of ``x.data``, or of a part of it, where ``x`` has a node.

    Callers hold `DisableTorchFunction`.
    """
    for cut in log.detaches_of(tensor):
        ((source, number), *_) = cut.inputs
        whole = source() if cut.name == "data" and number >= 0 else None
        if whole is not None and memory_of(whole) is memory_of(tensor):
            _note_edit(log, number, name, frame)


def _note_edit(log: Log, number: int, name: str, frame: FrameType) -> None:
    line = user_line(frame)
    if line is not NO_LINE and _in_backward() == -1:
        log.data_edits.append(DataEdit(number, line, name))


def requires_grad(tensor: torch.Tensor) -> bool:
    """Return whether a tensor requires grad. Callers hold `DisableTorchFunction`."""
    kind = type(tensor)
    return bool(tensor.requires_grad if kind is torch.Tensor or kind in PLAIN else fact(tensor, "requires_grad"))


def checks_a_distribution(frame: FrameType) -> bool:
    """Return whether a frame checks the arguments of a distribution; only the check uses the tensors it makes."""
    if frame.f_code.co_filename != _CONSTRAINTS:
        return False
    files = (one.f_code.co_filename for one in walk_frames(frame))
    return next((file for file in files if file != _CONSTRAINTS), "") == _DISTRIBUTION


_CONSTRAINTS: str = constraints.__file__
_DISTRIBUTION: str = distribution.__file__


def _note_detach(
    log: Log,
    name: str,
    origins: tuple[tuple[weakref.ref[torch.Tensor], int], ...],
    result: torch.Tensor | None,
    number: int,
    line: Line,
    reason: str | None = None,
) -> DetachPoint | None:
    if line is NO_LINE:
        return None
    reference = None if result is None else weakref.ref(result)
    module = log.modules[-1] if log.modules else None
    cut = DetachPoint(number, line, name, _reason() if reason is None else reason, origins, reference, module)
    log.detaches.append(cut)
    return cut


@lru_cache(maxsize=1024)
def _copies_no_values(name: str) -> bool:
    """Return whether a function of this name copies no values from its arguments to a result, or is backward itself."""
    return name in _WITHOUT_VALUES or name.startswith("new_") or name.endswith("_like")


_WITHOUT_VALUES = frozenset("backward __repr__ __format__ result_type register_hook".split())


def _reason() -> str:
    if torch.is_inference_mode_enabled():
        return "inference"
    return "" if torch.is_grad_enabled() else "no_grad"


def _source_of(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor that requires grad; for a view made under ``no_grad``, which counts as a leaf, its base."""
    base = fact(tensor, "_base") if fact(tensor, "is_leaf") else None
    return tensor if base is None or not requires_grad(base) else base


def _number_of(log: Log, tensor: torch.Tensor) -> int:
    """Return the sequence number of a tensor's node, or -1 for a leaf.

    The log is read first, because asking the tensor makes a Python object for the node, and such a node frees the nodes
    behind it recursively.
    """
    if tensor.is_leaf if type(tensor) is torch.nn.Parameter else fact(tensor, "is_leaf"):
        return -1
    reference = weakref.ref(tensor)
    for call in islice(reversed(log.calls), _LOOKED_BACK):
        if call[3] is reference:
            return call[1] - 1
    return int(fact(tensor, "grad_fn")._sequence_nr())


def _merged(cuts: Iterable[DetachPoint]) -> tuple[DetachPoint, ...]:
    """Return at most four detach points at different places, for each place the latest.

    Without a bound, a sum over a million steps would collect ever more of them.
    """
    found: dict[tuple[int, int], DetachPoint] = {}
    for cut in cuts:
        place = (id(cut.line.code), cut.line.instruction)
        if place in found:
            found[place] = max(found[place], cut, key=attrgetter("number"))
        elif len(found) < _MOST_CUTS:
            found[place] = cut
    return tuple(found.values())
