"""Given: the causes of errors of operations that refuse a tensor: its mode, its device, its values or its graph."""

from __future__ import annotations

import ast
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch import nn

from byname.autograd.slots import slots_of
from byname.autograd.walk import has_graph, leaf_tensors, nodes_behind
from byname.diagnose.cause import Cause, Facts, Raised, Sentence, render, variable
from byname.diagnose.context import FailingExpression, FailureContext, made_at, parsed
from byname.diagnose.nonfinite.reasons import can_read, dtype_text, is_finite, numbers_of, reading_values
from byname.memory.blocks import cuda_is_in_use
from byname.naming.name import Name, unnamed
from byname.reading.functions import tensors_among
from byname.reading.objects import attributes_of, living
from byname.reading.quiet import modes_disabled
from byname.reading.tensor import PLAIN, fact, is_tensor, storage_of
from byname.source.location import Site, is_torch
from byname.source.tracebacks import is_byname
from byname.table import counted
from byname.tracking.log import logs


def _made_in_inference_mode(context: FailureContext) -> Iterator[Facts]:
    """Yield the first tensor that the failing expression reads, or parameter of a module in it, made in this mode."""
    parts = [(failing.value(node), node) for failing, node in context.failing_parts()]
    read = [(value, ast.unparse(node)) for value, node in parts if isinstance(node, ast.Name | ast.Attribute)]
    modules = [value for value, _ in read if issubclass(type(value), nn.Module)]
    read += [(one, "") for module in modules for one in nn.Module.parameters(module)]
    refused = [one for one in read if is_tensor(one[0]) and torch.Tensor.is_inference(one[0])]
    for tensor, path in refused[:1]:
        path = next((word for one, word in reversed(refused) if one is tensor and word), path)  # x in x.T
        copy = f"put `{path} = {path}.clone()` on the line before this one"
        copy = "build the module outside of torch.inference_mode()" if issubclass(type(tensor), nn.Parameter) else copy
        cuts = [cut.line.site for log in logs() for cut in log.detaches_of(tensor) if cut.reason == "inference"]
        name, made, view = variable(path) if path else context.name(tensor), made_at(tensor), ""
        for shown, whole in _viewed_at(context, tensor, made)[-1:]:  # x of x[0]
            name, made, view = variable(shown), made_at(whole), f", of which `{path}` is a view,"
        yield {"tensor": name, "view": view, "made": made, "computed": cuts[: made is None], "copy": copy}


def _viewed_at(context: FailureContext, tensor: Any, made: Site | None) -> list[tuple[str, torch.Tensor]]:
    """Return the expressions by which a line, maybe outside of the mode, reads what it made a view of, and these."""
    statement = (None if made is None else parsed(made.statement)) or ast.Pass()
    read = [ast.unparse(one) for one in ast.walk(statement) if isinstance(one, _REFERENCES)]
    held = [(path, value) for path in read if is_tensor(value := context.value_at(path)) and value is not tensor]
    return [one for one in held if storage_of(one[1]) == storage_of(tensor)]


def _failing_call(context: FailureContext) -> FailingExpression | None:
    """Return the call, item or operator that raised the error, in the program or in a module of PyTorch."""
    calling = (one for one in context.passed if not is_torch(one.file) or one.file.startswith(_MODULES))
    return FailingExpression.of(next((one for one in calling if not is_byname(one.file)), None))


_MODULES = str(Path(nn.__file__).parent)


def _tensors_given(context: FailureContext) -> list[torch.Tensor]:
    """Return the tensors that the failing call was given, as far as its source names them."""
    failing = _failing_call(context)
    given = [] if failing is None else tensors_among(map(failing.value, _given_to(failing.node)))
    return [*{id(one): one for one in given}.values()]


def _given_to(node: ast.AST) -> Iterator[ast.expr]:
    """Yield the operands of an operator or the arguments of a call; nothing computed: ``x.cuda()`` is not ``x``."""
    for field in _OPERANDS:
        part = getattr(node, field, ())
        for one in part if isinstance(part, list) else [part]:
            if isinstance(one, ast.List | ast.Tuple | ast.keyword | ast.Starred):
                yield from _given_to(one)
            elif field == "func":
                yield from [one.value] if _is_of_variable(one) else ()
            elif isinstance(one, _REFERENCES):
                yield one


