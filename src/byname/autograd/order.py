"""Execution order: the nodes of a graph that the autograd engine runs, and the order in which it runs them."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from byname.autograd.walk import Node, Walk, accumulator, root_node
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact, is_tensor


def engine_order(walk: Walk, needed: Collection[int] | None = None) -> Iterator[int]:
    """Yield the nodes, or only those in `needed`, in the order in which the engine runs them.

    A node is ready when all its users have run; among ready nodes the one made last runs first (PyTorch's
    ``CompareNodeTaskTime``). Nodes that accumulate into leaves have the highest sequence number, so they run at once.
    """
    rows, nodes = walk.rows, walk.nodes
    waiting = [0] * len(rows)
    for row in rows:
        for below in row:
            waiting[below] += 1
    ready = [(-nodes[number]._sequence_nr(), number) for number in walk.roots if not waiting[number]]
    heapq.heapify(ready)
    while ready:
        _, number = heapq.heappop(ready)
        yield number
        for below in rows[number]:
            waiting[below] -= 1
            if below and not waiting[below] and (needed is None or below in needed):
                heapq.heappush(ready, (-nodes[below]._sequence_nr(), below))


def needed_for(walk: Walk, inputs: Sequence[Any]) -> set[int] | None:
    """Return the numbers of the nodes that lead to some inputs; None, for all nodes, when no inputs are given."""
    if not inputs:
        return None
    return {walk.numbers[node] for node in nodes_leading_to([walk.nodes[number] for number in walk.roots], inputs)}


def nodes_leading_to(roots: Sequence[Any], inputs: Sequence[Any]) -> list[Node]:
    """Return the nodes that lead from the roots to some inputs.

    A node is older than its users, so the search stops below the oldest node of the inputs. A gradient with respect
    to a tensor near the roots of a long graph therefore costs no walk through the whole graph.
    """
    wanted = [node_of_input(one) for one in inputs]
    oldest = min((node._sequence_nr() for node in wanted if node is not None and node.next_functions), default=0)
    if any(node is not None and not node.next_functions for node in wanted):
        oldest = 0  # a leaf can be anywhere
    users: dict[Node, list[Node]] = {}
    nodes = list(dict.fromkeys(map(root_node, roots)))
    seen = set(nodes)
    for node in nodes:  # grows while it is walked
        for below, _ in node.next_functions:
            if below is not None and below._sequence_nr() >= oldest:
                users.setdefault(below, []).append(node)
                if below not in seen:
                    seen.add(below)
                    nodes.append(below)
    found: dict[Node, None] = {}
    waiting = [node for node in wanted if node is not None]
    while waiting:
        fresh = [user for user in users.get(waiting.pop(), ()) if user not in found]
        found.update(dict.fromkeys(fresh))
        waiting += fresh
    return list(found)


def node_of_input(one: Any) -> Any:
    """Return the node that made an input of ``autograd.grad``, or that accumulates into it; None without a node."""
    if not is_tensor(one):
        return getattr(one, "node", None)
    with DisableTorchFunction():
        node = fact(one, "grad_fn")
        if node is None and fact(one, "requires_grad"):
            node = accumulator(one)
    return node
