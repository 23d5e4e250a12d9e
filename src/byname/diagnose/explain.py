"""Explain: the cause of an exception of autograd, found from PyTorch's message and the graph behind it."""

from __future__ import annotations

import dis
import sys
from dataclasses import fields
from typing import Any

from byname.diagnose.cause import Cause
from byname.diagnose.causes.checkpoint import CHECKPOINTS
from byname.diagnose.causes.custom_function import CUSTOM_FUNCTIONS
from byname.diagnose.causes.given import GIVEN
from byname.diagnose.causes.in_place import MODIFIED, REFUSED_IN_PLACE
from byname.diagnose.causes.iterations import BACKWARD_TWICE
from byname.diagnose.causes.not_reached import DDP_UNUSED, NO_GRAD_PATH
from byname.diagnose.causes.raised import RAISED
from byname.diagnose.causes.vmap import VMAP
from byname.diagnose.context import FailureContext, context_of
from byname.diagnose.finding import Explanation, explained
from byname.diagnose.nonfinite.backward import ANOMALY
from byname.errors import BadArgumentError, NotAnErrorError
from byname.reading.frames import treat_as_running
from byname.reading.modules import models_of, optimizers_of
from byname.reading.quiet import DisableTorchFunction, collection_paused
from byname.source.location import is_torch


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
    requested = _in_flight() if error is None else error
    if not issubclass(type(requested), BaseException):
        raise NotAnErrorError(f"explain() expects an exception, but got {type(requested).__name__}")
    known = explained(requested)
    if known is not None:
        return known
    with treat_as_running(requested), DisableTorchFunction(), collection_paused():
        context = context_of(requested, models, optimizers)
        causes = ERRORS if context.passed and not _is_raised_by_the_user(context) else ()
        finding = next((finding for cause in causes for finding in cause.findings(context)), None)
    if finding is None:
        sites = () if context.error_site is None else (context.error_site,)
        return Explanation("unknown", f"byname has no explanation for this {type(requested).__name__}", (), sites)
    return Explanation(*(getattr(finding, field.name) for field in fields(finding)))


def _in_flight() -> BaseException:
    error = sys.exc_info()[1] or getattr(sys, "last_value", None)
    if error is None:
        raise BadArgumentError("there is no exception to explain; call explain() in an except block, or pass the error")
    return error


def _is_raised_by_the_user(context: FailureContext) -> bool:
    """Return whether a ``raise`` of the program itself raised the error, whatever its message says."""
    raising = context.passed[0]
    if is_torch(raising.file) or raising.instruction < 0:
        return False
    return dis.opname[raising.code.co_code[raising.instruction]] in ("RAISE_VARARGS", "RERAISE")


ERRORS: tuple[Cause[FailureContext], ...] = (
    *BACKWARD_TWICE,
    *MODIFIED,
    *REFUSED_IN_PLACE,
    *NO_GRAD_PATH,
    DDP_UNUSED,
    *GIVEN,
    *VMAP,
    *RAISED,
    *CUSTOM_FUNCTIONS,
    ANOMALY,
    *CHECKPOINTS,
)
"""The causes of errors, in the order in which they are looked for."""
