"""Losses: what a graph or its source computes and hardly ever was meant, such as double-softmax or not-frozen."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

import torch
from torch import nn

from byname.diagnose.causes.not_reached import cut_before, cuts_beside, why_cut
from byname.diagnose.causes.out_of_place import without_data
from byname.diagnose.context import FailureContext, made_at
from byname.diagnose.finding import Finding, culprits_of, known_sites
from byname.naming.name import Name, at, quote, quote_all
from byname.reading.frames import locals_of
from byname.reading.modules import parameters_in
from byname.reading.objects import attributes_of
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact, is_tensor
from byname.source.code import source_of
from byname.source.location import Site, is_library, locate, statements_binding
from byname.tracking.log import DetachPoint
from byname.tracking.lookup import note_of, site_of_tensor
from byname.tracking.tracker import logs

_SQUASHED = {
    "LogSoftmaxBackward": ("SoftmaxBackward", "softmax", "cross_entropy (log_softmax)"),
    "BinaryCrossEntropyWithLogitsBackward": ("SigmoidBackward", "sigmoid", "binary_cross_entropy_with_logits"),
}
"""Losses with a softmax or sigmoid of their own: the node before which it stands twice, and both in words."""

_NO_LOGARITHM = {
    "SoftmaxBackward": "a softmax",
    "SigmoidBackward": "a sigmoid",
    "AddmmBackward": "a linear layer",
    "ReluBackward": "a relu",
}
"""What gives no log-probabilities, by the node, in words."""
_TAKES_LOGARITHMS = {"NllLossBackward", "NllLoss2DBackward"}
_COMPARING = {"MseLossBackward", "SmoothL1LossBackward", "HuberLossBackward"}
_BY_HAND = {"PowBackward", "AbsBackward", "MulBackward"}
"""What a loss that is written by hand makes of a difference."""
_MOVES = {"ViewBackward", "UnsafeViewBackward", "TransposeBackward", "PermuteBackward", "SqueezeBackward", "TBackward"}


def suspicious_losses(nodes: Iterable[Any], roots: Sequence[Any]) -> Iterator[Finding]:
    """Yield findings about the losses in a graph.

    Args:
        nodes: the nodes of the graph.
        roots: what backward is called on.
    """
    context = FailureContext(roots)
    for node in nodes:
        kind = _kind(node)
        if kind in _BY_HAND:
            yield from (one for rule in (_probabilities_in_kl_div, _squares) for one in rule(context, node))
        if kind not in _SQUASHED and kind not in _COMPARING and kind not in _TAKES_LOGARITHMS:
            continue
        given = _before(node)
        if kind in _SQUASHED and _kind(given) == _SQUASHED[kind][0]:
            yield _twice(context, kind, node, given)
        elif kind in _TAKES_LOGARITHMS and _kind(given) in _NO_LOGARITHM:
            yield _without_logarithm(context, "nll_loss", node, given)
        elif kind in _TAKES_LOGARITHMS and _kind(node.next_functions[0][0]) == "LogSoftmaxBackward":
            yield from _over_samples(context, node, node.next_functions[0][0])
        elif kind in _COMPARING and _kind(given) == "ExpandBackward":
            yield from _broadcast(context, node, given)


def _kind(node: Any) -> str:
    return type(node).__name__.rstrip("0123456789")


def _before(node: Any) -> Any:
    """Return the node that computed the first input of another, past those that only move values."""
    given = node.next_functions[0][0]
    while _kind(given) in _MOVES:
        given = given.next_functions[0][0]
    return given


def _of_two(context: FailureContext, cause: str, given: Any, node: Any, words: tuple[str, str], remedy: str) -> Finding:
    """Return a finding about a loss and a node that it is given the result of, with a sentence in two parts."""
    first, second = (context.site(context.walk.numbers[one]) for one in (given, node))
    message = f"suspicious: {words[0]}{at(first)} {words[1].replace('@', at(second))}"
    return Finding(cause, message, (), known_sites(first, second), remedy)


def _twice(context: FailureContext, kind: str, node: Any, given: Any) -> Finding:
    _, what, loss = _SQUASHED[kind]
    words = (
        f"is applied to what {loss}@ is given, which applies one of its own: the gradients become small, and the loss "
        "cannot go below a bound"
    )
    other = "nll_loss of log_softmax" if what == "softmax" else "binary_cross_entropy"
    remedy = f"leave out the {what}() and give the logits to the loss, or use {other}"
    return _of_two(context, "double-softmax", given, node, (f"{what}()", words), remedy)


def _without_logarithm(context: FailureContext, loss: str, node: Any, given: Any) -> Finding:
    words = f"the result of {_NO_LOGARITHM[_kind(given)]}", f"is given to {loss}@, which expects log-probabilities"
    remedy = "use log_softmax in place of softmax"
    if _kind(given) != "SoftmaxBackward":
        remedy = "use cross_entropy, which takes logits" if loss == "nll_loss" else "apply log_softmax to it before"
    return _of_two(context, "no-log-probabilities", given, node, words, remedy)


def _probabilities_in_kl_div(context: FailureContext, node: Any) -> Iterator[Finding]:
    """Yield a finding about a ``kl_div`` whose input holds no logarithms: it multiplies the target by the input."""
    given = next((one for one, _ in node.next_functions[1:] if _kind(one) in _NO_LOGARITHM), None)
    call = None if given is None else context.lookup.call(node)
    if call is not None and call.name == "kl_div":
        yield _without_logarithm(context, "kl_div", node, given)


def _over_samples(context: FailureContext, node: Any, given: Any) -> Iterator[Finding]:
    """Yield a finding about a log_softmax of (samples, classes) along the samples, whose result nll_loss takes."""
    shape = tuple(given._input_metadata[0].shape)
    if len(shape) != 2 or shape[0] == shape[1] or given._saved_dim not in (0, (1 << 64) - 2):
        return
    words = f"is over the {shape[0]} samples (dim=0) of shape {shape}, and nll_loss@ expects it over the classes"
    yield _of_two(
        context, "no-log-probabilities", given, node, ("log_softmax", words), "take the log_softmax with dim=1"
    )


def _broadcast(context: FailureContext, node: Any, expanded: Any) -> Iterator[Finding]:
    before, after = tuple(expanded._saved_self_sym_sizes), tuple(expanded._input_metadata[0].shape)
    if before == after or context.lookup.call(expanded) != context.lookup.call(node):  # expanded by the program
        return
    yield _compared(context, node, before, after)


def _squares(context: FailureContext, node: Any) -> Iterator[Finding]:
    """Yield a finding about a difference of (N, 1) and (N,), which is (N, N), of which a loss is made by hand."""
    minus = node.next_functions[0][0]
    terms = minus.next_functions if _kind(minus) == "SubBackward" else ()
    shape = tuple(minus._input_metadata[0].shape) if terms else ()
    if len(shape) != 2 or shape[0] != shape[1] or shape[0] == 1 or (None, 0) not in terms:
        return
    given, output = next(term for term in terms if term[0] is not None)
    before, walk = tuple(given._input_metadata[output].shape), context.walk
    is_column = before == (shape[0], 1) and _kind(given) not in _MAKES_COLUMNS
    is_reduced = all(
        _kind(walk.nodes[user]) in ("MeanBackward", "SumBackward") for user in walk.users[walk.numbers[node]]
    )
    if given.next_functions and is_reduced and (is_column or before == shape[:1]):
        site = context.site(walk.numbers[minus])
        if site is not None and not _ON_PURPOSE.search(site.statement):
            yield _compared(context, minus, before, shape)


_MAKES_COLUMNS = {*_MOVES, "UnsqueezeBackward", "ReshapeAliasBackward", "IndexBackward", "SumBackward", "MeanBackward"}
_ON_PURPOSE = re.compile(r"None|newaxis|unsqueeze|view|reshape")
"""Words by which a statement makes values ready to be compared with all others."""


def _compared(context: FailureContext, node: Any, before: tuple[int, ...], after: tuple[int, ...]) -> Finding:
    site = context.site(context.walk.numbers[node])
    message = (
        f"suspicious: the loss{at(site)} compares values of shape {before} with targets of another shape: both are "
        f"broadcast to {after}, so that each value is compared with several targets"
    )
    remedy = "give both the same shape, as by target.reshape(output.shape) or output.squeeze(-1)"
    return Finding("broadcast-loss", message, (), known_sites(site), remedy)


def edited_past_autograd(nodes: Iterable[Any]) -> Iterator[Finding]:
    """Yield findings about results in a graph whose values were changed through ``.data``.

    Args:
        nodes: the nodes of the graph.
    """
    edits = [edit for log in logs() if log.of_this_thread() for edit in log.data_edits]
    if not edits:
        return
    numbers = {node._sequence_nr() for node in nodes}
    sites = {edit: locate(edit.code, edit.instruction, edit.caller).site for edit in edits if edit.number in numbers}
    mine = [(edit, site) for edit, site in sites.items() if site is not None and not is_library(site.file)]
    for edit, site in {(site.file, site.line): (edit, site) for edit, site in mine}.values():
        path, remedy = without_data(site.statement or "", edit.operation)
        said = f"`{site.statement}`" if site.statement else "a statement"
        message = (
            f"suspicious: {said}{at(site)} changes a result that this loss is computed from through .data, where "
            "autograd does not see it: backward computes gradients as if nothing had changed there"
        )
        names = (Name(path, "local", exact=False),) if path else ()
        yield Finding("data-edit", message, names, known_sites(site), remedy)


def constant_term(frame: FrameType, roots: Sequence[Any], leaves: Collection[int]) -> Finding | None:
    """Return a finding about a term of a loss without a graph, of log-probabilities that depend on some of `leaves`."""
    variables, own = dict(_variables_of(frame)), frame.f_code
    lookup = FailureContext(roots).lookup
    sums = (node for one in roots if is_tensor(one) and (node := fact(one, "grad_fn")) is not None)
    calls = ((node, call) for node in sums if (call := lookup.call(node)) is not None and call.code is own)
    parts = ((node, locate(own, call.instruction).node) for node, call in calls)
    for term in (one for node, part in parts if part is not None for one in _constants(part, node)):
        read = [ast.unparse(one) for one in ast.walk(term) if isinstance(one, ast.Name | ast.Attribute)]
        made = [one for path in read for one in statements_binding(own, path)]
        paths = [*(path for one in made for path in one.reads), *read]
        path, cut = next(_log_probabilities({path: variables.get(path) for path in paths}, leaves), ("", None))
        if cut is not None:
            begin, origin = locate(cut.code, cut.instruction, cut.caller).site, site_of_tensor(variables[path])
            message = (
                f"suspicious: `{ast.unparse(term)}` is a term of the loss without a graph: `{path}`{at(origin)} "
                f"{why_cut(cut)}. Gradients reach the parameters behind it by other terms only"
            )
            remedy = (
                f"compute `{path}` again for the loss, outside of torch.no_grad(), by log_prob() of the same actions; "
                "what is recorded under no_grad can be the old one in a ratio of both"
            )
            sites = known_sites(*(one.site for one in made), origin, begin)
            return Finding("constant-term", message, (Name(path, "local", exact=False),), sites, remedy)
    return None


def _constants(part: ast.AST, node: Any) -> Iterator[ast.expr]:
    """Yield the terms of a sum in the source that have no graph, according to the nodes of the sum."""
    if isinstance(part, ast.BinOp) and _kind(node) in ("AddBackward", "SubBackward"):
        for side, (below, _) in zip((part.left, part.right), node.next_functions, strict=False):
            yield from [side] if below is None else _constants(side, below)


def _log_probabilities(values: dict[str, Any], leaves: Collection[int]) -> Iterator[tuple[str, DetachPoint]]:
    """Yield those of some values that are log-probabilities, with a call that cut them off from one of the leaves."""
    for path, held in values.items():
        made = note_of(held) if is_tensor(held) else None
        node = None if made is None else locate(made.code, made.instruction).node
        if is_tensor(held) and _LOG.search(path if node is None else f"{path} {ast.unparse(node)}"):
            cuts = [cut for log in logs() for cut in log.cuts_of(held) if cut.reason in ("no_grad", "inference")]
            yield from ((path, cut) for cut in cuts if any(id(one()) in leaves for one, _ in cut.inputs))


_LOG = re.compile(r"log_?p(rob|i\b|\b|s\b)|log_softmax")  # log_prob, logp, log_pi, ...


def leaf_loss(root: Any, called: Site | None) -> Finding | None:
    """Return a finding about a loss that is computed from nothing that requires grad, such as a number wrapped anew.

    Args:
        root: what backward is called on.
        called: the line that calls it.
    """
    if not is_tensor(root) or issubclass(type(root), torch.nn.Parameter):
        return None
    with DisableTorchFunction():
        if not fact(root, "is_leaf") or root.numel() != 1:
            return None
    context = FailureContext([root])
    name, made = context.name(root), made_at(root)
    message = (
        f"backward{at(called)} starts from {quote(name)}, which was made{at(made)} from nothing that requires grad, "
        "and was given requires_grad itself: no parameter gets a gradient from it"
    )
    remedy = "keep the tensor that the loss function returned, as it is: without .item(), float() and torch.tensor()"
    with DisableTorchFunction():
        cut = cut_before(context, root)
    if cut is None:
        return Finding("leaf-loss", message, culprits_of(name), known_sites(made, called), remedy)
    sites = known_sites(cut["off"], *cut["why"].sites, made, called)
    return Finding("leaf-loss", f"{message}; {cut['why']}", culprits_of(name), sites, cut["remedy"])


_COPIES = {"target", "teacher", "ema", "momentum"}
"""Words in the names of modules that follow another one, as a copy of their own."""


def same_module(frame: FrameType, roots: Sequence[Any]) -> Finding | None:
    """Return a finding about a target network that is the very network that learns, and is used beside it in a loss.

    The program says so by a plain assignment, such as ``target = online``.

    Args:
        frame: the frame that calls backward.
        roots: what backward is called on.
    """
    modules = [(path, held) for path, held in _variables_of(frame) if issubclass(type(held), torch.nn.Module)]
    copies = [(path, held) for path, held in modules if not _COPIES.isdisjoint(re.split(r"\W|_", path.lower()))]
    pairs = [(copy, path, held) for copy, held in copies for path, other in modules if other is held and path != copy]
    assigned = ((copy, path, held, _assignment(frame.f_code, copy, path)) for copy, path, held in pairs)
    copy, path, held, site = next((found for found in assigned if found[3] is not None), ("", "", None, None))
    context = FailureContext(roots)
    used = held is not None and site is not None and _is_used_twice(held, context)
    if held is None or site is None or not used or cuts_beside(context, parameters_in(held)):
        return None
    message = (
        f"suspicious: `{copy}` and `{path}` are the same module since `{site.statement}`{at(site)}, and this loss is "
        f"computed with it twice: what `{copy}` gives changes with every step, and the gradient flows through it, too"
    )
    remedy = (
        f"make a copy of its own, `{copy} = copy.deepcopy({path}).requires_grad_(False)`, and update it from time to "
        f"time: {copy}.load_state_dict({path}.state_dict())"
    )
    names = (Name(copy, "local", exact=False), Name(path, "local", exact=False))
    return Finding("same-module", message, names, known_sites(site), remedy)


def _variables_of(frame: FrameType) -> Iterator[tuple[str, Any]]:
    """Yield the variables of a frame, and the attributes of its ``self``, each with its path."""
    variables = {**frame.f_globals, **dict(locals_of(frame))}
    yield from variables.items()
    own = attributes_of(variables["self"]) if "self" in variables else {}
    for space in (own, own.get("_modules")):
        if type(space) is dict:
            yield from [(f"self.{name}", held) for name, held in space.items() if type(name) is str]


def _assignment(code: CodeType, path: str, value: str) -> Site | None:
    """Return the line of a statement ``path = value`` in the file of some code, or None."""
    source = source_of(code)
    nodes = ast.walk(source.tree) if source is not None and source.tree is not None else ()
    for node in (one for one in nodes if isinstance(one, ast.Assign)):
        if ast.unparse(node.value) == value and path in map(ast.unparse, node.targets):
            return Site(code.co_filename, node.lineno, statement=ast.unparse(node))
    return None


def _is_used_twice(module: Any, context: FailureContext) -> bool:
    """Return whether every parameter of a module that a loss reaches is used twice or more in computing it."""
    with DisableTorchFunction():
        theirs = {id(one) for one in parameters_in(module)}
        walk = context.walk
        uses = [len(walk.users[number]) for number in walk.leaf_numbers() if id(walk.nodes[number].variable) in theirs]
    return bool(uses) and min(uses) > 1


def not_frozen(modules: Iterable[nn.Module], parameters: Iterable[torch.Tensor], frame: FrameType) -> Iterator[Finding]:
    """Yield a finding for each module that was meant to be frozen.

    Args:
        modules: those that there are.
        parameters: those that a loss reaches.
        frame: the frame that calls backward; the assignment is looked for in its file.
    """
    reached = {id(one): one for one in parameters}
    for module in [one for one in modules if dict.get(attributes_of(one), "requires_grad") is False]:
        theirs = [reached[id(one)] for one in parameters_in(module) if id(one) in reached]
        if theirs:
            yield _unfrozen(module, theirs, _freezing(frame, module))


def _unfrozen(module: nn.Module, parameters: Sequence[torch.Tensor], site: Site | None) -> Finding:
    names = tuple(FailureContext().names(parameters))
    message = (
        f"suspicious: requires_grad = False was assigned to a module ({type(module).__name__}){at(site)}, where it is "
        f"an attribute like any other and freezes nothing: {quote_all(names)} still "
        f"{'gets a gradient' if len(names) == 1 else 'get gradients'}"
    )
    path = "module" if site is None else (site.statement or "").rpartition(".requires_grad")[0]
    return Finding("not-frozen", message, culprits_of(*names), known_sites(site), f"{path}.requires_grad_(False)")


def _freezing(frame: FrameType, module: nn.Module) -> Site | None:
    """Return the line of a statement that assigns False to ``requires_grad`` of a module, or None."""
    source = source_of(frame.f_code)
    nodes = ast.walk(source.tree) if source is not None and source.tree is not None else ()
    variables = {**frame.f_globals, **dict(locals_of(frame))}
    assignments = [one for one in nodes if isinstance(one, ast.Assign) and ast.unparse(one.value) == "False"]
    for node, target in ((one, target) for one in assignments for target in one.targets):
        if isinstance(target, ast.Attribute) and target.attr == "requires_grad":  # noqa: SIM102 - reads better so
            if _value_of(target.value, variables) is module:
                return Site(frame.f_code.co_filename, node.lineno, statement=ast.unparse(node))
    return None


def _value_of(path: ast.expr, variables: dict[str, Any]) -> Any:
    """Return what a path such as ``self.layers[0].norm`` leads to, read without running code of the program."""
    if isinstance(path, ast.Name):
        return variables.get(path.id)
    if isinstance(path, ast.Attribute):
        own = attributes_of(_value_of(path.value, variables))
        return dict.get(own if dict.__contains__(own, path.attr) else _modules_of(own), path.attr)
    if isinstance(path, ast.Subscript) and isinstance(path.slice, ast.Constant):
        return _modules_of(attributes_of(_value_of(path.value, variables))).get(str(path.slice.value))
    return None


def _modules_of(own: dict[str, Any]) -> dict[str, Any]:
    modules = dict.get(own, "_modules")
    return modules if type(modules) is dict else {}