_OPERANDS = ("func", "left", "right", "comparators", "target", "value", "slice", "args", "keywords", "elts")
_REFERENCES = (ast.Name, ast.Attribute, ast.Subscript)


def _is_of_variable(function: Any) -> TypeGuard[ast.Attribute]:
    return isinstance(function, ast.Attribute) and isinstance(function.value, _REFERENCES)


def _on_two_devices(context: FailureContext) -> Iterator[Facts]:
    """Yield which tensors are on which of two devices, and what brings those together."""
    given = [one for one in _tensors_given(context) if fact(one, "ndim") or _device(one) != "cpu"]
    devices = {*map(_device, given), *_DEVICE.findall(context.message)}
    if not given or len(devices) != 2:
        return
    here, there = sorted(devices, key=lambda one: (one != "meta", one != "cpu", one))
    astray, others = ([one for one in given if _device(one) == device] for device in (here, there))
    named = {id(one): name for one, name in zip(given, context.names(given), strict=True)}
    weights = [named[id(one)].path for one in given if issubclass(type(one), nn.Parameter)]
    unnamed = f"an input of `{weights[0].rpartition('.')[0]}`" if weights and weights[0] else "another input"
    words = [
        _is_or_are([named[id(one)] for one in held], f"on {device}", unnamed)
        for device, held in ((here, astray), (there, others))
    ]
    made = made_at(astray[0]) if len(astray) == 1 else None
    remedy = _bring(context, named[id(astray[0])], astray[0], there) if astray else _BRING.format(there)
    yield {"here": words[0], "there": words[1], "made": made, "remedy": remedy}


def _device(tensor: torch.Tensor) -> str:
    return str(fact(tensor, "device"))


_DEVICE = re.compile(r"\b(?:cpu|meta|(?:cuda|xpu|mps|hpu|npu):\d+)\b")


def _is_or_are(names: list[Name], what: str, unnamed: str) -> Sentence:
    """Return the clause that says on which device some tensors are, or of which dtype."""
    if known := [name for name in names if name.path]:
        return render("{known} {known:is|are} {what}", known=known, what=what)
    return render("{unnamed} is {what}", unnamed=unnamed, what=what)


def _bring(context: FailureContext, name: Name, tensor: torch.Tensor, there: str) -> str:
    """Return the code that moves a tensor to the device of the others."""
    if _device(tensor) == "meta":
        return _FROM_META
    if issubclass(type(tensor), nn.Parameter):
        return _MOVE_MODEL.format(there)
    for module in context.selves(nn.Module):
        for attribute in (key for key, value in attributes_of(module).items() if value is tensor):
            return _REGISTER.format(type(module).__name__, attribute)
    return _assigned(context, name, f".to('{there}')") or _BRING.format(there)


def _assigned(context: FailureContext, name: Name, call: str) -> str:
    """Return the line to write that calls a method of a variable and assigns its result to it; "" if it has no name."""
    it = name.path if name.exact and context.can_assign(name.path) else ""
    return f"put `{it} = {it}{call}` on a line before" if it else ""


def _of_two_dtypes(context: FailureContext) -> Iterator[Facts]:
    """Yield which tensor of the failing call, or of a node that its backward runs, has another dtype than the rest."""
    is_class = re.search("target dtype to be Long|scalar types: Long, Int", context.message) is not None
    dtypes = {getattr(torch, one.replace("unsigned char", "uint8")) for one in _DTYPE.findall(context.message.lower())}
    given, used = [one for one in _tensors_given(context) if is_class or fact(one, "dtype") in dtypes], None
    if len(dtypes) == 2 and "Found dtype" in context.message and context.has_graph:
        for number, slots in itertools.groupby(slots_of(context.walk), lambda slot: slot.number):
            saved = [one.tensor for one in slots if one.tensor is not None]
            if used is None and {fact(one, "dtype") for one in saved} == dtypes:
                given, used = saved, context.site(number)
    if len(given) < 2:
        return
    astray = given[1] if is_class else min(reversed(given), key=_has_right)
    right = astray if is_class else max(given, key=_has_right)
    (name, other), wanted = context.names([astray, right]), "int64" if is_class else dtype_text(right)
    if dtype_text(astray) == wanted:
        return
    there = "class numbers and ids are int64" if is_class else _is_or_are([other], wanted, "another input")
    yield {
        "here": _is_or_are([name], dtype_text(astray), "an input"),
        "there": there,
        "made": made_at(astray),
        "used": used or context.error_site,
        "remedy": _assigned(context, name, f".to(torch.{wanted})") or f"convert it with .to(torch.{wanted})",
        "numpy": "; NumPy makes float64 by default" if dtype_text(astray) == "float64" else "",
    }


