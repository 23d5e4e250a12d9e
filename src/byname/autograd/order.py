"""Order: the nodes of a graph in the order in which the engine runs them, and the number of paths to each."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

from byname.autograd.walk import Node, NumberedEdges, Walk, accumulator, root_node
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


class PathCounts:
    """The numbers of paths by which gradients reach the wanted nodes of a graph, counted on first use."""

    def __init__(self, edges: NumberedEdges, roots: list[int], wanted: Iterable[int]) -> None:
        self._edges, self._roots, self._wanted = edges, roots, frozenset(wanted)

    @cached_property
    def by_node(self) -> dict[int, int]:
        """The exact number of paths from the roots to each node that is wanted."""
        rows, wanted = self._edges.rows(), self._wanted
        ways: dict[int, int] = dict.fromkeys(self._roots, 1)
        found: dict[int, int] = {}
        for number in _from_the_roots(rows, self._roots):
            here = ways.pop(number)  # dropped at once: these numbers can be thousands of digits long
            if number in wanted:
                found[number] = here
            for below in rows[number]:
                if below:
                    ways[below] = ways.get(below, 0) + here
        return found


def _from_the_roots(rows: list[list[int]], roots: list[int]) -> Iterator[int]:
    """Yield the nodes in topological order: each after all nodes that use it (Kahn 1962)."""
    waiting = [0] * len(rows)
    for number in chain.from_iterable(rows):
        waiting[number] += 1
    ready = [number for number in roots if not waiting[number]]
    while ready:
        number = ready.pop()
        yield number
        for below in rows[number]:
            waiting[below] -= 1
            if below and not waiting[below]:
                ready.append(below)
