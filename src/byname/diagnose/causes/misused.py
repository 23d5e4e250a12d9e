"""Misused tools: gradient-count, gradient-shape, copy-of-graph, scaler-order and the like.

PyTorch's error says which rule was broken; each finding names the tensor, the class or the line that broke it.
"""

from __future__ import annotations

import dis
import re
import sys
from collections.abc import Iterator, Sequence
from inspect import Parameter, signature
from itertools import pairwise
from types import FrameType, FunctionType
from typing import Any

import torch
from torch.utils.checkpoint import CheckpointFunction

from byname.autograd.walk import Walk
from byname.diagnose.context import FailureContext, made_at, message_of
from byname.diagnose.engine import engine_call
from byname.diagnose.failing_expression import value_at
from byname.diagnose.finding import Finding, culprits_of, known_sites
from byname.naming.name import Name, at, quote
from byname.reading.arguments import parameters_of
from byname.reading.frames import caller, line_of, locals_of, programs_frame
from byname.reading.objects import attributes_of, found_in
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact, is_tensor
from byname.source.location import Site, is_library, locate
from byname.table import counted
from byname.tracking.functions import UNSCALE, memory_of
from byname.tracking.log import Change
from byname.tracking.tracker import logs


def gradient_count(context: FailureContext, error: BaseException) -> Finding | None:
    """Return a finding about a custom function whose backward returned another number of gradients than it has inputs.

    The class is known by the node that ran its backward.
    """
    told = re.search(r"function (\w+)Backward returned .* \(expected (\d+), got (\d+)\)", message_of(error))
    custom = None if told is None else _custom_function(context, told[1])
    if told is None or custom is None:
        return None
    wanted, got = int(told[2]), int(told[3])
    returned = _return_of(found_in(custom, "backward"))
    given = _inputs_of(found_in(custom, "forward"))
    inputs = f" ({', '.join(given)})" if len(given) == wanted else ""
    message = (
        f"`{custom.__name__}.backward` returned {counted(got, 'gradient')}{at(returned)}, and its forward has "
        f"{counted(wanted, 'input')}{inputs}: backward returns one for each, in their order, and None for those that "
        "need none"
    )
    remedy = f"return {wanted} gradients in the order of the inputs{inputs}, None where no gradient is needed"
    if got < wanted and returned is not None and returned.statement.startswith("return "):
        remedy += f"; if the last {'one needs' if wanted - got == 1 else f'{wanted - got} need'} none: "
        remedy += f"`{returned.statement}{', None' * (wanted - got)}`"
    culprit = Name(f"{custom.__name__}.backward", "attribute", exact=False)
    return Finding("gradient-count", message, (culprit,), known_sites(returned, context.noticed), remedy)


def _custom_function(context: FailureContext, name: str) -> Any:
    """Return the only class of a custom function with this name in the graph of a failure, or None."""
    with DisableTorchFunction():
        kinds = {type(node) for node in context.walk.nodes[1:]} if context.has_graph else set()
    classes = {
        kind._forward_cls for kind in kinds if kind.__name__ == f"{name}Backward" and hasattr(kind, "_forward_cls")
    }
    return classes.pop() if len(classes) == 1 else None


def gradient_shape(context: FailureContext, error: BaseException) -> Finding | None:
    """Return a finding about a custom function whose backward returned a gradient of another shape than its input."""
    told = re.search(
        r"Function (\w+)Backward returned an invalid gradient at index (\d+) - got (\[.*?\]) but expected shape "
        r"compatible with (\[.*?\])",
        message_of(error),
    )
    custom = None if told is None else _custom_function(context, told[1])
    if told is None or custom is None:
        return None
    number, got, wanted = int(told[2]), told[3], told[4]
    given = _inputs_of(found_in(custom, "forward"))
    which = f"`{given[number]}`" if number < len(given) else f"number {number + 1}"
    returned = _return_of(found_in(custom, "backward"))
    message = (
        f"`{custom.__name__}.backward` returned{at(returned)} a gradient of shape {got} for its input {which}, which "
        f"has shape {wanted}: a gradient has the shape of its input"
    )
    remedy = (
        f"return one of shape {wanted}: where forward has summed, backward expands (grad.unsqueeze(dim).expand(...)), "
        "and where it has broadcast, backward sums (grad.sum_to_size(...))"
    )
    culprit = Name(f"{custom.__name__}.backward", "attribute", exact=False)
    return Finding("gradient-shape", message, (culprit,), known_sites(returned, context.noticed), remedy)


def _function(attribute: Any) -> FunctionType | None:
    held = getattr(attribute, "__func__", attribute)
    return held if type(held) is FunctionType else None


