"""Custom function: errors of gradients that a custom function or a hook returns, or that an operation has not."""

from __future__ import annotations

import ast
import dis
from collections.abc import Iterator
from inspect import Parameter, signature
from types import FunctionType
from typing import Any

import torch
from torch.utils.hooks import BackwardHook

from byname.diagnose.cause import Cause, Facts, Raised
from byname.diagnose.causes.loss import Loss, is_first
from byname.diagnose.context import FailureContext
from byname.naming.name import Name
from byname.reading.frames import locals_of
from byname.reading.modules import parameters_of
from byname.reading.objects import found_in
from byname.reading.tensor import fact, is_tensor
from byname.source.code import statements_of
from byname.source.location import Site, locate
from byname.table import counted


def _gradients_returned(context: FailureContext) -> Iterator[Facts]:
    """Yield the custom function whose backward returned another number of gradients than it has inputs."""
    for custom in _custom_functions(context):
        wanted, got = int(context.match[2]), int(context.match[3])
        returned, given = _return_of(custom), _inputs_of(custom)
        last = ""
        if got < wanted and returned is not None and returned.statement.startswith("return "):
            last = f"; if the last {'one needs' if wanted - got == 1 else f'{wanted - got} need'} none: "
            last += f"`{returned.statement}{', None' * (wanted - got)}`"
        inputs = f" ({', '.join(given)})" if len(given) == wanted else ""
        numbers = counted(got, "gradient"), counted(wanted, "input"), counted(wanted, "gradient")
        facts = dict(zip(("got", "asked", "wanted"), numbers, strict=True))
        yield {"backward": _backward_of(custom), "returned": returned, "inputs": inputs, "last": last, **facts}


def _gradient_of_another_shape(context: FailureContext) -> Iterator[Facts]:
    for custom in _custom_functions(context):
        number, given = int(context.match[2]), _inputs_of(custom)
        nth = f"`{given[number]}`" if number < len(given) else f"number {number + 1}"
        shapes = {"got": context.match[3], "wanted": context.match[4]}
        yield {"backward": _backward_of(custom), "returned": _return_of(custom), "input": nth, **shapes}


def _custom_functions(context: FailureContext) -> list[Any]:
    """Return the class of the custom function in the graph that PyTorch's message names, if it is the only one."""
    kinds = {type(node) for node in context.walk.nodes[1:]} if context.has_graph else set()
    named = [kind for kind in kinds if kind.__name__ == f"{context.match[1]}Backward"]
    classes = {kind._forward_cls for kind in named if hasattr(kind, "_forward_cls")}
    return [*classes] if len(classes) == 1 else []


def _returns_nothing(loss: Loss) -> Iterator[Facts]:
    """Yield the custom functions whose backward computes something and returns nothing."""
    for kind, nodes in loss.context.kinds.items():
        custom = getattr(kind, "_forward_cls", None)
        backward = None if custom is None else method_in_class(custom, "backward")
        every = [] if backward is None else [*statements_of(backward.__code__)]
        idle = [one for one in every if type(one) is ast.Pass or type(getattr(one, "value", None)) is ast.Constant]
        if len(idle) < len(every) and not any(isinstance(one, ast.Return | ast.Raise) for one in every):
            yield {"function": _backward_of(custom), "used": loss.site(nodes[0])}


def _backward_of(custom: Any) -> Name:
    return Name(f"{custom.__name__}.backward", "attribute", exact=False)


def method_in_class(kind: Any, name: str) -> FunctionType | None:
    attribute = found_in(kind, name)
    held = getattr(attribute, "__func__", attribute)
    return held if type(held) is FunctionType else None


def _return_of(custom: Any) -> Site | None:
    """Return the line of the only return statement of a custom function's backward, or None."""
    function = method_in_class(custom, "backward")
    if function is None:
        return None
    code, before, offsets = function.__code__, 0, []
    for one in dis.get_instructions(code):
        if one.opname.startswith("RETURN_"):
            offsets.append(before)  # of the expression that is returned
        before = one.offset
    sites = {(site := locate(code, offset).site).line: site for offset in offsets}
    return next(iter(sites.values())) if len(sites) == 1 else None


def _inputs_of(custom: Any) -> list[str]:
    """Return the names of the inputs of a custom function's forward, but its context; none if their number varies."""
    function = method_in_class(custom, "forward")
    parameters = [] if function is None else list(signature(function).parameters.values())
    varies = any(one.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD) for one in parameters)
    return [] if varies else [one.name for one in parameters if one.name != "ctx"]


