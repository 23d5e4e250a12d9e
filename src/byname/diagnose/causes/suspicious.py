"""Suspicious losses: double-softmax, broadcast-loss, data-edit, leaf-loss, same-module.

The graph, or the log, shows a pattern that computes what it says, and hardly ever what was meant.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from types import CodeType, FrameType
from typing import Any

import torch

from byname.diagnose.causes.not_reached import cut_before
from byname.diagnose.causes.out_of_place import without_data
from byname.diagnose.context import FailureContext, made_at
from byname.diagnose.finding import Finding, culprits_of, known_sites
from byname.naming.name import Name, at, quote
from byname.reading.frames import locals_of
from byname.reading.modules import parameters_in
from byname.reading.objects import attributes_of
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact, is_tensor
from byname.source.code import source_of
from byname.source.location import Site, is_library, locate
from byname.tracking.tracker import logs

__all__ = ["edited_past_autograd", "leaf_loss", "same_module", "suspicious_losses"]

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
_MOVES = {"ViewBackward", "UnsafeViewBackward", "TransposeBackward", "PermuteBackward", "SqueezeBackward", "TBackward"}


def suspicious_losses(nodes: Iterable[Any], roots: Sequence[Any]) -> Iterator[Finding]:
    """Yield findings about the losses in a graph.

    Args:
        nodes: the nodes of the graph.
        roots: what backward is called on.
    """
    context: FailureContext | None = None
    for node in nodes:
        kind = _kind(node)
        if kind not in _SQUASHED and kind not in _COMPARING and kind not in _TAKES_LOGARITHMS:
            continue
        given = _before(node)
        context = context or FailureContext(roots)
        if kind in _SQUASHED and _kind(given) == _SQUASHED[kind][0]:
            yield _twice(context, kind, node, given)
        elif kind in _TAKES_LOGARITHMS and _kind(given) in _NO_LOGARITHM:
            yield _without_logarithm(context, node, given)
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


def _twice(context: FailureContext, kind: str, node: Any, given: Any) -> Finding:
    _, what, loss = _SQUASHED[kind]
    first, second = (context.site(context.walk.numbers[one]) for one in (given, node))
    message = (
        f"suspicious: {what}(){at(first)} is applied to what {loss}{at(second)} is given, which applies one of "
        "its own: the gradients become small, and the loss cannot go below a bound"
    )
    other = "nll_loss of log_softmax" if what == "softmax" else "binary_cross_entropy"
    remedy = f"leave out the {what}() and give the logits to the loss, or use {other}"
    return Finding("double-softmax", message, (), known_sites(first, second), remedy)


def _without_logarithm(context: FailureContext, node: Any, given: Any) -> Finding:
    first, second = (context.site(context.walk.numbers[one]) for one in (given, node))
    message = (
        f"suspicious: nll_loss{at(second)} expects log-probabilities, and is given the result of "
        f"{_NO_LOGARITHM[_kind(given)]}{at(first)}"
    )
    softened = _kind(given) == "SoftmaxBackward"
    remedy = f"{'use log_softmax in place of softmax' if softened else 'use cross_entropy, which takes logits'}"
    return Finding("no-log-probabilities", message, (), known_sites(first, second), remedy)


def _broadcast(context: FailureContext, node: Any, expanded: Any) -> Iterator[Finding]:
    before, after = tuple(expanded._saved_self_sym_sizes), tuple(expanded._input_metadata[0].shape)
    if before == after:
        return
    site = context.site(context.walk.numbers[node])
    message = (
        f"suspicious: the loss{at(site)} compares values of shape {before} with targets of another shape: both are "
        f"broadcast to {after}, so that each value is compared with several targets"
    )
    remedy = "give both the same shape, as by target.reshape(output.shape) or output.squeeze(-1)"
    yield Finding("broadcast-loss", message, (), known_sites(site), remedy)


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
    sites = known_sites(*cut.sites, made, called)
    return Finding("leaf-loss", f"{message}; {cut.message}", culprits_of(name), sites, cut.remedy)


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
    if site is None or not _is_used_twice(held, FailureContext(roots)):
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