def _return_of(attribute: Any) -> Site | None:
    """Return the line of the only return statement of a method, or None."""
    function = _function(attribute)
    if function is None:
        return None
    code, before, offsets = function.__code__, 0, []
    for one in dis.get_instructions(code):
        if one.opname.startswith("RETURN_"):
            offsets.append(before)  # of the expression that is returned
        before = one.offset
    sites = {(site := locate(code, offset).site).line: site for offset in offsets}
    return next(iter(sites.values())) if len(sites) == 1 else None


def _inputs_of(attribute: Any) -> list[str]:
    """Return the names of the inputs of a function's forward, without its context; none if their number varies."""
    function = _function(attribute)
    parameters = [] if function is None else list(signature(function).parameters.values())
    varies = any(one.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD) for one in parameters)
    return [] if varies else [one.name for one in parameters if one.name != "ctx"]


def copy_of_graph(context: FailureContext, error: BaseException) -> Finding | None:
    """Return a finding about the result of an operation that ``copy.deepcopy`` met, and that only a leaf can be."""
    frames = (place.frame for place in context.places if place.frame.f_code.co_name == "__deepcopy__")
    tensor = next((found for frame in frames if is_tensor(found := dict(locals_of(frame)).get("self"))), None)
    if tensor is None:
        return None
    name, made, called = context.name(tensor), made_at(tensor), context.noticed
    message = (
        f"copy.deepcopy{at(called)} met {quote(name)}, which belongs to a graph: it was computed{at(made)}, and only "
        "tensors that the program made itself can be copied so"
    )
    path = name.path if not name.relation and value_at(context, name.path) is tensor else ""
    if made is not None and (made.target or "").startswith("self."):  # other objects of the class have one, too
        remedy = (
            f"where it is stored{at(made)}, go on computing with a variable, and store only its values, `{made.target} "
            "= variable.detach()`"
        )
    elif path:
        remedy = f"put `{path} = {path}.detach()` before the copy, which drops its graph"
    else:
        remedy = "keep it without its graph, as by .detach(), or drop it before the copy"
    return Finding("copy-of-graph", message, culprits_of(name), known_sites(made, called), remedy)


def scaler_order(context: FailureContext, error: BaseException) -> Finding | None:
    """Return a finding about a ``GradScaler`` whose methods are called in a wrong order."""
    called = next(_calls_of_scaler(context), None)
    if called is None:
        return None
    method, optimizer = called
    site, message = context.noticed, message_of(error)
    if "unscale_() has already" in message:
        what = f"unscale_(){at(site)} is called again for an optimizer without an update() between"
        once = "call unscale_(optimizer) once before each scaler.step(optimizer), and `scaler.update()` after the step"
        return _order(what, (site,), once)
    if "after step()" in message:
        what = f"unscale_(){at(site)} comes after step(): gradients are unscaled, and clipped, before the step"
        return _order(what, (site,), "put unscale_() and what follows it, such as clip_grad_norm_, before the step()")
    if "step() has already" in message:
        return _order(
            f"step(){at(site)} is called again for an optimizer without an update() between", (site,), _UPDATE
        )
    if "_scale is None" in message:
        what = f"{method}(){at(site)} is called before the first scale()"
        return _order(what, (site,), "call scaler.scale(loss).backward() in place of loss.backward()")
    return _without_gradients(method, optimizer, site)


def _without_gradients(method: str, optimizer: Any, site: Site | None) -> Finding | None:
    """Return a finding about a step for which the scaler has found no gradients, if there are none."""
    with DisableTorchFunction():
        parameters = [] if optimizer is None else parameters_of(optimizer)
        if not parameters or any(fact(one, "grad") is not None for one in parameters):
            return None
    what = (
        f"{method}(){at(site)} finds no gradient to look at: none of the {counted(len(parameters), 'parameter')} of "
        f"this {type(optimizer).__name__} has a .grad"
    )
    remedy = (
        "call scaler.scale(loss).backward() before it, for a loss that is computed from these parameters, and "
        "zero_grad() not between the backward and the step"
    )
    return _order(what, (site,), remedy)


_UPDATE = "call `scaler.update()` once in each iteration, after the last scaler.step(...)"


_CLIPS = re.compile(r"\bclip_grad\w*\(")


def clipped_too_soon(optimizer: Any) -> Finding | None:
    """Return a finding about gradients clipped before the ``GradScaler`` that is about to step divided them."""
    with DisableTorchFunction():
        scale = _scale_of_step()
        clip = None if scale == 1 else _before_unscaling(optimizer)
    if clip is None or clip.code is None or not {"get_scale", "_scale"}.isdisjoint(clip.code.co_names):
        return None
    site = locate(clip.code, clip.instruction, clip.caller).site
    if is_library(site.file) or not _CLIPS.search(site.statement):
        return None
    code, instruction, outer = line_of(programs_frame(caller()))
    step = None if code is None else locate(code, instruction, outer)
    beside = step if code is clip.code else None  # its names are known there
    scaler, given = (beside.receiver, (*beside.operands, None)[0]) if beside is not None else (None, None)
    what = f"`{site.statement}`{at(site)} clips gradients that are still multiplied by the scale, {scale:g}"
    remedy = f"call `{scaler or 'scaler'}.unscale_({given or 'optimizer'})` on the line before it, after the backward"
    return _order(what, (site, None if step is None else step.site), remedy)


