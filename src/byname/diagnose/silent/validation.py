"""Evaluation: forwards without gradients whose dropout and batch norms are in training mode."""

from __future__ import annotations

import ast
import re
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from byname.diagnose.followed_optimizer import FollowedOptimizer, has_modes, is_training
from byname.diagnose.silent.topic import HeardCall, Topic, row, values_of, variable
from byname.reading.frames import Line, line_of, users_frame
from byname.reading.modules import modules_in, parameters_in
from byname.source.code import enclosing_statement
from byname.source.location import is_library
from byname.tracking.log import logs

# fmt: off
TRAINS_IN_VALIDATION = row("evaluated-in-training-mode",
    "suspicious: {modal} of {module} {modal:is|are} in training mode in the forwards without gradients{noticed:at}, "
    "after training steps: dropout drops values, and a batch norm uses and keeps the statistics of these batches",
    "call {module.path}.eval() before the evaluation and {module.path}.train() after it; it is right for Monte Carlo "
    "dropout")
DROPS_IN_EVALUATION = row("dropout-in-evaluation",
    "suspicious: dropout(){noticed:at} drops values although {module} is in evaluation mode, after eval(): the "
    "function does so unless it is given training=False", "F.dropout(..., training=self.training), or an nn.Dropout")
# fmt: on

_LOOKS = 64
"""Forwards of a line whose modules and inputs are looked at."""
_WORDS = re.compile(
    r"valid|\bval_|_val\b|\bval\b|test|eval|accura|\bacc\b|correct|metric|score|criterion|loss|cross_entropy|argmax|predict"
)
"""Words by which code that evaluates a model is known from code that only draws samples."""


class _WithoutGradients(NamedTuple):
    """A forward without gradients: the steps before it, the modules in training mode, its input's shape and sum."""

    steps: int
    modal: tuple[str, ...]
    given: Any


class EvaluationMode(Topic):
    """Watches the outermost calls of modules without gradients."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._lines: dict[Any, tuple[Line, FollowedOptimizer, list[_WithoutGradients]]] = {}

    def ran(self, call: HeardCall) -> None:
        """Note a call without gradients of a module that an optimizer trains."""
        user, inside = users_frame(call.frame)
        if call.depth or torch.is_grad_enabled() or inside or user is not call.frame.f_back:  # by PyTorch: a checkpoint
            return
        line = line_of(user)
        if line.place not in self._lines:
            keys = set(map(id, parameters_in(call.called)))
            owners = [one for one in self._watch.optimizers() if one.steps and not keys.isdisjoint(one.keys)]
            if not owners:
                return
            self._lines[line.place] = line, owners[0], []
        _, owner, forwards = self._lines[line.place]
        if len(forwards) < _LOOKS:
            modal = {type(one).__name__ for one in modules_in(call.called) if is_training(one) and has_modes(one)}
            values = values_of(call.tensors[0]) if call.tensors else None
            given = None if values is None else (values.shape, float(values.double().sum()))
            forwards.append(_WithoutGradients(owner.steps, tuple(sorted(modal)), given))

    def heard(self, call: HeardCall) -> None:
        """Tell of a dropout that is called as a function, without saying in which mode."""
        if call.called is F.dropout and not torch.is_grad_enabled() and not users_frame(call.frame)[1]:
            running = [one for log in logs() if log.of_this_thread() for one in log.modules[:1]]
            module, spot = running[0]() if running else None, call.line.spot
            node = None if spot is None else spot.node
            says = (
                not isinstance(node, ast.Call) or len(node.args) > 2 or "training" in [one.arg for one in node.keywords]
            )
            is_on = not says and call.kwargs.get("training") and self._watch.made
            is_on = is_on and spot is not None and not is_library(spot.site.file)
            if is_on and spot is not None and module is not None and not is_training(module):
                self.say(DROPS_IN_EVALUATION, spot.site, module=variable(type(module).__name__))

    def end(self, every: Sequence[FollowedOptimizer]) -> None:
        """Tell of the lines that looked so in the whole run."""
        for line, owner, forwards in self._lines.values():
            if not _looks_meant(forwards) and owner.steps > 1 and _evaluates(line):
                called = getattr(getattr(line.spot, "node", None), "func", None)
                name = variable(ast.unparse(called) if isinstance(called, ast.Name | ast.Attribute) else "model")
                self.say(TRAINS_IN_VALIDATION, line.site, modal=tuple(map(variable, forwards[0].modal)), module=name)


def _looks_meant(forwards: Sequence[_WithoutGradients]) -> bool:
    """Return whether forwards repeat an input, are a part of each step as pseudo-labels are, or have the right mode."""
    pairs = [*pairwise(forwards)]
    repeats = any(one.steps == other.steps and one.given == other.given is not None for one, other in pairs)
    return (
        repeats or any(other.steps - one.steps == 1 for one, other in pairs) or not all(one.modal for one in forwards)
    )


def _evaluates(line: Line) -> bool:
    """Return whether the code around a call speaks of an evaluation: the block without gradients, or the function."""
    spot = line.spot
    if spot is None or spot.node is None or is_library(spot.site.file):
        return False
    block: Any = enclosing_statement(spot.node)
    while not isinstance(block, ast.With | ast.FunctionDef | ast.Module):
        block = block.parent
    return not isinstance(block, ast.Module) and bool(_WORDS.search(ast.unparse(block)))
