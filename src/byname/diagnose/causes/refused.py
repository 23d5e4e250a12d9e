"""Refused calls: non-scalar-backward, input-without-grad, unused-input, numpy-of-graph, empty-optimizer, no-derivative.

PyTorch refuses these calls for what they were given. Each finding names that, and what to write instead.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from types import GeneratorType
from typing import Any

import torch
from torch import nn

from byname.autograd.order import node_of_input
from byname.autograd.walk import Walk, leaf_tensors, nodes_behind
from byname.diagnose.context import FailureContext, made_at, message_of
from byname.diagnose.failing_expression import failing_expression
from byname.diagnose.finding import Finding, culprits_of, known_sites
from byname.naming.name import Name, at, quote, quote_all
from byname.reading.frames import locals_of
from byname.reading.modules import plain_containers
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact, is_tensor
from byname.table import counted


def non_scalar_backward(context: FailureContext, error: BaseException) -> Finding | None:
    """Return a finding about the tensor of several elements on which backward was called."""
    outputs = next((found["outputs"] for found in _variables_of(context, "_make_grads") if "outputs" in found), ())
    with DisableTorchFunction():
        several = (one for one in outputs if is_tensor(one) and fact(one, "grad_fn") is not None and one.numel() != 1)
        root = next(several, None)
    if root is None:
        return None
    name, made = context.name(root), made_at(root)
    it = name.path if name.exact and name.path else "loss"
    message = (
        f"backward{at(context.noticed)} starts from {quote(name)}, which has {counted(root.numel(), 'element')} (shape "
        f"{tuple(root.shape)}): it starts from a single number, unless it is given a gradient for each element"
    )
    remedy = (
        f"make it one number first: {it}.mean().backward() or {it}.sum().backward(); a loss function does so with "
        "reduction='mean'"
    )
    return Finding("non-scalar-backward", message, culprits_of(name), known_sites(made, context.noticed), remedy)


def unused_input(context: FailureContext, error: BaseException) -> Finding | None:
    """Return a finding about the inputs of ``autograd.grad`` that the outputs do not depend on."""
    with DisableTorchFunction():
        unused = [one for one in context.inputs if is_tensor(one) and node_of_input(one) not in context.walk.numbers]
        if not unused:
            return None
        names = tuple(context.names(unused))
        named = context.names([root for root in context.roots if is_tensor(root)])
    outputs = quote_all([name for name in named if name.path]) or "the outputs"
    message = f"{quote_all(names)} {'is' if len(names) == 1 else 'are'} not used in computing {outputs}"
    remedy = (
        "pass materialize_grads=True (their gradient is then zeros), or leave them out; with allow_unused=True alone "
        "it is None, which arithmetic refuses"
    )
    part = unused[0] if len(unused) == 1 else None
    whole = None if part is None else _used_whole(context, part)
    if part is None or whole is None:
        return Finding("unused-input", message, names, known_sites(context.noticed), remedy)
    it, made, made_part = context.name(whole), made_at(part), quote(names[0])
    message += f": {quote(it)} is, and {made_part} was computed from it{at(made)} beside that"
    remedy = (
        f"ask for the gradient with respect to {quote(it)} and take its part, or compute {outputs} from "
        f"{made_part}, as by torch.cat of the slices"
    )
    return Finding("unused-input", message, culprits_of(*names, it), known_sites(made, context.noticed), remedy)


def _used_whole(context: FailureContext, part: torch.Tensor) -> torch.Tensor | None:
    """Return the leaf that outputs are computed from, and from which an unused input was computed beside them."""
    with DisableTorchFunction():
        if fact(part, "grad_fn") is None:
            return None
        behind = leaf_tensors(nodes_behind([part]))
        used = {id(leaf) for leaf in leaf_tensors(context.walk.nodes[1:])}
        return behind[0] if len(behind) == 1 and id(behind[0]) in used else None


def input_without_grad(context: FailureContext, error: BaseException) -> Finding | None:
    """Return a finding about the input of ``autograd.grad`` that does not require grad."""
    with DisableTorchFunction():
        asked = next((one for one in context.inputs if is_tensor(one) and not fact(one, "requires_grad")), None)
    if asked is None:
        return None
    name, made = context.name(asked), made_at(asked)
    it = name.path if name.exact and name.path else "it"
    message = (
        f"a gradient{at(context.noticed)} is asked for {quote(name)}, which does not require grad: nothing that it was "
        "computed from does, or it was detached or made under torch.no_grad()"
    )
    remedy = f"call {it}.requires_grad_() when it is made, before it is used" if it != "it" else _REQUIRE_FIRST
    return Finding("input-without-grad", message, culprits_of(name), known_sites(made, context.noticed), remedy)


_REQUIRE_FIRST = "call requires_grad_() on it when it is made, before it is used"


def numpy_of_graph(context: FailureContext, error: BaseException) -> Finding | None:
    """Return a finding about the tensor with a graph whose values were asked for as a NumPy array."""
    asked = (found["self"] for found in _variables_of(context, "__array__") if is_tensor(found.get("self")))
    tensor = next(asked, None)
    if tensor is None:
        tensor = next(_receivers(context, "numpy"), None)
    if tensor is None:
        return None
    name, made = context.name(tensor), made_at(tensor)
    behind = _parameters_behind(context, tensor)
    lost = f", so {quote_all(behind, most=3)} would get no gradient through it" if behind else ""
    message = f"NumPy{at(context.noticed)} is to read {quote(name)}, which requires grad; an array has no graph{lost}"
    it = name.path if name.exact and name.path else "x"
    remedy = (
        "if a loss is computed from the result, compute it with operations of torch, or in a torch.autograd.Function "
        f"with a backward of your own; {it}.detach().numpy() cuts the graph off: right only for logging and plots"
    )
    return Finding("numpy-of-graph", message, culprits_of(name), known_sites(made, context.noticed), remedy)


def empty_optimizer(context: FailureContext, error: BaseException) -> Finding | None:
    """Return a finding about an optimizer that was given no parameters, and the module or generator that gave none."""
    failing = failing_expression(context)
    if failing is None:
        return None
    for node in ast.walk(failing.node):
        if isinstance(node, ast.Attribute) and node.attr in ("parameters", "named_parameters"):
            module = failing.value(node.value)
            if issubclass(type(module), nn.Module):
                return _without_parameters(context, ast.unparse(node.value), module)
        if isinstance(node, ast.Name) and _is_exhausted(failing.variables.get(node.id)):
            return _exhausted(context, node.id)
    return None


def _without_parameters(context: FailureContext, path: str, module: nn.Module) -> Finding:
    """Return a finding about a module that has no parameters, with the containers that hide some from PyTorch."""
    hidden = [(f"{path}.{name}", kind, len(held), better) for name, kind, held, better in plain_containers(module)]
    whose = f"the optimizer{at(context.noticed)} got no parameters: `{path}` ({type(module).__name__})"
    culprits: tuple[Name, ...]
    if not hidden:
        message = f"{whose} has none, and none of its modules has any"
        culprits = (Name(path, "local", exact=False),)
        remedy = "build its layers in __init__ and assign them to attributes of self, before the optimizer is built"
    else:
        words = ", ".join(f"{count} in `{where}`, a plain {kind}" for where, kind, count, _ in hidden)
        message = f"{whose} has registered none. It holds modules or parameters where PyTorch does not look: {words}"
        culprits = tuple(Name(where, "attribute", exact=False) for where, _, _, _ in hidden)
        remedy = "; ".join(dict.fromkeys(f"make `{where}` a {better}" for where, _, _, better in hidden))
    return Finding("empty-optimizer", message, culprits, known_sites(context.noticed), remedy)


def _is_exhausted(value: object) -> bool:
    return type(value) is GeneratorType and value.gi_frame is None


def _exhausted(context: FailureContext, variable: str) -> Finding:
    whose = f"the optimizer{at(context.noticed)} got no parameters"
    message = f"{whose}: `{variable}` is a generator that was read to its end before"
    remedy = f"make it a list when it is made, {variable} = list(...), or call .parameters() anew"
    culprits = (Name(variable, "local", exact=False),)
    return Finding("empty-optimizer", message, culprits, known_sites(context.noticed), remedy)


def _variables_of(context: FailureContext, function: str) -> Iterator[dict[str, Any]]:
    """Yield the variables of each of PyTorch's frames of this function that the error passed."""
    for place in context.places:
        if place.frame.f_code.co_name == function:
            yield dict(locals_of(place.frame))


