"""Explain: the cause of an exception of autograd, found from PyTorch's message and the graph behind it."""

from __future__ import annotations

import dis
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import torch

from byname.diagnose.causes.checkpoint import checkpoint_mismatch
from byname.diagnose.causes.in_place import leaf_in_place, modified
from byname.diagnose.causes.iterations import backward_twice
from byname.diagnose.causes.not_reached import no_grad_path
from byname.diagnose.causes.raised import (
    batch_norm_in_vmap,
    copy_of_graph,
    ddp_ready_twice,
    ddp_unused,
    empty_optimizer,
    gradient_count,
    gradient_shape,
    graph_in_worker,
    hooked_in_place,
    inference_tensor,
    input_without_grad,
    no_derivative,
    non_leaf_grad,
    non_scalar_backward,
    numpy_of_graph,
    scaler_order,
    unused_input,
    view_in_place,
)
from byname.diagnose.context import FailureContext, context_of, message_of
from byname.diagnose.finding import Explanation, Finding, explained, known_sites
from byname.diagnose.nonfinite.backward import anomaly
from byname.errors import BadArgumentError, NotAnErrorError
from byname.memory.oom import what_fills_the_memory
from byname.naming.name import at
from byname.reading.arguments import models_of, optimizers_of
from byname.reading.frames import revisiting
from byname.reading.quiet import collection_paused
from byname.source.location import is_torch
from byname.table import bytes_text


def explain(error: BaseException | None = None, *, model: Any = None, optimizer: Any = None) -> Explanation:
    """Return why autograd raised an exception, in the program's own words.

    No preparation is needed: the graph is read from the exception's traceback. Inside `explaining`, or with the log of
    a `track`, the explanation also names the line that changed, freed or cut off a tensor.

    Args:
        error: the exception; by default the one that is being handled, or the last one that reached the prompt.
        model: the model concerned, or a list of them; names are searched there first.
        optimizer: the optimizer concerned, or a list of them.

    Returns:
        An `Explanation`. If byname does not know the cause, it is ``"unknown"`` and there are no culprits.

    Raises:
        BadArgumentError: no error was given, and none is being handled.
        NotAnErrorError, NotAModuleError, NotAnOptimizerError: an argument is of another type.

    >>> import byname, torch
    >>> weight = torch.ones(3, requires_grad=True)
    >>> with byname.track():
    ...     h = weight.exp()
    ...     h += 1
    ...     try:
    ...         h.sum().backward()
    ...     except RuntimeError as error:
    ...         why = byname.explain(error)
    >>> why.cause, str(why.culprits[0]), why.sites[1].statement
    ('modified-in-place', 'h', 'h += 1')
    """
    models, optimizers = models_of(model), optimizers_of(optimizer)
    asked = _in_flight() if error is None else error
    if not issubclass(type(asked), BaseException):
        raise NotAnErrorError(f"explain() expects an exception, but got {type(asked).__name__}")
    known = explained(asked)
    if known is not None:
        return known
    with revisiting(asked), collection_paused():
        context = context_of(asked, models, optimizers)
        finding = _understood(asked, context)
    if finding is None:
        return Explanation(
            "unknown", f"byname has no explanation for this {type(asked).__name__}", (), known_sites(context.noticed)
        )
    return Explanation(*(getattr(finding, field.name) for field in fields(finding)))


def _in_flight() -> BaseException:
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if error is None:
        raise BadArgumentError("there is no exception to explain; call explain() in an except block, or pass the error")
    return error


_Explains = Callable[[FailureContext, BaseException], Finding | None]


def _understood(error: BaseException, context: FailureContext) -> Finding | None:
    """Return the first finding whose pattern is in the error's message and whose evidence is found."""
    message = message_of(error)
    if not context.places or _is_raised_by_the_user(context):
        return None
    for kinds, words, explains in _KNOWN:
        if issubclass(type(error), kinds) and re.search(words, message, re.DOTALL):
            finding = explains(context, error)
            if finding is not None:
                return finding
    return None


def _is_raised_by_the_user(context: FailureContext) -> bool:
    """Return whether a ``raise`` of the program itself raised the error, whatever its message says."""
    if is_torch(context.places[0].frame.f_code.co_filename):
        return False
    code, instruction = context.places[0].frame.f_code, context.places[0].instruction
    return instruction >= 0 and dis.opname[code.co_code[instruction]] in ("RAISE_VARARGS", "RERAISE")