def _result_of_hook(context: FailureContext) -> Iterator[Facts]:
    """Yield the function of a backward hook that returns what cannot replace the gradient that it is given."""
    if (of_module := next(context.selves(BackwardHook), None)) is not None:
        hooks, returns = [*of_module.user_hooks, *of_module.user_pre_hooks], "a tuple with a gradient for each tensor"
    else:
        held = (value for one in context.passed for _, value in locals_of(one.frame) if is_tensor(value))
        every = [hook for one in (*context.leaves, *held) for hook in (fact(one, "_backward_hooks") or {}).values()]
        hooks = [one for one in every if getattr(one, "__name__", "") == context.match[1]]
        returns = "a gradient of the shape and dtype of the one that it is given"
    functions = {one.__code__: one for one in hooks if type(one) is FunctionType}
    if len(functions) == 1:
        code, hook = functions.popitem()
        facts = {"hook": Name(hook.__qualname__, "attribute", exact=False), "defined": locate(code, 0).site}
        yield {**facts, "returns": returns, "such": ", such as `return (gradient,)`" if of_module else ""}


def _without_derivative(context: FailureContext) -> Iterator[Facts]:
    if not context.has_graph:
        return
    operation, argument = context.match[1].removesuffix("_backward"), context.match[2]
    order = "" if operation == context.match[1] else "second "
    kinds = [(number, type(node).__name__) for number, node in enumerate(context.walk.nodes) if number]
    ending = f"{operation.replace('_', '').lower()}backward"  # SpecialZetaBackward0 for zeta
    numbers = [number for number, kind in kinds if kind.rstrip("0123456789").lower().endswith(ending)]
    given, sites = f" by its argument `{argument}`" if argument else "", list({*map(context.site, numbers)})
    other, called = _MATH if "scaled_dot_product" in operation else "", sites[0] if len(sites) == 1 else None
    yield {"order": order, "given": given, "other": other, "operation": operation, "called": called}


_MATH = "call it under `with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):`, which has one; or "


def _sparse(context: FailureContext) -> Iterator[Facts]:
    """Yield the parameters of an optimizer whose gradients are sparse."""
    for optimizer in [*context.selves(torch.optim.Optimizer)][:1]:
        graded = [(one, grad) for one in parameters_of(optimizer) if (grad := fact(one, "grad")) is not None]
        sparse = [one for one, grad in graded if fact(grad, "is_sparse")]
        yield {"names": tuple(context.names(sparse)), "kind": type(optimizer).__name__}


# fmt: off
CUSTOM_FUNCTIONS: tuple[Cause[FailureContext], ...] = (
    Cause("gradient-count",
        Raised(RuntimeError, r"function (\w+)Backward returned .* gradients \(expected (\d+), got (\d+)\)"),
        _gradients_returned,
        "{backward} returned {got}{returned:at}, and its forward has {asked}{inputs}: backward returns one for each, "
        "in their order, and None for those that need none",
        "return {wanted} in the order of the inputs{inputs}, None where no gradient is needed{last}"),
    Cause("gradient-shape",
        Raised(RuntimeError, r"Function (\w+)Backward returned an invalid gradient at index (\d+) - got (\[.*?\]) but "
            r"expected shape compatible with (\[.*?\])"),
        _gradient_of_another_shape,
        "{backward} returned{returned:at} a gradient of shape {got} for its input {input}, which has shape {wanted}: a "
        "gradient has the shape of its input",
        "return one of shape {wanted}: where forward has summed, backward expands (grad.unsqueeze(dim).expand(...)), "
        "and where it has broadcast, backward sums (grad.sum_to_size(...))"),
    Cause("no-derivative", Raised(RuntimeError, r"derivative for '?(?:\w+::)?(\w+)(?:: (\w+))?'? is not impl"),
        _without_derivative,
        "PyTorch has no {order}derivative of {operation}(){given}{called:at}, through which this gradient has to pass",
        "{other}compute it by operations that have one; give it values without a graph, as by x.detach(), if no "
        "gradient has to pass; or write a torch.autograd.Function with its derivative"),
    Cause("sparse-gradient", Raised(RuntimeError, r"does not support sparse gradients"), _sparse,
        "the gradients of {names} are sparse, as those of an nn.Embedding(..., sparse=True), and {kind}{noticed:at} "
        "takes dense ones only",
        "leave out sparse=True; or give {names:it|them} to a torch.optim.SparseAdam, and all others to another one"),
    Cause("hook-result",
        Raised(RuntimeError, r"hook '(.*)' has changed the \w+ of|Backward (pre )?hook returned an invalid number"),
        _result_of_hook,
        "the result of the backward hook {hook}{defined:at} cannot replace the gradient that it was given",
        "return {returns}{such}, or nothing to leave it as it is"),
)
RETURNS_NOTHING: Cause[Loss] = Cause("gradient-count", is_first, _returns_nothing,
    "{function} returns nothing: what is before the call{used:at} gets no gradient through it",
    "return a gradient for each input of its forward, None for those that need none")
# fmt: on