def _receivers(context: FailureContext, method: str) -> Iterator[torch.Tensor]:
    """Yield the tensors whose method of this name the failing expression calls."""
    failing = failing_expression(context)
    if failing is None:
        return
    for node in ast.walk(failing.node):
        if isinstance(node, ast.Attribute) and node.attr == method:
            value = failing.value(node.value)
            if is_tensor(value) and _asks_for_grad(value):
                yield value


def _asks_for_grad(tensor: torch.Tensor) -> bool:
    with DisableTorchFunction():
        return bool(fact(tensor, "requires_grad"))


def _parameters_behind(context: FailureContext, tensor: torch.Tensor) -> list[Name]:
    """Return the names of the parameters from which a tensor is computed."""
    with DisableTorchFunction():
        if fact(tensor, "grad_fn") is None:
            return []
        walk = Walk(tensor)
        leaves = [walk.nodes[number].variable for number in walk.leaf_numbers()]
    names = context.names([one for one in leaves if issubclass(type(one), nn.Parameter)])
    return [name for name in names if name.path]


def no_derivative(context: FailureContext, error: BaseException) -> Finding | None:
    """Return a finding about the call of an operation of which PyTorch has no derivative."""
    told = re.search(r"derivative for '(?:\w+::)?(\w+)(?:: (\w+))?' is not implemented", message_of(error))
    if told is None or not context.has_graph:
        return None
    operation, argument = told[1], told[2]
    walk = context.walk
    with DisableTorchFunction():
        kinds = [(node, type(node).__name__) for node in walk.nodes[1:]]
    ending = f"{operation.replace('_', '').lower()}backward"  # SpecialZetaBackward0 for zeta
    numbers = [walk.numbers[node] for node, kind in kinds if kind.rstrip("0123456789").lower().endswith(ending)]
    site = context.site(numbers[0]) if len(numbers) == 1 else None
    given = f" by its argument `{argument}`" if argument else ""
    message = f"PyTorch has no derivative of {operation}(){given}{at(site)}, through which this gradient has to pass"
    remedy = (
        "compute it by operations that have one; give it values without a graph, as by x.detach(), if no gradient has "
        "to pass; or write a torch.autograd.Function with its derivative"
    )
    return Finding("no-derivative", message, (), known_sites(site, context.noticed), remedy)