def _has_right(tensor: torch.Tensor) -> tuple[bool, bool, bool]:
    """Return whether a tensor keeps its dtype, as parameters and results do: the least is converted."""
    return issubclass(type(tensor), nn.Parameter), has_graph(tensor), dtype_text(tensor) != "float64"


_DTYPE = re.compile(r"\b(double|float|half|bfloat16|long|int|short|bool|unsigned char)\b")
_BRING = "move it there with .to('{}')"
_FROM_META = (
    "tensors on meta have no values: call .to_empty(device=...) on the module and load its weights, or build it "
    "outside of torch.device('meta')"
)
_MOVE_MODEL = (
    "call .to('{}') on the whole model before the optimizer is built; it moves no module that is held in a plain list "
    "or dict: make that an nn.ModuleList or nn.ModuleDict"
)
_REGISTER = (
    "in `{}.__init__`, write `self.register_buffer('{}', ...)`: .to() moves parameters and buffers, and no other "
    "attributes"
)


def _indexing(context: FailureContext) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Return the tensor that the failing call or item indexes, and that of the indices; None if one is unknown.

    Which arguments they are goes by their place: ``table[ids]``, ``table.gather(1, ids)``, ``torch.gather(table, 1,
    ids)``, and, inside of PyTorch's functions, ``embedding(weight, ids)`` and ``cross_entropy(scores, labels)``.
    """
    failing = _failing_call(context)
    if failing is None:
        return None
    node, parts = failing.node, list[ast.expr]()
    if isinstance(node, ast.Subscript):
        parts = [node.value, node.slice]
    elif isinstance(node, ast.Call):
        arguments, by_name = node.args, [one.value for one in node.keywords if one.arg == "index"]
        if _is_of_variable(node.func) and is_tensor(failing.value(node.func.value)):
            arguments = [node.func.value, *arguments]
        at = 1 if _is_in_pytorch(failing) else 2
        parts = [*arguments[:1], *(by_name or arguments[at : at + 1])]
    found = [value for one in parts if isinstance(one, _REFERENCES) and is_tensor(value := failing.value(one))]
    return (found[0], found[1]) if len(found) == 2 and fact(found[1], "dtype") in _INTEGERS else None


def _is_in_pytorch(failing: FailingExpression | None) -> bool:
    return failing is not None and is_torch(failing.code.co_filename)


def _index_out_of_range(context: FailureContext) -> Iterator[Facts]:
    """Yield the tensor of indices in which one is out of range, that index, and what has no such entry."""
    indexed, indices = _indexing(context) or (None, None)
    if indexed is None or indices is None or not _is_readable(indices):
        return
    stated = [int(number) for number in context.match.groups() if number]
    if not (stated or _is_in_pytorch(_failing_call(context))):
        return  # index_select: of which dimension its message does not tell
    kind, size = _entries(context.message, fact(indexed, "shape"), stated)
    with modes_disabled():
        wrong = (indices == stated[0]) if stated else ((indices < 0) | (indices >= size))
        for place in wrong.nonzero()[:1].tolist() if kind else ():
            value, low, high = int(indices[tuple(place)]), int(indices.min()), int(indices.max())
            span = f", from 0 to {size - 1:,}" if size else ""
            facts = {"value": value, "size": f"{size:,} {kind}{span}", "place": f" at {place}"}
            names = _names_of(context, indices, indexed, kind)
            yield {**facts, **names, "remedy": _index_remedy(kind, value, size, low, high)}


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _is_readable(tensor: torch.Tensor) -> bool:
    return type(tensor) is torch.Tensor and _device(tensor) == "cpu" and fact(tensor, "layout") is torch.strided


def _entries(message: str, shape: torch.Size, stated: list[int]) -> tuple[str, int]:
    """Return what an index counts, and how many of these there are; no word where the shape is not what is indexed."""
    if message.startswith("Target"):
        return "classes", shape[min(1, len(shape) - 1)]
    if not stated:
        return "rows", shape[0]
    dimension, size = stated[1] if len(stated) == 3 else None, stated[-1]
    if size not in (shape if dimension is None else shape[dimension : dimension + 1]):  # `table` in table[0][ids]
        return "", size
    return "entries" if dimension is None else f"entries in dimension {dimension}", size


def _names_of(context: FailureContext, indices: torch.Tensor, indexed: torch.Tensor, kind: str = "") -> Facts:
    """Return the names of two tensors, or what they are where they have none."""
    words = {"classes": ("the tensor of labels", "the tensor of scores"), "rows": ("the tensor of ids", "the weight")}
    unnamed = words.get(kind, ("the tensor of indices", "what it indexes"))
    index, target = (
        render("{name}", name=name) if name.path else word
        for name, word in zip(context.names([indices, indexed]), unnamed, strict=True)
    )
    return {"indices": index, "made": made_at(indices), "indexed": target}


def _index_remedy(kind: str, value: int, size: int, low: int, high: int) -> str:
    if kind == "classes" and (low, high) == (1, size):
        return "classes count from 0: subtract 1 from the labels"
    if kind == "classes" and value < 0:
        return f"give the loss ignore_index={value} if it marks what is left out"
    wanted = {"classes": "outputs of the last layer", "rows": "rows in nn.Embedding"}.get(kind)
    if wanted is None or value < 0:
        return f"look where the {value:,} comes from"
    return f"if {high:,} is right, it takes {high + 1:,} {wanted}; if not, look where it comes from"


def _refused_on_gpu(context: FailureContext) -> Iterator[Facts]:
    """Yield what is known of a kernel that refused its arguments, which PyTorch tells at some later call."""
    if "device-side assert" in context.message or _has_refused():
        indexed, indices = _indexing(context) or (None, None)
        if indexed is None or indices is None or os.environ.get("CUDA_LAUNCH_BLOCKING") != "1":
            yield {"what": _LATE, "remedy": _BLOCKING}
        else:
            facts = {**_names_of(context, indices, indexed), "shape": str(tuple(indexed.shape))}
            what = render("an index in {indices}{made:-} is out of range for {indexed}, of shape {shape}", **facts)
            yield {"what": what, "remedy": "run it on the CPU, and byname shows the index"}


def _has_refused() -> bool:
    """Return whether the GPU does nothing more because a kernel has refused its arguments."""
    try:
        torch.cuda.synchronize() if cuda_is_in_use() else None
    except RuntimeError as error:
        return "device-side assert" in str(error)
    return False


_LATE = (
    "a kernel that was started before, at this or an earlier line, refused its arguments, mostly for an index out of "
    "range: a label that is no output, or an id that an embedding has no row for"
)
_BLOCKING = "run it once with the environment variable CUDA_LAUNCH_BLOCKING=1, and byname names the tensor"


def _invalid_distribution(context: FailureContext) -> Iterator[Facts]:
    """Yield what is wrong with the values of a distribution's parameter."""
    needed = {"constraint", "valid", "value"}
    checked: dict[str, Any] = next((one for one in context.frames("__init__") if needed <= one.keys()), {})
    value: Any = checked.get("value")
    if type(value) not in PLAIN or not can_read(value):
        return
    mine = [one for one in _tensors_given(context) if storage_of(one) == storage_of(value)]
    name = context.name(mine[0]) if len(mine) == 1 else unnamed()
    parameter = f"the parameter {context.match[1]}"
    called = render("{name}, {parameter}", name=name, parameter=parameter) if name.path else parameter
    is_number = is_finite(value)
    what, remedy = _violates(value, str(checked["constraint"])) if is_number else _bad_before(context, value)
    facts = {"made": made_at(mine[0]) if name.path else None, "what": what, "remedy": remedy}
    yield {"called": called, "distribution": context.match[2], **facts}