def _modified(context: FailureContext, error: BaseException) -> Finding | None:
    return next(iter(modified(context, message_of(error))), None)


def _out_of_memory(context: FailureContext, error: BaseException) -> Finding:
    """Return a finding about the line that ran out of memory, with the tensors that are alive now."""
    message = f"there was not enough memory left for {_asked(message_of(error))}{at(context.noticed)}"
    remedy = (
        "let go of what is no longer needed: byname.growth() tells what grows from step to step, "
        "byname.holders(tensor) what keeps a tensor alive; smaller batches and checkpoints save less for backward"
    )
    return Finding("out-of-memory", message, (), known_sites(context.noticed), remedy, what_fills_the_memory())


def _asked(message: str) -> str:
    """Return the amount of memory that was asked for, as words; the message may tell it."""
    found = re.search(r"[Tt]ried to allocate ([\d.]+) (bytes|[KMGT]iB)", message)
    if found is None:
        return "what was asked for"
    return f"the {bytes_text(int(found[1]))}" if found[2] == "bytes" else f"the {found[1]} {found[2]}"


_KNOWN: Sequence[tuple[type[BaseException] | tuple[type[BaseException], ...], str, _Explains]] = (
    (RuntimeError, r"backward through the graph a second time|saved tensors after they have", backward_twice),
    (RuntimeError, r"has been modified by an inplace operation", _modified),
    (RuntimeError, r"leaf Variable that requires grad is being used in an in-place", leaf_in_place),
    (RuntimeError, r"is a view and is being modified inplace.*returns multiple views", view_in_place),
    (RuntimeError, r"of BackwardHookFunction\w* is a view and is being modified inplace", hooked_in_place),
    (RuntimeError, r"[Ii]nference tensors? (cannot be saved|outside InferenceMode)", inference_tensor),
    (RuntimeError, r"element \d+ of (tensors|the tensors) does not require grad", no_grad_path),
    (RuntimeError, r"differentiated Tensor.* not have been used in the graph", unused_input),
    (RuntimeError, r"differentiated Tensors does not require grad", input_without_grad),
    (RuntimeError, r"implicitly created only for scalar outputs", non_scalar_backward),
    (RuntimeError, r"Can't call numpy\(\) on Tensor that requires grad", numpy_of_graph),
    (ValueError, r"optimizer got an empty parameter list", empty_optimizer),
    (RuntimeError, r"returned nan values in its \d+th output", anomaly),
    (RuntimeError, r"finished reduction in the prior iteration", ddp_unused),
    (RuntimeError, r"mark a variable ready only once", ddp_ready_twice),
    (RuntimeError, r"returned an incorrect number of gradients", gradient_count),
    (RuntimeError, r"returned an invalid gradient at index \d+ - got", gradient_shape),
    (RuntimeError, r"[Bb]atch norm got a batched tensor as input while the running", batch_norm_in_vmap),
    (RuntimeError, r"derivative for '.*' is not implemented", no_derivative),
    (RuntimeError, r"support the deepcopy protocol", copy_of_graph),
    (RuntimeError, r"(unscale_|step)\(\) (has already been called|is being called after step)", scaler_order),
    (AssertionError, r"No inf checks were recorded|_scale is None", scaler_order),
    (RuntimeError, r"DataLoader worker.*(support automatic differentiation|serialize non-leaf)", graph_in_worker),
    (torch.OutOfMemoryError, r"", _out_of_memory),
    (RuntimeError, r"not enough memory: you tried to allocate|can't allocate memory", _out_of_memory),
    (MemoryError, r"", _out_of_memory),
    (RuntimeError, r"torch\.utils\.checkpoint", checkpoint_mismatch),
    (ValueError, r"can't optimize a non-leaf Tensor", non_leaf_grad),
    ((TypeError, AttributeError, UserWarning), r"NoneType|attribute of a Tensor that is not a leaf", non_leaf_grad),
)
"""The known errors, by type and message pattern (PyTorch 2.7 to 2.13), with the function that explains each."""
