"""Walking: the time to find leaves and saved tensors of a graph, compared with a walk that only reads its edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torchviz

import byname
from benchmarks.graphs import Built, chain, encoder, residual, rnn
from benchmarks.timing import Rounds, Row, Variant, interleaved, small_heap, timed
from byname.autograd.walk import Walk

__all__ = ["bare_walk", "walking"]

_MICRO, _MILLI = 1e-6, 1e-3


def walking() -> list[Row]:
    """Each graph is walked from cold: fresh for every run of every variant."""
    large = {
        "chain": chain,
        "RNN": rnn,
        "residual": residual,
    }
    with small_heap():
        rows = [row for name, build in large.items() for row in _large(name, build)]
        rows += _encoder() + _trained() + _tracked()
    return rows + _unheld()


def bare_walk(loss: torch.Tensor) -> int:
    """The floor: nothing but `next_functions` and a set of the nodes seen; how many there are."""
    seen: set[Any] = {loss.grad_fn}
    stack: list[Any] = [loss.grad_fn]
    while stack:
        for below, _ in stack.pop().next_functions:
            if below is not None and below not in seen:
                seen.add(below)
                stack.append(below)
    return len(seen)


def _large(name: str, build: Callable[[], Built], rounds: int = 21) -> list[Row]:
    nodes, slots = _size(build)
    took = interleaved(_variants(build), rounds)
    title = f"{name} of {nodes:,} nodes, {slots:,} slots"
    return [
        *_floor(title, took, nodes),
        Row("  the walk alone / bare walk", took.ratio("walk", "bare"), "×", 2),
        Row("  leaves / bare walk", took.ratio("leaves", "bare"), "×", 2),
        Row("  leaves, a node", took.each("leaves", nodes, _MICRO), "µs"),
        Row("  leaves with paths / bare walk", took.ratio("paths", "bare"), "×"),
        Row("  saved, a slot", took.each("saved", slots, _MICRO), "µs", 2.5),
        Row("  saved less the bare walk, a slot", took.each("saved", slots, _MICRO, less="bare"), "µs"),
        Row("  saved / bare walk", took.ratio("saved", "bare"), "×", 8),
        Row("  graph, a node", took.each("graph", nodes, _MICRO), "µs"),
        Row("  graph / bare walk", took.ratio("graph", "bare"), "×", 12),
    ]


def _encoder(rounds: int = 31) -> list[Row]:
    nodes, slots = _size(encoder)
    variants = {
        **_variants(encoder),
        "torchviz": timed(encoder, _draw),
        "floor": timed(
            _with_model, lambda given: (bare_walk(given[0]), list(given[1].named_parameters())), collector=False
        ),
        "model": timed(_with_model, lambda given: byname.leaves(given[0], model=given[1])),
    }
    took = interleaved(variants, rounds)
    title = f"12-layer encoder of {nodes:,} nodes, {slots:,} slots"
    return [
        *_floor(title, took, nodes),
        Row("  leaves", took.each("leaves", 1, _MILLI), "ms", 5),
        Row("  leaves / bare walk", took.ratio("leaves", "bare"), "×"),
        Row("  leaves with model= / bare walk and named_parameters", took.ratio("model", "floor"), "×", 3),
        Row("  leaves with paths / bare walk", took.ratio("paths", "bare"), "×"),
        Row("  saved / bare walk", took.ratio("saved", "bare"), "×", 7),
        Row("  graph / bare walk", took.ratio("graph", "bare"), "×", 10),
        Row("  torchviz.make_dot / leaves", took.ratio("torchviz", "leaves"), "×"),
        Row("  torchviz.make_dot / graph", took.ratio("torchviz", "graph"), "×"),
    ]


def _trained(rounds: int = 31) -> list[Row]:
    """An encoder and its Adam after a step, as a program has them: two thirds of the tensors are the optimizer's."""
    model = encoder().holds
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(2, 4, 32)).sum().backward()
    optimizer.step()
    loss = model(torch.ones(2, 4, 32)).sum()
    calls: dict[str, tuple[Callable[[torch.Tensor], object], float]] = {
        "leaves": (byname.leaves, 4.5),
        "leaves with model=": (lambda one: byname.leaves(one, model=model), 6),
        "saved": (byname.saved, 5),
        "graph": (byname.graph, 8),
    }
    variants = {what: timed(lambda: (loss, None), call) for what, (call, _) in calls.items()}
    variants["bare"] = timed(lambda: (loss, None), bare_walk, collector=False)
    took = interleaved(variants, rounds)
    return [
        Row("12-layer encoder with its Adam: bare walk", took.each("bare", 1, _MILLI), "ms"),
        *(Row(f"  {what}", took.each(what, 1, _MILLI), "ms", limit) for what, (_, limit) in calls.items()),
    ]


def _with_model() -> tuple[tuple[torch.Tensor, Any], None]:
    """The encoder's loss and the model, held by one variable as a program holds it."""
    built = encoder()
    return (built.loss, built.holds), None


def _tracked(rounds: int = 7) -> list[Row]:
    """A chain and a residual net that were made under a tracker."""
    rows = []
    for name, build in {"chain": chain, "residual": residual}.items():
        nodes, slots = _size(build)

        def prepare(build: Callable[[], Built] = build) -> tuple[torch.Tensor, object]:
            tracker = byname.track()
            with tracker:
                return build().loss, tracker

        took = interleaved({"saved": timed(prepare, byname.saved), "graph": timed(prepare, byname.graph)}, rounds)
        rows += [
            Row(f"{name} under a tracker: saved, a slot", took.each("saved", slots, _MICRO), "µs", 5),
            Row("  graph, a node", took.each("graph", nodes, _MICRO), "µs", 6),
        ]
    return rows


def _unheld(rounds: int = 7) -> list[Row]:
    """A chain whose leaf no variable holds, on the whole heap: nothing is spared that a search of it would read."""
    took = interleaved(
        {"bare": timed(_lonely, bare_walk, collector=False), "leaves": timed(_lonely, byname.leaves)}, rounds
    )
    return [Row("chain whose leaf no variable holds: leaves / bare walk", took.ratio("leaves", "bare"), "×", 5)]


def _lonely() -> tuple[torch.Tensor, None]:
    return chain().loss, None


def _floor(title: str, took: Rounds, nodes: int) -> list[Row]:
    return [
        Row(f"{title}: bare walk, a node", took.each("bare", nodes, _MICRO), "µs"),
        Row("  bare walk again / bare walk (A/A)", took.ratio("bare again", "bare"), "×"),
    ]


def _variants(build: Callable[[], Built]) -> dict[str, Variant]:
    return {
        "bare": timed(build, bare_walk, collector=False),
        "bare again": timed(build, bare_walk, collector=False),
        "walk": timed(build, Walk, collector=False),
        "leaves": timed(build, byname.leaves),
        "paths": timed(build, _paths),
        "saved": timed(build, byname.saved),
        "graph": timed(build, byname.graph),
    }


def _paths(loss: torch.Tensor) -> list[int]:
    return [leaf.paths for leaf in byname.leaves(loss)]


def _draw(loss: torch.Tensor) -> str:
    source: str = torchviz.make_dot(loss, show_saved=False).source
    return source


def _size(build: Callable[[], Built]) -> tuple[int, int]:
    """How many nodes a graph has, and how many saved tensors."""
    built = build()
    return bare_walk(built.loss), len(byname.saved(built.loss))