def _violates(value: torch.Tensor, constraint: str) -> tuple[str, str]:
    with reading_values():
        least, most = value.min().item(), value.max().item()
    remedy = next((remedy for word, remedy in _CONSTRAINED.items() if word in constraint), "give it values that do")
    return f"has values from {least:g} to {most:g}, and must satisfy {constraint}", remedy


_CONSTRAINED = {
    "GreaterThan": "compute it as F.softplus(x) + 1e-6, or as x.exp(), which are positive",
    "Simplex": "give it F.softmax(x, dim=-1), or the scores themselves as logits=",
    "Interval(lower_bound=0.0, upper_bound=1.0": "give it torch.sigmoid(x), or the scores themselves as logits=",
}
"""What to write for values that satisfy a constraint, by a part of its text."""


def _bad_before(context: FailureContext, value: torch.Tensor) -> tuple[Sentence | str, str]:
    """Return what is known of NaN or Inf in a value: whether parameters, those that it is computed from, hold them."""
    leaves = leaf_tensors(nodes_behind([value])) if has_graph(value) else living(nn.Parameter)
    bad = [one for one in leaves if not is_finite(one)]
    if bad:
        words = "holds {kind}, and so {names:does|do} {names}: the {kind} was there before this forward"
        return render(words, kind=numbers_of(value).kind, names=context.names(bad)), _FIRST_NAN
    fine = ", and the parameters that it is computed from are finite" if has_graph(value) else ""
    with reading_values():
        rows = value.isnan().all(-1)
        if value.isneginf().any() and rows.equal(value.isnan().any(-1)):
            return f"holds {numbers_of(value)}{fine}: all of {counted(int(rows.sum()), 'row')} is NaN{_BESIDE}", _MASKED
    return f"holds {numbers_of(value)}{fine}", _LOOK_AT_INPUTS