def _scale_of_step() -> float:
    """Return the scale of the ``GradScaler`` that makes the step which is about to run; 1 if there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not torch.amp.GradScaler.step.__code__:
        frame = frame.f_back
    scale: Any = None if frame is None else attributes_of(dict(locals_of(frame)).get("self")).get("_scale")
    return float(scale) if is_tensor(scale) else 1.0


def _before_unscaling(optimizer: Any) -> Change | None:
    """Return the last change of an optimizer's gradients before the last division by a scale, if there are both."""
    grads = [fact(one, "grad") for one in parameters_of(optimizer)]
    memory = {id(one): one for one in [memory_of(grad) for grad in grads if grad is not None]}
    every = (Change(*raw) for log in logs() if log.of_this_thread() for raw in reversed(log.changes))
    mine = (one for one in every if any(id(storage()) in memory for storage in one.storages))
    return next((before for one, before in pairwise(mine) if one.operation == UNSCALE), None)


def _order(message: str, sites: Sequence[Site | None], remedy: str) -> Finding:
    return Finding("scaler-order", f"GradScaler: {message}", (), known_sites(*sites), remedy)


def _calls_of_scaler(context: FailureContext) -> Iterator[tuple[str, Any]]:
    """Yield the methods of a ``GradScaler`` that an error passed, the outermost first, with the optimizer given."""
    for place in reversed(context.places):
        found = dict(locals_of(place.frame)) if place.frame.f_code.co_filename == _SCALERS_FILE else {}
        if issubclass(type(found.get("self")), torch.amp.GradScaler):
            yield place.frame.f_code.co_name, found.get("optimizer")


_SCALERS_FILE = torch.amp.grad_scaler.__file__


def ddp_ready_twice(context: FailureContext, error: BaseException) -> Finding | None:
    """Return a finding about a block that runs in several reentrant checkpoints under ``DistributedDataParallel``."""
    calls = [call for place in context.places if (call := engine_call(place.frame)) is not None]
    outer = FailureContext(calls[-1][0]) if calls else context
    with DisableTorchFunction():
        numbers = _repeated(outer.walk) if outer.has_graph else []
    if not numbers:
        return None
    sites = list(dict.fromkeys(site for number in reversed(numbers) if (site := outer.site(number)) is not None))
    told = re.search(r"with name ([\w.]+) has been marked", message_of(error))
    name = Name("" if told is None else f"module.{told[1]}", "parameter", exact=False)
    whose = f"`{told[1]}`" if told is not None else "a parameter"
    where = at(sites[0] if sites else None)
    message = (
        f"DistributedDataParallel got the gradient of {whose} twice in one backward: a part of the model runs "
        f"{counted(len(numbers), 'time')} in a reentrant checkpoint{where}, each of which runs a backward of its own"
    )
    remedy = (
        "pass use_reentrant=False to checkpoint(), or static_graph=True to DistributedDataParallel if every iteration "
        "computes the same graph"
    )
    return Finding("ddp-ready-twice", message, culprits_of(name), known_sites(*sites, outer.noticed), remedy)


def _repeated(walk: Walk) -> list[int]:
    """Return the nodes of the reentrant checkpoints that run a block which another one runs, too."""
    blocks: dict[int, list[int]] = {}
    for number, node in enumerate(walk.nodes):
        if number and getattr(type(node), "_forward_cls", None) is CheckpointFunction:
            blocks.setdefault(id(node.run_function), []).append(number)
    return max(blocks.values(), key=len) if any(len(same) > 1 for same in blocks.values()) else []


def graph_in_worker(context: FailureContext, error: BaseException) -> Finding | None:
    """Return a finding about a data set that gives tensors with a graph to the workers of a ``DataLoader``."""
    iterators = (
        held
        for place in context.places
        if (held := dict(locals_of(place.frame)).get("self")) is not None and hasattr(held, "_dataset")
    )
    iterator = next(iterators, None)
    if iterator is None:
        return None
    kind = type(iterator._dataset)
    function = _function(found_in(kind, "__getitem__"))
    site = None if function is None else locate(function.__code__, 0).site
    message = (
        f"`{kind.__name__}` gives the workers of the DataLoader{at(context.noticed)} tensors that require grad, and no "
        "graph can go from one process to another"
    )
    remedy = (
        f"return them without a graph: .detach() in `{kind.__name__}.__getitem__`, or compute them there under "
        "torch.no_grad(); if the loss has to reach what computes them, compute it in the training loop"
    )
    culprit = Name(f"{kind.__name__}.__getitem__", "attribute", exact=False)
    return Finding("graph-in-worker", message, (culprit,), known_sites(site, context.noticed), remedy)
