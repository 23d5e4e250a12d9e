"""Unattended: `check` for each new loss of a running program, which avoids false alarms."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.optim.optimizer import register_optimizer_step_pre_hook

from byname.autograd.walk import has_graph
from byname.diagnose.causes.iterations import GRAPH_GROWS, GRAPH_IN_GRAD
from byname.diagnose.causes.not_reached import MAY_BE, Unreached, cut_off
from byname.diagnose.check import problems
from byname.diagnose.context import FailureContext
from byname.diagnose.engine import BackwardCall
from byname.diagnose.finding import Finding
from byname.diagnose.learning import LearningWatch
from byname.diagnose.silent.topics import Topics
from byname.naming.names import find
from byname.naming.search import Targets
from byname.reading.modules import parameters_of
from byname.reading.objects import living
from byname.reading.quiet import DisableTorchFunction, collection_paused, dynamo_skip
from byname.reading.tensor import fact
from byname.source.code import ThisCode
from byname.source.location import is_library
from byname.undo import Undo


class RunningCheck:
    """Check of the first backward call on each new loss, that is, of each line of the program that calls backward.

    Nobody has said which model should learn from which loss. So it asks only about the optimizers that have a parameter
    of the graph. Of their parameters that the loss does not reach, it reports only those that a recorded call cut off,
    and that have no gradient from any other loss when the optimizer makes its step.
    """

    def __init__(
        self, report: Callable[[Finding], None], models: Sequence[nn.Module], optimizers: Sequence[Any]
    ) -> None:
        self._report = report
        self._models, self._optimizers = models, optimizers
        self._runs: dict[tuple[ThisCode, int], int] = {}
        self._told: set[tuple[str, tuple[str, ...]]] = set()
        self._waiting: list[_Waiting] = []
        self._learning = LearningWatch(self.tell)

    @property
    def listener(self) -> Topics:
        """Who listens to the calls that the tracker hears."""
        return self._learning.topics

    def begin(self, block: Undo) -> None:
        """Watch the steps of optimizers until the block is left."""
        block.register(register_optimizer_step_pre_hook, self._before_step)
        self._learning.begin(block)

    def before(self, run: BackwardCall, roots: Sequence[Any]) -> list[Finding]:
        """Check the roots of a backward call that is about to run; return the findings that foretell an error of it.

        Each line's first call is checked fully, and a later one for a graph that has grown. What foretells an error is
        not reported yet: the note on the error says it, too.
        """
        place = run.line.place
        number = self._runs[place] = self._runs.get(place, 0) + 1
        if run.partial:
            return []
        with DisableTorchFunction(), collection_paused():
            return self._look(run, roots, number)

    def _look(self, run: BackwardCall, roots: Sequence[Any], number: int) -> list[Finding]:
        around = living(torch.optim.Optimizer, nn.Module) if number == 1 else []
        graph = FailureContext([one for one in roots if has_graph(one)])
        self._learning.before(run, graph, number, around)
        if number == _GROWN_BY:
            self._tell_of_growth(roots)
        if number != 1:
            return []
        every = [one for one in around if issubclass(type(one), torch.optim.Optimizer)]
        optimizers = self._optimizers or _concerned(graph, every)
        whole = graph if len(graph.roots) == len(roots) else FailureContext(roots)
        found = problems(whole.about(self._models, optimizers))
        for finding in found:
            if finding.cause not in _FORETELLING:
                self.tell(finding)
        if not self._models:
            self._note_cuts(graph, optimizers, every)
        return [one for one in found if one.cause in _FORETELLING]

    def _note_cuts(self, graph: FailureContext, optimizers: Sequence[Any], every: Sequence[Any]) -> None:
        """Note the findings about optimizers' parameters that recorded calls cut off from a loss.

        Those of an optimizer that has other parameters of the graph are told at its next step. The others, and those
        whose cut is in doubt, are told if the parameters never get a gradient.
        """
        concerned = set(map(id, optimizers))
        for optimizer in {id(one): one for one in [*optimizers, *every]}.values():
            for group, finding in _cut_off_from(graph, optimizer):
                if id(optimizer) in concerned and group.sure is not MAY_BE:
                    parameters = [weakref.ref(one) for one in group.parameters]
                    self._waiting.append(_Waiting(finding, weakref.ref(optimizer), parameters))
                if group.sure is not MAY_BE or not any(is_library(site.file) for site in finding.sites):
                    self._learning.note_cut(optimizer, finding, group.parameters)

    def _tell_of_growth(self, roots: Sequence[Any]) -> None:
        """Report problems that only show after some iterations, of these losses and of results that variables hold."""
        for one in filter(has_graph, [*roots, *_held_results()]):
            context = FailureContext([one])
            for finding in [*GRAPH_GROWS.findings(context), *GRAPH_IN_GRAD.findings(context)]:
                if finding.culprits or any(one is root for root in roots):
                    self.tell(finding)

    @dynamo_skip
    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        """Report the waiting findings about an optimizer's parameters that have no gradient when it makes its step."""
        mine = [one for one in self._waiting if one.optimizer() is optimizer]
        self._waiting = [one for one in self._waiting if one.optimizer() not in (optimizer, None)]
        with DisableTorchFunction():
            still = [one for one in mine if one.have_no_gradient()]
        for one in still:
            self.tell(one.finding)

    def tell(self, finding: Finding) -> None:
        """Report a finding, unless it was reported before."""
        key = (finding.cause, tuple(list(map(str, finding.culprits))))
        if key not in self._told:
            self._told.add(key)
            self._report(finding)


_FORETELLING = ("backward-twice", "modified-in-place", "no-grad-path", "optimizer-step-between")
"""Causes of errors that backward raises, and gives a note about the same."""
_GROWN_BY = 4
"""The number of the backward call of a line that is checked for a grown graph, three iterations after the first."""


class _Waiting(NamedTuple):
    """A finding about parameters of an optimizer, which another loss may still disprove."""

    finding: Finding
    optimizer: weakref.ref[Any]
    parameters: list[weakref.ref[torch.Tensor]]

    def have_no_gradient(self) -> bool:
        """Return whether none of the living parameters has a gradient; False if no parameter is alive."""
        alive = [tensor for reference in self.parameters if (tensor := reference()) is not None]
        return bool(alive) and all(fact(tensor, "grad") is None for tensor in alive)


def _cut_off_from(graph: FailureContext, optimizer: Any) -> Iterator[tuple[Unreached, Finding]]:
    """Yield each group of an optimizer's parameters that recorded calls cut off from a loss, with the finding."""
    if not graph.roots:
        return
    context, reached = graph.about(optimizers=[optimizer]), set(map(id, graph.leaves))
    missing = [one for one in parameters_of(optimizer) if fact(one, "requires_grad") and id(one) not in reached]
    for group in cut_off(context, missing):
        if group.cuts:
            yield group, group.finding(context)


def _held_results() -> list[torch.Tensor]:
    """Return results of operations that the program's variables hold, such as a running total, up to `_MOST_HELD`."""
    held = find(Targets([]), deep=False).tensors()
    results = [tensor for tensor in held if fact(tensor, "grad_fn") is not None]
    return list({id(tensor): tensor for tensor in results}.values())[:_MOST_HELD]


_MOST_HELD = 50


def _concerned(graph: FailureContext, optimizers: Iterable[Any]) -> list[Any]:
    """Return those of the optimizers that have a leaf of this graph."""
    reached = set(map(id, graph.leaves))
    return [one for one in optimizers if any(id(parameter) in reached for parameter in parameters_of(one))]
