"""Growing graphs: graph-grows and graph-in-grad.

Such a graph carries earlier iterations along; the finding names the line that ties the iterations together.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from byname.autograd.walk import Node
from byname.diagnose.context import FailureContext
from byname.diagnose.engine import BackwardCall, creating_run, first_run
from byname.diagnose.finding import Finding, culprits_of, known_sites
from byname.naming.name import at, quote, quote_all
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact
from byname.source.location import Site
from byname.table import counted
from byname.tracking.tracker import logs


def graph_grows(context: FailureContext, nodes: Iterable[Node]) -> list[Finding]:
    """Return a finding if a graph reaches back through several iterations, each with a backward call of its own.

    Args:
        context: the context of the question.
        nodes: the nodes of the graph.
    """
    with DisableTorchFunction():
        earlier = list(map(first_run, nodes))
        is_iteration = next((one for one in (_iterations, _repetitions) if len(one(earlier)) > 1), None)
        if is_iteration is None:
            return []
        passed = is_iteration(earlier)
        runs = [None, *map(first_run, context.walk.nodes[1:])]
        joins = list(_joins(context, runs, is_iteration))
    join = max(joins, key=lambda one: one.spans, default=None)
    if join is None or join.spans < 2:
        return []
    variable = context.variable(join.carrier)
    unit = "iteration" if is_iteration is _iterations else "backward call"
    longer = "with every iteration" if unit == "iteration" else "with each of them, until that is detached"
    message = f"the graph of this loss reaches back through {counted(len(passed), f'earlier {unit}')}: " + (
        f"{quote(variable)} carries it from one {unit} to the next{at(join.site)}, so the graph takes "
        f"more memory and more time {longer}"
        if join.is_chain
        else f"{quote(variable)} joins them{at(join.site)}. If every {unit} adds one, the graph grows without end"
    )
    remedy = (
        "for a running total, add loss.item() or loss.detach(); for a state that is carried over, detach it at the "
        "beginning of each iteration"
    )
    return [Finding("graph-grows", message, culprits_of(variable), known_sites(join.site), remedy)]


class _Join(NamedTuple):
    """A line at which nodes of one iteration use nodes of earlier iterations.

    Attributes:
        site: the line.
        carrier: the node whose result is carried over.
        spans: number of earlier iterations that are reached there.
        is_chain: whether each iteration has used the one before it in this way.
    """

    site: Site | None
    carrier: int
    spans: int
    is_chain: bool


def _joins(context: FailureContext, runs: Sequence[BackwardCall | None], iterations: _Iterations) -> Iterator[_Join]:
    found: dict[Site | None, list[int]] = {}
    reached: dict[Site | None, set[BackwardCall | None]] = {}
    chains: dict[Site | None, bool] = {}
    for user, row in enumerate(context.walk.rows):
        older = [below for below in row if below and _is_older(runs[below], runs[user])]
        if older:
            site = context.site(user)
            adds_up = site is not None and any(context.site(below) == site for below in row if below)
            chains[site] = chains.get(site, False) or adds_up or (runs[user] is not None)
            found.setdefault(site, []).append(user if adds_up else older[0])
            reached.setdefault(site, set()).update(runs[below] for below in older)
    for site, carriers in found.items():
        yield _Join(site, carriers[0], len(iterations(reached[site])), chains[site])


def _iterations(runs: Iterable[BackwardCall | None]) -> set[Any]:
    """Return the iterations that some backward calls belong to; a step of an optimizer separates two iterations."""
    found = set()
    for run in {run for run in runs if run is not None}:
        steps = [step.number for log in logs() if log.thread == run.thread for step in log.steps]
        found.add((run.thread, bisect.bisect_left(steps, run.sequence)))
    return found


def _repetitions(runs: Iterable[BackwardCall | None]) -> set[Any]:
    """Return the backward calls of the line that made most of them; those for some inputs, as in MAML, do not count."""
    lines: dict[Any, set[int]] = {}
    for run in runs:
        if run is not None and run.code is not None and not (run.partial or run.creates):
            lines.setdefault((id(run.code), run.instruction), set()).add(run.number)
    return set(max(lines.values(), key=len, default=()))


_Iterations = Callable[[Iterable[BackwardCall | None]], set[Any]]


def _is_older(one: BackwardCall | None, other: BackwardCall | None) -> bool:
    """Return whether a node was run by an earlier backward call than its user; a node not yet run counts as latest."""
    return one is not None and (other is None or one.number < other.number)


def graph_in_grad(context: FailureContext, leaves: Sequence[torch.Tensor]) -> list[Finding]:
    """Return a finding about the leaves whose ``.grad`` is itself part of a graph."""
    with DisableTorchFunction():
        held = []
        for leaf in leaves:
            gradient = fact(leaf, "grad")
            if gradient is not None and fact(gradient, "grad_fn") is not None:
                held.append(leaf)
        if not held:
            return []
        runs = [creating_run(fact(leaf, "grad")) for leaf in held]
    names = tuple(context.names(held[::-1]))
    sites = dict.fromkeys(run.site for run in runs if run is not None)
    message = (
        f"the .grad of {quote_all(map(str, names))} holds a graph: a backward with create_graph=True left it "
        "there, and parameter and gradient keep each other alive"
    )
    remedy = (
        "take such gradients with torch.autograd.grad(..., create_graph=True), or set .grad to None after use "
        "(optimizer.zero_grad() does)"
    )
    return [Finding("graph-in-grad", message, names, known_sites(*sites), remedy)]
