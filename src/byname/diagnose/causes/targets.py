"""Targets: what a loss should take as it is and that carries a graph, and noise that is drawn as it should not be."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import permutations
from typing import Any

import torch
from torch import nn

from byname.autograd.slots import held_by_nodes
from byname.autograd.walk import leaf_tensors, nodes_from
from byname.diagnose.cause import Cause, Facts, variable
from byname.diagnose.causes.flat import DRAWN
from byname.diagnose.causes.loss import COMPARING, MOVES, Loss, differences, is_first, node_kind
from byname.diagnose.context import FailureContext, callee_text, node_of
from byname.tracking.lookup import creation_record_of


def _sides(loss: Loss, node: Any) -> list[tuple[str, Any]]:
    """Return the source of both operands of an operation, each with its node; none if one of them has no graph."""
    edges = [one for one, _ in node.next_functions]
    call = loss.call(node) if len(edges) == 2 and None not in edges else None
    made = None if call is None else node_of(call.line)
    parts = [made.left, made.right] if isinstance(made, ast.BinOp) else getattr(made, "args", [])[:2]
    return [*zip(map(ast.unparse, parts), edges, strict=False)] if len(parts) == 2 else []


def _weights_behind(node: Any) -> dict[int, torch.Tensor]:
    every = leaf_tensors(nodes_from([node], set()))
    return {id(one): one for one in every if issubclass(type(one), nn.Parameter)}


def _moving_targets(loss: Loss) -> Iterator[Facts]:
    """Yield the targets that are computed from weights from which the predictions are computed, too."""
    for node in [*loss.of_kinds(COMPARING), *(minus for minus, _, _ in differences(loss))]:
        for (path, target), (_, other) in permutations(_sides(loss, node), 2):
            behind = _weights_behind(target) if _TARGET.search(path) and "(" not in path else {}
            others = _weights_behind(other) if behind else {}
            if shared := [one for key, one in behind.items() if key in others]:
                yield loss.between(target, node, target=variable(path), names=tuple(FailureContext().names(shared)))


def _moving_weights(loss: Loss) -> Iterator[Facts]:
    """Yield the weights of log-probabilities, or of ratios of them, that are computed from weights of their own."""
    for node in loss.of_kinds(("MulBackward",)):
        for (path, advantage), (text, other) in permutations(_sides(loss, node), 2):
            if _ADVANTAGE.search(path) and _LOG_PROBABILITY.search(text):
                others = _weights_behind(other)
                if own := [one for key, one in _weights_behind(advantage).items() if key not in others]:
                    names = tuple(FailureContext().names(own))
                    yield loss.between(advantage, node, advantage=variable(path), names=names)


def _uniform_noise(loss: Loss) -> Iterator[Facts]:
    """Yield noise from 0 to 1 that a scale multiplies, which is added to a mean."""
    for node, _, noise in held_by_nodes([one for one in loss.of_kinds(("MulBackward",)) if _scale_of(one)]):
        made = creation_record_of(noise) if "AddBackward" in map(node_kind, loss.users(node)) else None
        if made is not None and UNIFORM.search(draw := callee_text(made.line)):
            yield {"drawn": made.line.site, "used": loss.site(node), "draw": draw}


def _scale_of(node: Any) -> bool:
    """Return whether a product has one factor with a graph, a scale that is positive by its kind."""
    kinds = [node_kind(one) for one, _ in node.next_functions if one is not None]
    return len(kinds) == 1 and kinds[0] in ("ExpBackward", "SoftplusBackward", "SqrtBackward")


def _drawn(loss: Loss) -> Iterator[Facts]:
    """Yield a draw from a normal distribution that a layer is given, if its mean gets a gradient in another way."""
    for node in loss.of_kinds(("NormalBackward",)):
        walk, seen = loss.context.walk, {loss.context.walk.numbers[node]}
        around = [walk.numbers[one] for one, _ in node.next_functions if one is not None]
        for number in around:  # ways to the loss around the draw
            around += (new := set(walk.users[number]) - seen)
            seen |= new
        uses = loss.uses(node, lambda _, user: node_kind(user) in {*MOVES, "CatBackward"})
        if not {*walk.roots}.isdisjoint(around) and any(node_kind(user) in _LAYERS for _, user in uses):
            yield {"drawn": loss.site(node)}
            return


_LAYERS = {"AddmmBackward", "MmBackward", "BmmBackward", "ConvolutionBackward"}
UNIFORM = re.compile(r"\brand(_like)?$")
OF_UNIFORM, NORMAL = (
    "its mean is 0.5, not 0, and its standard deviation 0.29, not 1",
    "torch.randn_like(), which is normal",
)
_TARGET = re.compile(r"(?<![a-z])(targets?|expected|bellman)(?![a-z])")
_ADVANTAGE = re.compile(r"(?<![a-z])(adv|advantages?|td_errors?|deltas?|baselines?|values?)(?![a-z])")
_LOG_PROBABILITY = re.compile(r"log_?p|logp|ratio")

# fmt: off
TARGETS: tuple[Cause[Loss], ...] = (
    Cause("target-with-gradient", is_first, _moving_targets,
        "suspicious: {target}{given:at} has a graph: the loss{used:at} changes it, too, by {names:3}, from which the "
        "prediction is computed as well, so that both run after each other or collapse",
        "compute it under torch.no_grad(), or give the loss {target.path}.detach(); it is right if both should move"),
    Cause("advantage-with-gradient", is_first, _moving_weights,
        "suspicious: {advantage}{given:at} has a graph to {names:3}: the product with log-probabilities{used:at} "
        "trains {names:it|them}, too, to make the loss of the policy small, not to predict returns",
        "{advantage.path}.detach() in this product"),
    Cause("uniform-noise", is_first, _uniform_noise,
        "suspicious: the noise that a scale multiplies{used:at} is drawn by {draw}(){drawn:at}, from 0 to 1: "
        f"{OF_UNIFORM}", NORMAL),
    Cause("zero-gradient", is_first, _drawn,
        "suspicious: the derivative of normal(){drawn:at} is 0 everywhere: what is computed from its draw gives no "
        "gradient to its mean and standard deviation, which other terms of the loss do",
        f"{DRAWN['normal']}; it is right if they should learn from the other terms only"),
)
# fmt: on
"""Causes that concern what a loss should take as it is."""
