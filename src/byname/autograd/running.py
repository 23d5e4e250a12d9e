"""What is to be said about a program that runs unattended? `check` for each new loss, careful not to cry wolf."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from types import CodeType, TracebackType
from typing import Any

from torch import nn

from byname.autograd.check import check
from byname.autograd.engine import Run
from byname.autograd.finding import Finding
from byname.autograd.scene import living_optimizers, parameters_of
from byname.autograd.walk import Walk, has_graph
from byname.quiet import untouched

__all__ = ["RunningCheck"]


class RunningCheck:
    """Checks the first backward of each new loss: of each line of the program that asks for one.

    Nobody told it which model should learn from which loss, so it asks only about the optimizers that have a parameter
    of this graph, and says nothing of parameters that this loss does not reach: another loss may.
    """

    def __init__(
        self, report: Callable[[Finding], None], models: Sequence[nn.Module], optimizers: Sequence[Any]
    ) -> None:
        self._report = report
        self._models, self._optimizers = models, optimizers
        self._seen: set[tuple[CodeType | None, int]] = set()
        self._told: set[tuple[str, tuple[str, ...]]] = set()
        self._hooks = ExitStack()

    def __enter__(self) -> RunningCheck:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._hooks.close()

    def before(self, run: Run, roots: Sequence[Any]) -> None:
        """Checks the roots of a backward that is about to run, if it is the first from its line."""
        place = (run.code, run.instruction)
        if place in self._seen or run.partial:
            return
        self._seen.add(place)
        for finding in check(list(roots), model=self._models, optimizer=self._optimizers or _concerned(roots)):
            self.tell(finding)

    def tell(self, finding: Finding) -> None:
        """Reports a finding that was not reported before."""
        key = (finding.cause, tuple(map(str, finding.culprits)))
        if key not in self._told:
            self._told.add(key)
            self._report(finding)


def _concerned(roots: Sequence[Any]) -> list[Any]:
    """The living optimizers that have a leaf of this graph."""
    behind = [root for root in roots if has_graph(root)]
    if not behind:
        return []
    walk = Walk(behind)
    with untouched():
        reached = {id(walk.nodes[number].variable) for number in walk.leaf_numbers()}
    return [one for one in living_optimizers() if any(id(parameter) in reached for parameter in parameters_of(one))]
