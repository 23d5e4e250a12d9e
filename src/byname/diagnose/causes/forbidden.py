"""Forbidden tensors: view-in-place and inference-tensor, which PyTorch refuses for how the tensor was made."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any, TypeGuard

import torch
from torch import nn

from byname.diagnose.causes.out_of_place import instead_of
from byname.diagnose.context import FailureContext, made_at, message_of
from byname.diagnose.failing_expression import FailingExpression, failing_expression
from byname.diagnose.finding import Finding, culprits_of, known_sites
from byname.naming.name import Name, at, quote, unnamed
from byname.reading.frames import locals_of
from byname.reading.objects import attributes_of
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import is_tensor
from byname.source.location import is_torch, locate


def batch_norm_in_vmap(context: FailureContext, error: BaseException) -> Finding | None:
    """Return a finding about the batch norm whose running statistics a function under ``torch.func.vmap`` updates."""
    found = (dict(locals_of(place.frame)).get("self") for place in context.places)
    norm = next((one for one in found if issubclass(type(one), nn.modules.batchnorm._NormBase)), None)
    if norm is None:
        return None
    part = "running_mean" if norm.weight is None else "weight"
    name = context.name(getattr(norm, part))
    outwards = itertools.dropwhile(lambda place: place.frame.f_code.co_name != "vmap_impl", context.places)
    outside = next((place for place in outwards if not is_torch(place.frame.f_code.co_filename)), None)
    mapped = None if outside is None else locate(outside.frame.f_code, outside.instruction).site
    name = replace(name, path=name.path.removesuffix(f".{part}"))
    message = (
        f"the {type(norm).__name__} {quote(name)} updates its running statistics in place{at(context.noticed)}, and "
        f"vmap{at(mapped)} gives it other values for each sample"
    )
    remedy = (
        "call eval() on it, use a GroupNorm in its place, or call torch.func.replace_all_batch_norm_modules_(model), "
        "which drops the running statistics"
    )
    return Finding("batch-norm-in-vmap", message, culprits_of(name), known_sites(context.noticed, mapped), remedy)


def view_in_place(context: FailureContext, error: BaseException) -> Finding | None:
    """Return a finding about one of several views made by one call, such as ``unbind``, that is changed in place."""
    failing, site = failing_expression(context), context.noticed
    if failing is None or site is None:
        return None
    target = _target(failing.node)
    view: Any = None if target is None else failing.value(target)
    if target is None or not is_tensor(view):
        return None
    name = Name(ast.unparse(target), "local", site.function, exact=False)
    told = re.search(r"of (\w+) is a view", message_of(error))
    maker = "one call" if told is None else f"one call of `{told[1].removesuffix('Backward0').lower()}`"
    made = made_at(view)
    message = (
        f"{quote(name)} is one of the views of a tensor that {maker} made{at(made)} (chunk, split, unbind and a loop "
        f"over a tensor make several), and it is changed in place{at(site)}: autograd allows that for single views only"
    )
    operation = failing.node.func.attr if isinstance(failing.node, ast.Call) and _is_method(failing.node.func) else ""
    advice = instead_of(site.statement, operation, name.path, reads_it=False, keeps_graph=False)
    remedy = (
        f"{advice}. The tensor that {name.path} is a part of then keeps its values: collect the new parts and join "
        "them with torch.stack or torch.cat"
    )
    return Finding("view-in-place", message, culprits_of(name), known_sites(made, site), remedy)


def _target(node: ast.AST) -> ast.expr | None:
    """Return the variable that an expression changes: of ``t.sub_(m)``, ``t += m`` and ``t[0] = m`` this is t."""
    changed = node.target if isinstance(node, ast.AugAssign) else node
    if isinstance(node, ast.Call):
        changed = node.func.value if _is_method(node.func) else node
    while isinstance(changed, ast.Subscript):
        changed = changed.value
    return changed if isinstance(changed, ast.Name | ast.Attribute) else None


def _is_method(function: ast.expr) -> TypeGuard[ast.Attribute]:
    return isinstance(function, ast.Attribute)


def hooked_in_place(context: FailureContext, error: BaseException) -> Finding | None:
    """Return a finding about a change in place of what a module with a full backward hook has returned."""
    failing, site = failing_expression(context), context.noticed
    if failing is None or site is None:
        return None
    frames = (dict(locals_of(place.frame)).get("self") for place in context.places)
    layer = next(
        (one for one in frames if issubclass(type(one), nn.Module) and attributes_of(one).get("inplace")), None
    )
    target = _target(failing.node)
    if layer is not None:
        name, what = unnamed(), f"a {type(layer).__name__} with inplace=True"
        advice = f"build the {type(layer).__name__} with inplace=False"
    elif target is not None:
        name = Name(ast.unparse(target), "local", site.function, exact=False)
        operation = (
            failing.node.func.attr if isinstance(failing.node, ast.Call) and _is_method(failing.node.func) else ""
        )
        what, advice = "this line", instead_of(site.statement, operation, name.path, reads_it=False, keeps_graph=False)
    else:
        return None
    message = (
        f"{what}{at(site)} changes in place what a module with a full backward hook has returned: the hook needs a "
        "view there, and autograd does not allow to change that one in place"
    )
    remedy = f"{advice}, or hook the tensor in place of the module: output.register_hook(...) in a forward hook"
    return Finding("view-in-place", message, culprits_of(name), known_sites(site), remedy)


def inference_tensor(context: FailureContext, error: BaseException) -> Finding | None:
    """Return a finding about a tensor that was made under ``torch.inference_mode()`` and is used outside of it."""
    failing = failing_expression(context)
    tensor = None if failing is None else next(_inference_tensors(failing), None)
    if tensor is None:
        return None
    name, made = context.name(tensor), made_at(tensor)
    message = (
        f"{quote(name)} was made under torch.inference_mode(){at(made)}, and is used outside of "
        f"it{at(context.noticed)}: autograd can neither save nor change such a tensor"
    )
    copy = (
        f"put `{name.path} = {name.path}.clone()` on the line before this one" if name.path else "use a .clone() of it"
    )
    if issubclass(type(tensor), nn.Parameter):
        copy = "build the module outside of torch.inference_mode()"
    remedy = f"{copy}, or make it under torch.no_grad() instead of torch.inference_mode()"
    return Finding("inference-tensor", message, culprits_of(name), known_sites(made, context.noticed), remedy)


def _inference_tensors(failing: FailingExpression) -> Iterator[torch.Tensor]:
    """Yield the tensors made in inference mode among what the failing expression reads, modules' parameters last."""
    values = [failing.value(node) for node in ast.walk(failing.node) if isinstance(node, ast.Name | ast.Attribute)]
    modules = [value for value in values if issubclass(type(value), nn.Module)]
    held = [parameter for module in modules for parameter in nn.Module.parameters(module)]
    with DisableTorchFunction():
        yield from [one for one in [*values, *held] if is_tensor(one) and torch.Tensor.is_inference(one)]
