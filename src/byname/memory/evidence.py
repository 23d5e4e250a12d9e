"""What is known of tensors that pile up, from which their cause is told?"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

import numpy
import torch

from byname.memory.kinds import originals
from byname.memory.patterns import Group, Size
from byname.memory.snapshot import Look
from byname.naming.names import Named
from byname.naming.search import Ours
from byname.reading.tensor import fact

__all__ = ["Evidence"]


class Evidence:
    """What is known of a group: its members, and every way to some of them. It lives as long as the look."""

    def __init__(self, look: Look, group: Group, course: Sequence[Size]) -> None:
        self.look, self.group, self.course = look, group, course
        self.before, self.now = course[0], course[-1]
        self.members: Sequence[torch.Tensor] = Ours(group.tensors[-_LOOKED_AT:])
        self.ways: Sequence[Named] = Ours(way for one in self.members for way in look.ways(one))

    def passes(self, *kinds: type) -> bool:
        """Whether some way goes through an object of these classes."""
        return any(issubclass(type(one), kinds) for named in self.ways for one in named.way.passed)

    def steps(self, kind: str) -> bool:
        """Whether some way has a step of this kind."""
        return any(step.kind == kind for named in self.ways for step in named.way.steps)

    def has_graph(self) -> bool:
        """Whether the members belong to graphs."""
        return any(fact(one, "grad_fn") is not None for one in self.members)

    def own_blocks(self) -> set[int]:
        """The pieces of memory that the members themselves lie in."""
        return {self.look.block_of(one) for one in self.group.tensors}

    @cached_property
    def originals(self) -> frozenset[tuple[str, tuple[int, ...]]]:
        """The keys in the state of living models and optimizers, with the shapes of the tensors there."""
        return originals(self.look.living)

    def is_many(self) -> bool:
        """Whether the members are entries of a container, and not a variable that is simply new."""
        return "[*]" in self.group.key.pattern

    def is_one(self) -> bool:
        """Whether it is one tensor and no entry of a container."""
        return not self.is_many() and self.now.members == 1

    def was_there(self) -> bool:
        """Whether it has grown since it was there, and has not merely come."""
        sizes = [size.pieces for size in self.course if size.members]
        return self.before.members > 0 or (len(sizes) > 2 and sizes == sorted(sizes) and sizes[-1] > sizes[0])

    def is_bounded(self) -> bool:
        """Whether the members are in a deque that lets go of the oldest: it fills up, and then stays."""
        return any(type(one) is deque and one.maxlen is not None for named in self.ways for one in named.way.passed)

    def is_cut_by_arrays(self) -> bool:
        """Whether the program sees less than half of the members' memory, by NumPy arrays that were cut from it."""
        pairs = [(self.look.blocks[self.look.block_of(one)], self.look.ways(one)) for one in self.members]
        return all(ways and all(2 * _seen_of(named) < block.bytes for named in ways) for block, ways in pairs)

    @property
    def entries(self) -> int:
        """How many members there are more."""
        return self.now.members - self.before.members


_LOOKED_AT = 20


def _seen_of(named: Named) -> float:
    """How many bytes the array has that the program reaches a tensor by; no end of them where it is by none."""
    size = math.inf
    for one in reversed(named.way.passed):
        if not issubclass(type(one), numpy.ndarray) or _type_of(one).kind == "O":
            break
        size = _bytes_of(one)
    return size


_bytes_of: Callable[[Any], int] = vars(numpy.ndarray)["nbytes"].__get__
_type_of: Callable[[Any], numpy.dtype[Any]] = vars(numpy.ndarray)["dtype"].__get__
