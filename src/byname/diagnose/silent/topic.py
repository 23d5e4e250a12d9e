"""Topic: one subject that byname watches while a program runs, such as the clipping of gradients."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import FrameType, GeneratorType
from typing import Any, Protocol

import torch
import torch.nn.functional as F

from byname.diagnose.cause import Cause, always, no_extra_facts, variable
from byname.diagnose.causes.loss import Loss
from byname.diagnose.context import node_of, value_of
from byname.diagnose.engine import safely
from byname.diagnose.finding import Finding
from byname.diagnose.followed_optimizer import FollowedOptimizer
from byname.diagnose.nonfinite.reasons import is_readable, reading_values
from byname.naming.name import Name, in_words
from byname.reading.frames import Line, reported_frame, user_line, variables_at
from byname.reading.quiet import dynamo_skip
from byname.reading.tensor import PLAIN, fact, is_tensor
from byname.undo import Patch, Undo


@dataclass
class ObservedCall:
    """A call of a module, or of a function of PyTorch's: its arguments, its frame, and how many modules it is in."""

    called: Any
    args: Sequence[Any]
    kwargs: dict[str, Any]
    frame: FrameType
    depth: int = 0

    @classmethod
    def by_hand(cls, line: Line, reduction: str, frame: FrameType | None) -> ObservedCall | None:
        """Return a line that subtracts targets as a call of ``mse_loss``; None if the targets are in no variable now.

        Where the line is in a function that has ended, its arguments are looked for in the function that called it.
        """
        node, code, outer = node_of(line), line.code, line.caller
        sides, variables = [getattr(node, "left", None), getattr(node, "right", None)], variables_at(code, frame)
        if not variables and code is not None and outer is not None:
            args = getattr(node_of(Line(*outer)), "args", ())
            given = dict(zip(code.co_varnames[: code.co_argcount], args, strict=False))
            sides, variables = [given.get(getattr(one, "id", "")) for one in sides], variables_at(outer[0], frame)
        found = [value for one in sides if (value := tensor_given_by(one, variables)) is not None]
        targets = [one for one in found if not fact(one, "requires_grad")]
        if frame is None or len(targets) != 1 or len({one.numel() for one in found}) != 1:
            return None
        outputs = [one for one in found if one is not targets[0]] or targets
        call = cls(F.mse_loss, (outputs[0], targets[0]), {"reduction": reduction}, frame)
        call.line = line
        return call

    @cached_property
    def line(self) -> Line:
        return user_line(self.frame)

    @cached_property
    def programs_line(self) -> Line:
        """The line of the program, past libraries."""
        return user_line(reported_frame(self.frame))

    @cached_property
    def tensors(self) -> list[torch.Tensor]:
        return [one for one in (*self.args, *self.kwargs.values()) if is_tensor(one)]

    def given(self, number: int, name: str, otherwise: Any = None) -> Any:
        return self.args[number] if len(self.args) > number else self.kwargs.get(name, otherwise)

    @property
    def targets(self) -> torch.Tensor | None:
        """The targets of a loss; None of any other call. A difference has two sides: the one without a graph."""
        sides: list[torch.Tensor] = [self.given(0, "input"), self.given(1, "target")]
        if self.called not in LOSS_FUNCTIONS or not all(map(is_tensor, sides)):
            return None
        output, target = sides
        is_swapped = self.called in _DIFFERENCES and fact(target, "requires_grad") and not fact(output, "requires_grad")
        return output if is_swapped else target


