"""Vmap: causes of errors in a function under ``torch.func.vmap``, and the norm that an error is of."""

from __future__ import annotations

import ast
import itertools
from collections.abc import Iterator
from dataclasses import replace

from torch import nn

from byname.diagnose.cause import Cause, Facts, Raised, variable
from byname.diagnose.context import FailureContext
from byname.naming.name import unnamed
from byname.reading.tensor import is_tensor
from byname.source.location import is_torch, locate


def _mapped(context: FailureContext) -> Facts:
    """Return the line of the program that called ``torch.func.vmap``."""
    stack_frames = itertools.dropwhile(lambda one: one.code.co_name != "vmap_impl", context.passed)
    outside = next((one for one in stack_frames if not is_torch(one.file)), None)
    return {"mapped": None if outside is None else locate(outside.code, outside.instruction).site}


def _norm_in_vmap(context: FailureContext) -> Iterator[Facts]:
    """Yield the batch norm whose running statistics a function under ``torch.func.vmap`` updates."""
    more = {"updated": context.error_site, "noticed": None, **_mapped(context)}
    return ({**facts, **more} for facts in norm_called(context))


def norm_called(context: FailureContext) -> Iterator[Facts]:
    """Yield the batch norm, or instance norm, that raised the error."""
    for norm in itertools.islice(context.selves(nn.modules.batchnorm._NormBase), 1):
        part = next((one for one in ("weight", "running_mean") if getattr(norm, one) is not None), "")
        name = context.name(getattr(norm, part)) if part else unnamed()
        yield {"kind": type(norm).__name__, "norm": replace(name, path=name.path.removesuffix(f".{part}"))}


def _value_in_vmap(context: FailureContext) -> Iterator[Facts]:
    """Yield the variables whose values, or places, Python asks for in a function under ``torch.func.vmap``."""
    parts = [node for failing, node in context.failing_parts() if is_tensor(failing.value(node))]
    paths = dict.fromkeys(ast.unparse(node) for node in parts if isinstance(node, ast.Name | ast.Attribute))
    yield {"tensors": tuple(map(variable, paths)) or "a tensor", **_mapped(context)}


def _random_in_vmap(context: FailureContext) -> Iterator[Facts]:
    """Yield the layer or the call that draws random numbers in a function under ``torch.func.vmap``."""
    layers = [type(one).__name__ for one in context.selves(nn.Module) if type(one).__module__.startswith("torch.nn.")]
    more = {"drawn": context.error_site, "noticed": None, **_mapped(context)}
    yield {"layer": f"a {layers[0]}" if layers else "this line", **more}


# fmt: off
VMAP: tuple[Cause[FailureContext], ...] = (
    Cause("batch-norm-in-vmap", Raised(RuntimeError, r"[Bb]atch norm got a batched tensor as input while the running"),
        _norm_in_vmap,
        "the {kind} {norm} updates its running statistics in place{updated:at}, and vmap{mapped:at} gives it other "
        "values for each sample",
        "call eval() on it, use a GroupNorm in its place, or call torch.func.replace_all_batch_norm_modules_(model), "
        "which drops the running statistics"),
    Cause("value-in-vmap", Raised(RuntimeError, r"vmap: (?:It looks like you're|We do not support batching oper)"),
        _value_in_vmap,
        "the line{noticed:at} needs the values of {tensors} for an `if`, a Python number, a mask or positions, and "
        "under vmap{mapped:at} there is one for each sample",
        "compute the same for all samples: torch.where(condition, a, b) in place of an `if` or a mask, and no .item(), "
        "float() or nonzero(); what is for logs can be returned, as by torch.func.grad(..., has_aux=True)"),
    Cause("random-in-vmap", Raised(RuntimeError, r"vmap: called random operation while in randomness error mode"),
        _random_in_vmap,
        "{layer} draws random numbers{drawn:at}, and vmap{mapped:at} does not know whether all samples shall get the "
        "same ones",
        "call it as vmap(..., randomness='different'), or 'same'; or call eval() on the model if it shall draw none"),
)
# fmt: on
"""Causes of errors that vmap raises."""
