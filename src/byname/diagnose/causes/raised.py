"""Raised: the causes of errors that PyTorch raises for how it was called or what it was given."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from types import CodeType
from typing import Any

import torch
from torch import nn

from byname.autograd.order import node_of_input
from byname.autograd.walk import leaf_tensors, nodes_behind
from byname.diagnose.cause import Cause, Facts, Raised, any_of, render, variable
from byname.diagnose.causes.custom_function import method_in_class
from byname.diagnose.causes.ownership import no_parameters
from byname.diagnose.causes.vmap import norm_called
from byname.diagnose.context import FailingExpression, FailureContext, base_name, made_at
from byname.memory.oom import memory_report
from byname.naming.name import Name, at, quote, quote_all
from byname.reading.frames import locals_of
from byname.reading.modules import parameters_of
from byname.reading.tensor import fact, is_tensor
from byname.source.location import locate, statements_binding
from byname.table import bytes_text, counted
from byname.tracking.log import logs


def _outputs(context: FailureContext) -> list[torch.Tensor]:
    """Return the tensors that a failed backward was called on."""
    return [one for frame in context.frames("_make_grads") for one in frame.get("outputs", ()) if is_tensor(one)]


def _several_elements(context: FailureContext) -> Iterator[Facts]:
    several = [one for one in _outputs(context) if fact(one, "grad_fn") is not None and one.numel() != 1]
    for root in several[:1]:
        loss, elements = context.name(root), counted(root.numel(), "element")
        facts = {"loss": loss, "made": made_at(root), "elements": elements, "shape": str(tuple(root.shape))}
        yield {**facts, "it": _variable(loss) or "loss"}


def _complex(context: FailureContext) -> Iterator[Facts]:
    """Yield the complex loss, and the line of a complex Fourier transform behind it."""
    for graph in [FailureContext([one]) for one in _outputs(context) if one.is_complex()][:1]:
        found = (graph.walk.numbers[one] for one in graph.nodes if type(one).__name__.startswith("FftC2C"))
        facts = {"transformed": next(map(graph.site, found), None), "made": made_at(graph.roots[0])}
        yield {"loss": context.name(graph.roots[0]), **facts}


def _variable(name: Name) -> str:
    """Return the variable that holds a tensor; empty if none does."""
    return name.path if name.exact else ""


def _unused_inputs(context: FailureContext) -> Iterator[Facts]:
    unused = [one for one in context.inputs if is_tensor(one) and node_of_input(one) not in context.walk.numbers]
    if not unused:
        return
    named = context.names([root for root in context.roots if is_tensor(root)])
    names, outputs = tuple(context.names(unused)), quote_all([name for name in named if name.path]) or "the outputs"
    whole = _used_whole(context, unused[0]) if len(unused) == 1 else None
    beside, remedy = "", _UNUSED
    if whole is not None:
        it, part, made = context.name(whole), quote(names[0]), made_at(unused[0])
        beside = render(": {it} is, and {part} was computed from it{made:at} beside that", it=it, part=part, made=made)
        remedy = f"ask for the gradient with respect to {quote(it)} and take its part, or compute {outputs} from {part}"
        remedy += ", as by torch.cat of the slices"
    elif (other := _stand_in(context, unused)) is not None:
        beside = render(": {other}{made:at}, of the same shape, is", other=context.name(other), made=made_at(other))
        remedy = f"ask for the gradient with respect to {quote(context.name(other))}, or compute {outputs} from "
        remedy += quote_all(names)
    elif len(unused) == len(context.inputs):
        remedy = f"compute {outputs} from {quote_all(names)}, or leave this call out"
        remedy += ": copy.deepcopy() makes other parameters" if issubclass(type(unused[0]), nn.Parameter) else ""
    unnamed = names if whole is None else ()
    yield {"names": names, "unnamed": unnamed, "outputs": outputs, "beside": beside, "remedy": remedy}


_UNUSED = (
    "pass materialize_grads=True (their gradient is then zeros), or leave them out; with allow_unused=True alone it is "
    "None, which arithmetic refuses"
)


def _stand_in(context: FailureContext, unused: list[Any]) -> torch.Tensor | None:
    """Return the only leaf besides parameters that outputs are computed from, if it looks like the one unused input."""
    free = [one for one in (*context.leaves, *unused) if not issubclass(type(one), nn.Parameter)]
    alike = len(unused) == 1 and len(free) == 2 and fact(free[0], "shape") == fact(unused[0], "shape")
    return free[0] if alike else None


def _used_whole(context: FailureContext, part: torch.Tensor) -> torch.Tensor | None:
    """Return the leaf that outputs are computed from, and from which an unused input was computed beside them."""
    if fact(part, "grad_fn") is None:
        return None
    behind = leaf_tensors(nodes_behind([part]))
    used = {id(leaf) for leaf in leaf_tensors(context.walk.nodes[1:])}
    return behind[0] if len(behind) == 1 and id(behind[0]) in used else None


def _input_without_grad(context: FailureContext) -> Iterator[Facts]:
    hooked = [found.get("self") for found in context.frames("register_hook")]
    every = [one for one in (*context.inputs, *hooked, *_receivers(context, "retain_grad")) if is_tensor(one)]
    for asked in [one for one in every if not fact(one, "requires_grad")][:1]:
        name = context.name(asked)
        path = name.path if context.value_at(name.path) is asked else _variable(name)
        call = f"{path}.requires_grad_()" if path else "requires_grad_() on it"
        yield {"asked": name, "made": made_at(asked), "call": call}


def _receivers(context: FailureContext, method: str) -> list[Any]:
    """Return the objects of which the failing expression reads a method."""
    parts = [one for one in context.failing_parts() if getattr(one[1], "attr", "") == method]
    return [failing.value(node.value) for failing, node in parts]


def _read_by_numpy(context: FailureContext) -> Iterator[Facts]:
    asked = [one for one in _receivers(context, "numpy") if is_tensor(one) and fact(one, "requires_grad")]
    asked[:0] = [found["self"] for found in context.frames("__array__") if is_tensor(found.get("self"))]
    for tensor in asked[:1]:
        name, behind = context.name(tensor), _parameters_behind(context, tensor)
        lost = f", so {quote_all(behind, most=3)} would get no gradient through it" if behind else ""
        yield {"tensor": name, "made": made_at(tensor), "lost": lost, "it": _variable(name) or "x"}


def _parameters_behind(context: FailureContext, tensor: torch.Tensor) -> list[Name]:
    behind = leaf_tensors(nodes_behind([tensor])) if fact(tensor, "grad_fn") is not None else []
    return [name for name in context.names([one for one in behind if issubclass(type(one), nn.Parameter)]) if name.path]


def _not_a_leaf(context: FailureContext) -> Iterator[Facts]:
    """Yield the non-leaf tensor whose ``.grad`` was read, or which was given to an optimizer."""
    by_optimizer = type(context.error) is ValueError
    tensor = next(_given_to_optimizer(context) if by_optimizer else _asked_for_grad(context), None)
    if tensor is not None and not fact(tensor, "is_leaf"):
        name, made = context.name(tensor), made_at(tensor)
        why = render("it was made{made:at} by an operation on another tensor", made=made)
        wanted = "an optimizer takes only leaves" if by_optimizer else "only leaves get a .grad"
        is_result = not by_optimizer and bool(_parameters_behind(context, tensor))  # of a module, to be looked at
        remedy = _RETAINED if is_result else render(f"{_LEAF}; {_RETAINED}", it=name.path or "w")
        if made is not None and made.target and f" {made.target}.grad" in re.sub(r"[^\w.]", " ", made.statement):
            remedy = render(_UPDATED, it=made.target)  # w = w - lr * w.grad
        yield {"tensor": name, "why": why, "wanted": wanted, "remedy": remedy}


_LEAF = "compute the values first, then make them a leaf: {it} = (...).detach().requires_grad_() or nn.Parameter(...)"
_UPDATED = "change the leaf in place, which leaves it one: `with torch.no_grad(): {it} -= ...` in place of that line"
_RETAINED = "to see the gradient of a result, call .retain_grad() on it before backward"


def _given_to_optimizer(context: FailureContext) -> Iterator[torch.Tensor]:
    """Yield the non-leaf tensors that ``add_param_group`` refused, from the frame that refused them."""
    groups = [found.get("param_group") for found in context.frames("add_param_group")]
    params = [one for group in groups if type(group) is dict for one in group.get("params", ())]
    yield from (one for one in params if is_tensor(one) and _is_result(one))


def _asked_for_grad(context: FailureContext) -> Iterator[torch.Tensor]:
    """Yield the tensors without a gradient whose ``.grad`` the failing expression reads."""
    failing = context.failing
    if failing is None:
        return
    for node in _gradients_in(failing):
        value = failing.value(node.value)
        if value is None:
            yield from _read_there(failing.code, node.lineno)
        elif is_tensor(value) and (_is_result(value) or (fact(value, "is_leaf") and fact(value, "grad") is None)):
            yield value


def _leaf_without_grad(context: FailureContext) -> Iterator[Facts]:
    """Yield the leaf whose ``.grad``, which is None, the failing expression reads."""
    for leaf in [one for one in itertools.islice(_asked_for_grad(context), 1) if fact(one, "is_leaf")]:
        why, remedy = "no backward has reached it since it was made, or since its gradient was cleared", ""
        if not fact(leaf, "requires_grad"):
            why, remedy = "it does not require grad", "call requires_grad_() before it is used, if it should get one; "
        yield {"leaf": context.name(leaf), "why": why, "remedy": remedy}


def _gradients_in(failing: FailingExpression) -> Iterator[ast.Attribute]:
    """Yield each ``x.grad`` in an expression, and each that one of its variables was assigned: ``g = x.grad``."""
    variables = failing.variables
    for part in ast.walk(failing.node):
        if isinstance(part, ast.Attribute) and part.attr == "grad":
            yield part
        if isinstance(part, ast.Name) and part.id in variables and variables[part.id] is None:
            for expr in statements_binding(failing.code, part.id):
                value = expr.node.value if isinstance(expr.node, ast.Assign) else None
                if isinstance(value, ast.Attribute) and value.attr == "grad":
                    yield value


def _read_there(code: CodeType, line: int) -> Iterator[torch.Tensor]:
    """Yield the tensors whose missing ``.grad`` a tracker saw read on this line, the last one first."""
    for log in logs():
        for where, instruction, reference in reversed(log.grad_reads):
            tensor = reference()
            if where is code and tensor is not None and locate(code, instruction).site.line == line:
                yield tensor


def _is_result(tensor: torch.Tensor) -> bool:
    return fact(tensor, "grad_fn") is not None and not fact(tensor, "retains_grad")


def _copied_with_graph(context: FailureContext) -> Iterator[Facts]:
    """Yield the result of an operation that ``copy.deepcopy`` met, and that only a leaf can be."""
    met = [found["self"] for found in context.frames("__deepcopy__") if is_tensor(found.get("self"))]
    for tensor in met[:1]:
        names, made = list(map(base_name, context.find([tensor]).names(tensor, None))), made_at(tensor)
        name = next((one for one in names if context.value_at(one.path) is tensor), names[0])
        remedy = "keep it without its graph, as by .detach(), or drop it before the copy"
        if made is not None and (made.target or "").startswith("self."):  # other objects of the class have one, too
            remedy = f"where it is stored{at(made)}, go on computing with a variable, and store only its values, "
            remedy += f"`{made.target} = variable.detach()`"
        elif name.path and not name.relation and context.value_at(name.path) is tensor:
            remedy = f"put `{name.path} = {name.path}.detach()` before the copy, which drops its graph"
        yield {"tensor": name, "made": made, "remedy": remedy}


def _no_tensor(context: FailureContext) -> Iterator[Facts]:
    """Yield the variable that backward is called on though it holds no tensor."""
    kind = context.match[1]
    remedy = next(words for pattern, words in _NO_TENSOR.items() if re.search(pattern, kind))
    for failing, node in [one for one in context.failing_parts() if getattr(one[1], "attr", "") == "backward"]:
        path = ast.unparse(node.value)
        bound = [expr.site for expr in statements_binding(failing.code, path)][-1:]
        yield {"it": variable(path), "kind": kind, "bound": bound[0] if bound else None, "remedy": remedy}


_NO_TENSOR = {
    "None": "let the function that computes it return it",
    "Loss": "call it with the prediction and the target, which gives a tensor",
    "list|tuple|dict|Output": "call backward on one tensor of it, as the .loss of an output, or on their sum",
    "": "keep the losses tensors, without .item(), float() or NumPy, and join several by sum() or torch.stack(); "
    "numbers are for logs",
}
"""What to write for an object without ``backward``, by a pattern of the name of its class."""


def _loss_made(context: FailureContext) -> Iterator[Facts]:
    """Yield the class of losses that was given the arguments of its ``forward``, as if it were a function."""
    call = None if context.failing is None else context.failing.node
    for loss in itertools.islice(context.selves(nn.modules.loss._Loss), 1):
        if isinstance(call, ast.Call):
            made, given = ast.unparse(call.func), ", ".join(map(ast.unparse, call.args))
            yield {"kind": type(loss).__name__, "call": f"{made}()({given})"}


def _result_as_parameter(context: FailureContext) -> Iterator[Facts]:
    """Yield the parameter of a module that a statement assigns a result to."""
    site = context.error_site
    if site is not None and site.target and site.target.endswith(f".{context.match[1]}"):
        plain = site.statement.replace(f"{site.target} =", f"{context.match[1]} =", 1)
        yield {"parameter": variable(site.target), "plain": plain}


def _tensors_made_numbers(context: FailureContext) -> Iterator[Facts]:
    """Yield the list of tensors that ``torch.tensor`` was given."""
    call = None if context.failing is None else context.failing.node
    if isinstance(call, ast.Call) and re.search(r"(^|\.)(tensor|as_tensor|FloatTensor)$", ast.unparse(call.func)):
        yield from ({"given": variable(ast.unparse(one))} for one in call.args[:1])


def _calls_of_scaler(context: FailureContext) -> Iterator[Facts]:
    """Yield the methods of a ``GradScaler`` that an error passed, the outermost first, with the optimizer given."""
    for passed in reversed(context.passed):
        found = dict(locals_of(passed.frame)) if passed.file == torch.amp.grad_scaler.__file__ else {}
        if issubclass(type(found.get("self")), torch.amp.GradScaler):
            yield {"method": passed.code.co_name, "optimizer": found.get("optimizer")}


def _without_gradients(context: FailureContext) -> Iterator[Facts]:
    """Yield the step for which the scaler has found no gradients, if there are none."""
    for called in itertools.islice(_calls_of_scaler(context), 1):
        optimizer = called["optimizer"]
        parameters = [] if optimizer is None else parameters_of(optimizer)
        if parameters and all(fact(one, "grad") is None for one in parameters):
            yield {**called, "kind": type(optimizer).__name__, "parameters": counted(len(parameters), "parameter")}


def _given_to_worker(context: FailureContext) -> Iterator[Facts]:
    """Yield the data set that gives tensors with a graph to the workers of a ``DataLoader``."""
    for iterator in itertools.islice(context.selves(torch.utils.data.dataloader._BaseDataLoaderIter), 1):
        function, kind = method_in_class(type(iterator._dataset), "__getitem__"), type(iterator._dataset).__name__
        defined = None if function is None else locate(function.__code__, 0).site
        yield {"kind": kind, "item": Name(f"{kind}.__getitem__", "attribute", exact=False), "defined": defined}


def _memory_asked_for(context: FailureContext) -> Iterator[Facts]:
    """Yield the amount of memory that was asked for, which the message may tell, and the tensors that are alive now."""
    found = re.search(r"[Tt]ried to allocate ([\d.]+) (bytes|[KMGT]iB)", context.message)
    asked = 0.0 if found is None else float(found[1]) * 1024 ** _UNITS.index(found[2])
    alive, details = memory_report()
    words = f"the {bytes_text(int(asked))}" if asked else "what was asked for"
    yield {"asked": words, "details": details, "remedy": _ASK_FOR_LESS + _LET_GO if asked > alive else _LET_GO}


_UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB")
_ASK_FOR_LESS = (
    "this one request is larger than all that is alive: look at the shape of what the line computes; compute it for "
    "fewer samples at a time, or by an operation that does not build it whole, as torch.cdist does for differences of "
    "all pairs, and scaled_dot_product_attention for weights; "
)
_LET_GO = (
    "let go of what is no longer needed: byname.growth() tells what grows from step to step, byname.holders(tensor) "
    "what keeps a tensor alive; smaller batches and checkpoints save less for backward"
)


# fmt: off
RAISED: tuple[Cause[FailureContext], ...] = (
    Cause("unused-input", Raised(RuntimeError, r"differentiated Tensor.* not have been used in the graph"),
        _unused_inputs,
        "{unnamed:-}{names} {names:is|are} not used in computing {outputs}{beside}", "{remedy}"),
    Cause("input-without-grad",
        Raised(RuntimeError, r"differentiated Tensors does not require grad|register a hook on a tensor that doesn't|"
            r"can't retain_grad on Tensor"),
        _input_without_grad,
        "a gradient{noticed:at} is asked for {asked}{made:-}, which does not require grad: nothing that it was "
        "computed from does, or it was detached or made under torch.no_grad()",
        "call {call} when it is made, before it is used"),
    Cause("non-scalar-backward", Raised(RuntimeError, r"implicitly created only for scalar outputs"), _several_elements,
        "backward{noticed:at} starts from {loss}{made:-}, which has {elements} (shape {shape}): it starts from a "
        "single number, unless it is given a gradient for each element",
        "make it one number first: {it}.mean().backward() or {it}.sum().backward(); a loss function does so with "
        "reduction='mean'"),
    Cause("complex-loss", Raised(RuntimeError, r"implicitly created only for real scalar outputs"), _complex,
        "backward{noticed:at} starts from {loss}{made:-}, which is complex, as the results of fft() and ifft()"
        "{transformed:at} are: a loss has to be real",
        "take torch.fft.irfft as the inverse of rfft, .real of a result, or .abs() of a difference before its square"),
    Cause("backward-of-no-tensor",
        Raised(AttributeError, r"^'(float\d*|int\d*|ndarray|list|tuple|dict|NoneType|\w*Loss|\w*Output)' object has no "
            r"attribute 'backward'"),
        _no_tensor,
        "{it}{bound:at} is no tensor, but of type {kind}, and backward is called on it{noticed:at}", "{remedy}"),
    Cause("loss-not-made", Raised(RuntimeError, r"[Bb]oolean value of Tensor with more than one"), _loss_made,
        "{kind}{noticed:at} is a class: its arguments are options, and it was given tensors",
        "make the loss first, and call it then: {call}"),
    Cause("result-as-parameter", Raised(TypeError, r"cannot assign '.*' as parameter '(\w+)'"), _result_as_parameter,
        "{parameter} is a parameter, and{noticed:at} it is assigned a result: a module keeps only parameters there",
        "name the result otherwise, `{plain}`, and compute with it: the parameter stays, and learns through it"),
    Cause("tensor-of-tensors", Raised(ValueError, r"only one element tensors can be converted"), _tensors_made_numbers,
        "a tensor is made of the numbers in {given}{noticed:at}, which holds tensors of several elements",
        "join them by torch.stack({given.path}), or by torch.cat where they differ in length: gradients flow through "
        "these, and not through torch.tensor"),
    Cause("numpy-of-graph", Raised(RuntimeError, r"Can't call numpy\(\) on Tensor that requires grad"), _read_by_numpy,
        "NumPy{noticed:at} was asked to read {tensor}{made:-}, which requires grad; an array has no graph{lost}",
        "if a loss is computed from the result, compute it with operations of torch, or in a torch.autograd.Function "
        "with a backward of your own; {it}.detach().numpy() cuts the graph off: right only for logging and plots"),
    Cause("one-value-norm", Raised(ValueError, r"Expected more than 1 (\w+).*when training, got input size (.*)"),
        norm_called,
        "the {kind} {norm} is in training mode, and{noticed:at} it is given one value for each channel: the variance "
        "of one value is unknown",
        "if it is the last batch, which is smaller, pass drop_last=True to the DataLoader; call eval() on the model to "
        "compute a single sample; a GroupNorm or a LayerNorm takes single samples in training, too"),
    Cause("empty-optimizer", Raised(ValueError, r"optimizer got an empty parameter list"), no_parameters,
        "the optimizer{noticed:at} got no parameters{why}{made:-}", "{remedy}"),
    Cause("copy-of-graph", Raised(RuntimeError, r"support the deepcopy protocol"), _copied_with_graph,
        "copy.deepcopy{noticed:at} met {tensor}, which belongs to a graph: it was computed{made:at}, and only tensors "
        "that the program made itself can be deep-copied", "{remedy}"),
    Cause("scaler-order", Raised(RuntimeError, r"(unscale_|step)\(\) has already been called"), _calls_of_scaler,
        "GradScaler: {method}(){noticed:at} is called again for an optimizer without an update() between",
        "call unscale_(optimizer) once before each scaler.step(optimizer), and `scaler.update()` once in each "
        "iteration, after the last step"),
    Cause("scaler-order", Raised(RuntimeError, r"(unscale_|step)\(\) is being called after step\(\)"), _calls_of_scaler,
        "GradScaler: unscale_(){noticed:at} comes after step(): gradients are unscaled, and clipped, before the step",
        "put unscale_() and what follows it, such as clip_grad_norm_, before the step()"),
    Cause("scaler-order", Raised(AssertionError, r"_scale is None"), _calls_of_scaler,
        "GradScaler: {method}(){noticed:at} is called before the first scale()",
        "call scaler.scale(loss).backward() in place of loss.backward()"),
    Cause("scaler-order", Raised(AssertionError, r"No inf checks were recorded"), _without_gradients,
        "GradScaler: {method}(){noticed:at} finds no gradient to look at: none of the {parameters} of this {kind} has "
        "a .grad",
        "call scaler.scale(loss).backward() before it, for a loss that is computed from these parameters, and "
        "zero_grad() not between the backward and the step"),
    Cause("graph-in-worker",
        Raised(RuntimeError, r"DataLoader worker.*(support automatic differentiation|serialize non-leaf)"),
        _given_to_worker,
        "{item:-}{defined:-}`{kind}` gives the workers of the DataLoader{noticed:at} tensors that require grad, "
        "and no graph can go from one process to another",
        "return them without a graph: .detach() in `{kind}.__getitem__`, or compute them there under torch.no_grad(); "
        "if the loss has to reach what computes them, compute it in the training loop"),
    Cause("out-of-memory",
        any_of(
            Raised((torch.OutOfMemoryError, MemoryError), r""),
            Raised(RuntimeError, r"not enough memory: you tried to allocate|can't allocate memory"),
        ),
        _memory_asked_for,
        "there was not enough memory left for {asked}{noticed:at}", "{remedy}"),
    Cause("non-leaf-grad",
        any_of(
            Raised(ValueError, r"can't optimize a non-leaf Tensor"),
            Raised((TypeError, AttributeError, UserWarning), r"NoneType|attribute of a Tensor that is not a leaf"),
        ),
        _not_a_leaf,
        "{tensor} is not a leaf: {why}, and {wanted}",
        "{remedy}"),
    Cause("input-without-grad", Raised((TypeError, AttributeError), r"NoneType"), _leaf_without_grad,
        "the .grad of {leaf}, which is read{noticed:at}, is None: {why}",
        "{remedy}read it after a backward that reaches it, and leave out tensors whose .grad is None"),
)
# fmt: on
"""The causes of errors, in the order in which they are looked for."""