_FIRST_NAN = "`byname run --non-finite` names the first operation, gradient or step that gave NaN or Inf"
_BESIDE = ", and others hold -inf, as where a mask leaves out a whole row"
_MASKED = "leave one entry of each row, or mask with -1e9 in place of -inf"
_LOOK_AT_INPUTS = "look at the inputs of this forward, and at log(), sqrt() and divisions in it"

# fmt: off
GIVEN: tuple[Cause[FailureContext], ...] = (
    Cause("inference-tensor", Raised(RuntimeError, r"[Ii]nference tensors? (cannot be saved|outside InferenceMode)"),
        _made_in_inference_mode,
        "{computed:-}{tensor}{view} was made under torch.inference_mode(){made:at}, and is used outside of "
        "it{noticed:at}: autograd can neither save nor change such a tensor",
        "{copy}, or make it under torch.no_grad() instead of torch.inference_mode()"),
    Cause("wrong-device",
        Raised(RuntimeError, r"the same device|on the expected device|Input type .* type .* should be"),
        _on_two_devices,
        "{made:-}{here}, and {there}: the operation{noticed:at} takes tensors of one device only", "{remedy}"),
    Cause("wrong-dtype",
        Raised(RuntimeError, r"same d(ata)?type|dtypes match|Found dtype|target dtype to be|expected scalar type|"
            r"one of the following scalar types|should be the same|same scalar type"),
        _of_two_dtypes,
        "{made:-}{here}, and {there}: the operation{used:at} takes no other dtype", "{remedy}{numpy}"),
    Cause("index-out-of-range",
        Raised((IndexError, RuntimeError), r"index out of range in self|Target (-?\d+) is out of bounds|"
            r"index (-?\d+) is out of bounds for dimension (\d+) with size (\d+)|"
            r"INDICES element is out of DATA bounds, id=(-?\d+) axis_dim=(\d+)"),
        _index_out_of_range,
        "{indices}{made:-} holds {value}{place}{noticed:at}, and {indexed} has {size}", "{remedy}"),
    Cause("index-out-of-range", Raised(RuntimeError, r"CUDA error|CUBLAS_STATUS|CUDNN_STATUS"), _refused_on_gpu,
        "the GPU has stopped{noticed:at}: {what}", "{remedy}"),
    Cause("invalid-distribution",
        Raised(ValueError, r"Expected parameter (\w+) .*of distribution (\w+)\(.*but found invalid values"),
        _invalid_distribution,
        "{called} of this {distribution}{noticed:at} {what}{made:-}", "{remedy}"),
)
# fmt: on
"""The causes, in the order in which they are looked for."""
