"""Which backward ran a node before, and which one freed what it had saved? Told by stamps in the nodes themselves.

A stamp lies in the node's ``metadata``, is as old as the node, and holds numbers and a code object only. PyTorch does
not look at it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from byname.autograd.order import nodes_leading_to
from byname.autograd.slots import has_freed_slot
from byname.autograd.walk import Node, accumulate_type, has_graph, leaf_tensors, nodes_behind
from byname.diagnose.engine import Run
from byname.naming.sites import SiteLookup
from byname.reading.quiet import collection_paused, untouched
from byname.reading.tensor import fact, is_tensor

__all__ = ["creating_run", "first_run", "freed_by", "stamp"]

_FREED, _FIRST, _CREATED = "byname: freed by", "byname: first run", "byname: created by"


def stamp(run: Run, roots: Sequence[Any], inputs: Sequence[Any], failed: bool) -> None:
    """Notes on the nodes that a run of the engine has run, or freed, that it did.

    Args:
        run: the run that has ended.
        roots, inputs: what it was asked for.
        failed: whether it stopped at an error. It has then freed what is found freed, apart from what was so before:
            of nodes made under a tracker that would be known.
    """
    with untouched(), collection_paused():
        _stamp(run, roots, inputs, failed)


def _stamp(run: Run, roots: Sequence[Any], inputs: Sequence[Any], failed: bool) -> None:
    behind = [root for root in roots if has_graph(root)]
    if not behind:
        return
    if run.creates:
        stamp_gradients(run, leaf_tensors(nodes_behind(behind)))
    key, leaf = _FREED if run.frees or failed else _FIRST, accumulate_type()
    for node in _ran(behind, inputs, failed):
        # A leaf's node lives as long as the leaf and has nothing to free.
        if type(node) is not leaf:
            node.metadata.setdefault(key, run)


def _ran(roots: Sequence[Any], inputs: Sequence[Any], failed: bool) -> Iterable[Node]:
    """The nodes that a run has run, as far as that is certain."""
    if inputs:
        return () if failed else nodes_leading_to(roots, inputs)
    nodes = nodes_behind(roots)
    if not failed:
        return nodes
    with untouched():
        lookup = SiteLookup([root for root in roots if is_tensor(root)], set(nodes).__contains__)
    return [node for node in nodes if has_freed_slot(node) and lookup.call(node) is not None] if lookup else []


def stamp_gradients(run: Run, leaves: Iterable[torch.Tensor]) -> None:
    """Notes on the gradients that a run has left with a graph of their own, which one that was."""
    for leaf in leaves:
        gradient = fact(leaf, "grad")
        node = None if gradient is None else fact(gradient, "grad_fn")
        if node is not None:
            node.metadata.setdefault(_CREATED, run)


def creating_run(gradient: torch.Tensor) -> Run | None:
    """The run that left a gradient with a graph of its own; None when that is not known."""
    run: Run | None = fact(gradient, "grad_fn").metadata.get(_CREATED)
    return run


def freed_by(node: Node) -> Run | None:
    """The run that freed what a node had saved; None when none is known to have."""
    run: Run | None = node.metadata.get(_FREED)
    return run


def first_run(node: Node) -> Run | None:
    """The first run known to have run a node."""
    stamps = node.metadata
    run: Run | None = stamps.get(_FIRST) or stamps.get(_FREED)
    return run