def tensor_given_by(node: ast.AST | None, variables: dict[str, Any]) -> torch.Tensor | None:
    """Return the tensor of a variable, attribute or entry, also where a method only gives it another shape or dtype."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _SAME_NUMBERS:
        return tensor_given_by(node.func.value, variables)
    if not isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        return None
    found = value_of(node, variables)
    is_part = isinstance(node, ast.Subscript) and is_tensor(value_of(node.value, variables))
    return found if is_tensor(found) and not is_part else None


_SAME_NUMBERS = frozenset("detach flatten float reshape squeeze to unsqueeze view view_as".split())
_DIFFERENCES = {F.mse_loss, F.l1_loss, F.smooth_l1_loss, F.huber_loss}
LOSS_FUNCTIONS = {
    *(F.cross_entropy, F.nll_loss, F.kl_div, F.binary_cross_entropy, F.binary_cross_entropy_with_logits),
    *_DIFFERENCES,
}
SIGNED = {F.cosine_embedding_loss: 2, F.margin_ranking_loss: 2, F.soft_margin_loss: 1, F.hinge_embedding_loss: 1}
"""Losses whose targets are 1 and -1, and the number of that argument."""
LOSSES_WITH_TARGETS = LOSS_FUNCTIONS | SIGNED.keys() | {F.ctc_loss}


class Watch(Protocol):
    """The watch that the topics belong to."""

    steps: int
    began: int
    is_finite_watched: bool
    leaves_out_losses: bool  # of many in a step, so that no others are known to be like those looked at

    def report_once(self, finding: Finding) -> None:
        """Report a finding, unless it was reported before."""

    def optimizers(self) -> list[FollowedOptimizer]:
        """Return the optimizers that are followed."""


class Topic:
    """One subject. Each method is called at an event, and does nothing by default; not every step is an event.

    It holds the program's tensors, modules and optimizers weakly, and reads few values.
    """

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def begin(self, block: Undo) -> None:
        """Watch until the block is left."""

    def ran(self, call: ObservedCall) -> None:
        """Note a call of a module with gradients in the first steps; in the first two also of an inner module."""

    def evaluated(self, call: ObservedCall) -> None:
        """Note a call of an outermost module without gradients."""

    def applied(self, call: ObservedCall) -> None:
        """Note a call of a loss function, of a dropout without gradients, or of ``copy_()``."""

    def backward(self, loss: Loss) -> None:
        """Look at the graph of one of the first backward calls of a line."""

    def before_step(self, followed: FollowedOptimizer) -> None:
        """Look at an optimizer that is about to make a step."""

    def end(self, every: Sequence[FollowedOptimizer]) -> None:
        """Report what was found when the program ends."""

    def owned(self) -> set[int]:
        """Return the ids of the parameters that any optimizer has."""
        return {key for followed in self._watch.optimizers() for key in followed.keys}

    def report(self, cause: Cause[Any], noticed: Any = None, **facts: Any) -> None:
        """Report facts in the words of a cause."""
        self._watch.report_once(cause.finding({"noticed": noticed, **facts}))


def topic_cause(identifier: str, template: str, remedy: str) -> Cause[Any]:
    """Return a cause whose facts a topic finds."""
    return Cause(identifier, always, no_extra_facts, template, remedy)


def on_call(
    block: Undo, owner: Any, name: str, note: Callable[[ObservedCall, Any], None], *, reads_whole: bool = False
) -> None:
    """Call a function after each call of one of PyTorch's own, with its result.

    With `reads_whole`, a generator given as the first argument becomes a list, which can be read twice. This is for
    functions that read it to its end.
    """

    def wrapper(original: Any) -> Any:
        @dynamo_skip
        @functools.wraps(original)
        def noted(*args: Any, **kwargs: Any) -> Any:
            if reads_whole and args and type(args[0]) is GeneratorType:
                args = ([*args[0]], *args[1:])
            result = original(*args, **kwargs)
            safely(note, ObservedCall(original, args, kwargs, sys._getframe(1)), result)
            return result

        return noted

    if name in vars(owner):
        replaced = Patch(owner, name, wrapper)
        block.add(replaced.remove)
        replaced.install()


def arg_name(line: Line, number: int, otherwise: str = "a tensor") -> Name:
    """Return the name of a positional argument of the call on a line, or of its receiver for -1."""
    expr = line.expr
    path = None if expr is None else expr.receiver if number < 0 else (*expr.operands, *[None] * 9)[number]
    return variable(path) if path or not otherwise else in_words(otherwise)


def copy_values(tensor: Any, most: int = 1 << 16) -> torch.Tensor | None:
    """Return a copy of a tensor's numbers, up to a number of them; None if they cannot be read."""
    if type(tensor) not in PLAIN:
        return None
    with reading_values():
        if not is_readable(tensor) or tensor.layout is not torch.strided or not 0 < tensor.numel() <= most:
            return None
        copied: torch.Tensor = tensor.detach().cpu().clone()
        return copied


def distinct(values: torch.Tensor) -> int:
    """Return how many different numbers there are."""
    return len(set(values.flatten().tolist()))


def has_equal_rows(values: torch.Tensor) -> bool:
    return len(values) > 1 and bool((values == values[:1]).all())
