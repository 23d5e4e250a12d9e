"""Raised: the causes of errors that PyTorch raises for how it was called or what it was given."""

from __future__ import annotations

import ast
import dis
import itertools
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from inspect import Parameter, signature
from itertools import pairwise
from types import CodeType, FrameType, FunctionType, GeneratorType
from typing import Any, TypeGuard

import torch
from torch import nn
from torch.utils.checkpoint import CheckpointFunction

from byname.autograd.order import node_of_input
from byname.autograd.walk import Walk, leaf_tensors, nodes_behind
from byname.diagnose.causes.out_of_place import instead_of
from byname.diagnose.context import FailureContext, made_at, message_of
from byname.diagnose.engine import engine_call
from byname.diagnose.failing_expression import FailingExpression, failing_expression, value_at
from byname.diagnose.finding import Finding, culprits_of, known_sites
from byname.naming.name import Name, at, quote, quote_all, unnamed
from byname.reading.arguments import parameters_of
from byname.reading.frames import caller, line_of, locals_of, programs_frame
from byname.reading.modules import plain_containers
from byname.reading.objects import attributes_of, found_in
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact, is_tensor
from byname.source.location import Expression, Site, is_library, is_torch, locate, statements_binding
from byname.table import counted
from byname.tracking.functions import UNSCALE, memory_of
from byname.tracking.log import Change
from byname.tracking.tracker import logs


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


def non_leaf_grad(context: FailureContext, error: BaseException) -> Finding | None:
    """Return a finding about the non-leaf tensor whose ``.grad`` was read, or which was given to an optimizer."""
    asked = _given_to_optimizer(context) if type(error) is ValueError else _asked_for_grad(context)
    tensor = next(asked, None)
    if tensor is None:
        return None
    name, made = context.name(tensor), made_at(tensor)
    why = (
        f"it was made{at(made)} by an operation on another tensor"
        if made
        else "it is the result of an operation on another tensor"
    )
    wanted = "an optimizer takes only leaves" if type(error) is ValueError else "only leaves get a .grad"
    it = quote(name)
    remedy = (
        f"compute the values first, then make them a leaf: {name.path or 'w'} = (...).detach().requires_grad_() or "
        "nn.Parameter(...); to see the gradient of a result, call .retain_grad() on it before backward"
    )
    message = f"{it} is not a leaf: {why}, and {wanted}"
    return Finding("non-leaf-grad", message, culprits_of(name), known_sites(made, context.noticed), remedy)


def _given_to_optimizer(context: FailureContext) -> Iterator[torch.Tensor]:
    """Yield the non-leaf tensors that ``add_param_group`` refused, from the frame that refused them."""
    for place in context.places:
        if place.frame.f_code.co_name == "add_param_group":
            group = dict(locals_of(place.frame)).get("param_group")
            params = group.get("params", ()) if type(group) is dict else ()
            yield from (one for one in params if is_tensor(one) and _is_result(one))


def _asked_for_grad(context: FailureContext) -> Iterator[torch.Tensor]:
    """Yield the non-leaf tensors whose ``.grad`` the failing expression reads and which retain none."""
    failing = failing_expression(context)
    if failing is None:
        return
    for node in _gradients_in(failing):
        value = failing.value(node.value)
        if value is None:
            yield from _read_there(failing.code, node.lineno)
        elif is_tensor(value) and _is_result(value):
            yield value


def _gradients_in(failing: FailingExpression) -> Iterator[ast.Attribute]:
    """Yield each ``x.grad`` in an expression, and each that one of its variables was assigned: ``g = x.grad``."""
    variables = failing.variables
    for part in ast.walk(failing.node):
        if isinstance(part, ast.Attribute) and part.attr == "grad":
            yield part
        if isinstance(part, ast.Name) and part.id in variables and variables[part.id] is None:
            for spot in statements_binding(failing.code, part.id):
                value = _assigned_in(spot)
                if isinstance(value, ast.Attribute) and value.attr == "grad":
                    yield value


def _assigned_in(spot: Expression) -> ast.expr | None:
    """Return the value of a simple assignment, parsed from its source."""
    try:
        statement = ast.parse(spot.site.statement).body[0]
    except (SyntaxError, IndexError):  # the head of a block, or a statement too long to be kept whole
        return None
    return statement.value if isinstance(statement, ast.Assign) else None


def _read_there(code: CodeType, line: int) -> Iterator[torch.Tensor]:
    """Yield the tensors whose missing ``.grad`` a tracker saw read on this line, the last one first."""
    for log in logs():
        for where, instruction, reference in reversed(log.grad_reads):
            tensor = reference()
            if where is code and tensor is not None and locate(code, instruction).site.line == line:
                yield tensor


def _is_result(tensor: torch.Tensor) -> bool:
    with DisableTorchFunction():
        return fact(tensor, "grad_fn") is not None and not fact(tensor, "retains_grad")


def ddp_unused(context: FailureContext, error: BaseException) -> Finding | None:
    """Return a finding about the parameters that DistributedDataParallel lacks, by the indices in its error."""
    told = re.search(r"did not receive grad for rank \d+: ([\d ]+)", message_of(error))
    found = [
        dict(locals_of(place.frame)).get("self")
        for place in context.places
        if "distributed" in place.frame.f_code.co_filename
    ]
    wrapper = next((one for one in found if isinstance(one, nn.parallel.DistributedDataParallel)), None)
    if told is None or wrapper is None:
        return None
    every = reduced_by(wrapper)
    indices = [int(word) for word in told[1].split()]
    if any(index >= len(every) for index in indices):
        return None
    with DisableTorchFunction():
        names = tuple(context.names([every[index] for index in indices]))
    return awaited(names, context, "the last")


def reduced_by(wrapper: nn.Module) -> list[torch.Tensor]:
    """Return the parameters that a wrapper reduces, in the order of its reducer."""
    ignored: set[str] = getattr(wrapper, "parameters_to_ignore", set())
    found: dict[int, torch.Tensor] = {}
    for prefix, module in wrapper.module.named_modules():  # type: ignore[union-attr]
        for name, parameter in module.named_parameters(recurse=False):
            if parameter.requires_grad and f"{prefix}.{name}" not in ignored:
                found.setdefault(id(parameter), parameter)
    return list(found.values())


def awaited(names: tuple[Name, ...], context: FailureContext, which: str) -> Finding:
    """Return the finding about parameters whose gradients a wrapper waits for."""
    message = (
        f"{which} loss of this rank does not reach {quote_all(names)}, and DistributedDataParallel waits for "
        "the gradient of every parameter before it starts the next iteration"
    )
    remedy = (
        "use them in the loss, freeze them with requires_grad_(False), or pass find_unused_parameters=True to "
        "DistributedDataParallel, which costs a walk through the graph each step"
    )
    return Finding("ddp-unused", message, names, known_sites(context.noticed), remedy)


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
