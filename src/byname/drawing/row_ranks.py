"""Which row does each node of one level stand in? Every edge goes down; edges are kept short."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["ranks"]


def ranks(count: int, edges: Sequence[tuple[int, int]], top: set[int], bottom: set[int]) -> list[int]:
    """The row of each node, from 0: the longest way from above, then nodes without anything above move down.

    Args:
        count: the number of nodes.
        edges: pairs (from, to); a cycle is cut at its node with the lowest number.
        top, bottom: nodes that stand above or below all others.
    """
    above: list[list[int]] = [[] for _ in range(count)]
    below: list[list[int]] = [[] for _ in range(count)]
    for source, target in edges:
        above[target].append(source)
        below[source].append(target)
    order = _sorted(count, above, below)
    place = {node: position for position, node in enumerate(order)}
    row = [0] * count
    for node in order:
        if node not in top:
            earlier = [row[one] for one in above[node] if place[one] < place[node]]
            row[node] = max([1 if top else 0, *(one + 1 for one in earlier)])
    for node in reversed(order):
        later = [row[one] for one in below[node] if place[one] > place[node]]
        if later and node not in top and len(above[node]) < max(1, len(later)):
            row[node] = max(row[node], min(later) - 1)
    last = max(row, default=0)
    for node in bottom:
        row[node] = last + (len(bottom) < count)
    return row


def _sorted(count: int, above: list[list[int]], below: list[list[int]]) -> list[int]:
    """The nodes in an order in which edges go forward, as far as there is one."""
    missing = [len(sources) for sources in above]
    ready = [node for node in range(count) if not missing[node]]
    order: list[int] = []
    done = [False] * count
    stuck = 0
    while len(order) < count:
        while ready:
            node = ready.pop(0)
            if not done[node]:
                done[node] = True
                order.append(node)
                for one in below[node]:
                    missing[one] -= 1
                    if missing[one] == 0:
                        ready.append(one)
        while stuck < count and done[stuck]:
            stuck += 1
        if stuck < count:
            ready.append(stuck)
    return order
