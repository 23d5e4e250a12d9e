"""Graphs: graphs that become longer from look to look, though they keep no more memory of tensors.

After its backward a graph holds no saved tensors, only its nodes; so ``total_loss += loss`` grows by nodes alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from byname.memory.patterns import Extent, Group, Key
from byname.table import counted

_ENOUGH = 3
"""Looks at which a graph has to be longer than at the look before."""


class GrowingGraph(NamedTuple):
    """A group whose graph became longer and begins where it began, with the number of nodes at each look."""

    group: Group
    nodes: tuple[int, ...]

    @property
    def remedy(self) -> str:
        """What to write instead."""
        return (
            f"its graph became longer by {counted(self.nodes[-1] - self.nodes[0], 'node')} and still began where it "
            "had begun: for a running total, add loss.item() or loss.detach(); for a state that is carried over, "
            "detach it at the beginning of each iteration"
        )


def growing_graph(groups: Mapping[Key, Group], looks: Sequence[Mapping[Key, Extent]]) -> GrowingGraph | None:
    """Return the shortest of the graphs that got longer from look to look and still begin where they began.

    Graphs that lead to it grow with it, so the shortest one is the cause.

    Args:
        groups: the groups of the last look.
        looks: for each look the extents of the graphs, from the first to the last.
    """
    courses = {key: _course(key, looks) for key, group in groups.items() if group.graph and group.firsts}
    growing = {key: course for key, course in courses.items() if _rises(course) >= _ENOUGH}
    if not growing:
        return None
    key = min(growing, key=lambda one: (growing[one][-1].nodes, one))
    return GrowingGraph(groups[key], tuple(extent.nodes for extent in growing[key]))


def _course(key: Key, looks: Sequence[Mapping[Key, Extent]]) -> list[Extent]:
    """Return the extents from the last look at which the graph began anew."""
    course: list[Extent] = []
    for look in looks:
        extent = look.get(key)
        if extent is None or (course and (extent.oldest != course[-1].oldest or extent.nodes < course[-1].nodes)):
            course = []
        if extent is not None:
            course.append(extent)
    return course


def _rises(course: Sequence[Extent]) -> int:
    return sum(after.nodes > before.nodes for before, after in pairwise(course))
