"""Topics: all subjects that are watched, each told of calls, losses and steps as long as it looks at them."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch
from torch import nn
from torch.nn.functional import dropout

from byname.diagnose.causes.loss import Loss
from byname.diagnose.engine import safely
from byname.diagnose.finding import Finding
from byname.diagnose.followed_optimizer import FollowedOptimizer
from byname.diagnose.silent.loading import Loading
from byname.diagnose.silent.samples import Batches
from byname.diagnose.silent.sequences import Sequences
from byname.diagnose.silent.steps import Clipping, Ranks, Schedules
from byname.diagnose.silent.topic import LOSS_FUNCTIONS, HeardCall, Topic, Watch
from byname.diagnose.silent.validation import EvaluationMode
from byname.diagnose.silent.weights import Weights
from byname.reading.modules import parameters_in
from byname.undo import Undo

_LOOKED_INTO, _HEARD_IN, _FIRST = 2, 64, 16
"""Steps in which modules inside of others are looked at; losses and outermost modules; the steps themselves."""


class Topics:
    """All topics of a watch. It listens to the tracker, which tells of calls."""

    def __init__(self, tell: Callable[[Finding], None], watch: Watch) -> None:
        self._watch = watch
        self._modules: dict[int, tuple[weakref.ref[nn.Module], bool]] = {}
        self._schedules, self._weights = Schedules(tell, watch), Weights(tell, watch)
        kinds = (Loading, Clipping, EvaluationMode, Batches, Sequences, Ranks)
        self._every: list[Topic] = [self._schedules, self._weights, *(kind(tell, watch) for kind in kinds)]

    def begin(self, block: Undo) -> None:
        """Watch until the block is left."""
        for topic in self._every:
            topic.begin(block)

    def heard(self, function: Any, args: Sequence[Any], kwargs: dict[str, Any], frame: FrameType) -> None:
        """Note a call of a loss or a dropout in the first steps."""
        if self._watch.made <= _HEARD_IN and (function in LOSS_FUNCTIONS or function is dropout):
            for topic in self._every:
                safely(topic.heard, HeardCall(function, args, kwargs, frame))

    def ran(self, module: nn.Module, args: Sequence[Any], kwargs: dict[str, Any], depth: int, frame: FrameType) -> None:
        """Note that a module is called; after the first steps only that of an outermost one, without gradients."""
        if self._watch.made > (_LOOKED_INTO if depth else _HEARD_IN) and (depth or torch.is_grad_enabled()):
            return
        if depth or self._has_parameters(module):
            for topic in self._every:
                safely(topic.ran, HeardCall(module, args, kwargs, frame, depth))

    def _has_parameters(self, module: nn.Module) -> bool:
        """Return whether a module has parameters, unlike a loss."""
        known = self._modules.get(id(module))
        if known is None or known[0]() is not module:
            known = self._modules[id(module)] = weakref.ref(module), bool(parameters_in(module))
        return known[1]

    def note_losses(self, roots: Sequence[Any]) -> None:
        """Note the losses of a backward call, while gradients are 0."""
        if self._weights.dead:
            self._weights.note_losses(roots)

    def backward(self, loss: Loss) -> None:
        """Look at the graph of one of the first backward calls of a line."""
        for topic in self._every:
            safely(topic.backward, loss)

    def before_step(self, followed: FollowedOptimizer) -> None:
        """Look at an optimizer that is about to make one of its first steps, or step 32, 33, 64, 65 and so on."""
        number = followed.steps
        near = number & (number - 1) == 0 or (number - 1) & (number - 2) == 0
        if number <= _FIRST or near or id(followed) in self._weights.dead:
            for topic in self._every:
                safely(topic.before_step, followed)

    def after_step(self, followed: FollowedOptimizer) -> None:
        """Compare what a step changed, if it is one of those that are looked at."""
        if self._schedules.before:
            safely(self._schedules.after_step, followed)

    def end(self, every: Sequence[FollowedOptimizer]) -> None:
        """Tell what was found of a program that ends."""
        for topic in self._every:
            safely(topic.end, every)
