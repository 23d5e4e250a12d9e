"""Who holds a tensor that no search from the variables met? One pass over the heap a level, from the tensor up."""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterable, Iterator
from itertools import repeat
from operator import is_

import numpy
import numpy.typing
import torch

from byname.naming.roots import all_roots, every_module_root
from byname.naming.search import OursById, Reached, Targets, search
from byname.reading.frames import locals_of
from byname.reading.objects import namespace_of
from byname.source.location import is_byname

__all__ = ["Climb", "climb", "everything", "in_lots", "is_ours", "reached_from"]

HEIGHT = 16
_AT_ONCE = 256


def everything() -> tuple[list[object], int]:
    """Every object that the collector knows, and how many it hides.

    After ``gc.freeze()`` the collector lists only what is newer. The others are then looked for from the modules, the
    running functions and the newer objects downwards; those that only C code holds are not found that way.
    """
    found = gc.get_objects()
    hidden = gc.get_freeze_count()
    if not hidden or _lists(found, vars(torch)):
        return found, 0
    # Not the frames of a look: what is returned here would hold the frame whose variable it is.
    running = [frame for one in list(sys._current_frames().values()) for frame in _with_outer(one)]
    frames = [frame for frame in running if not is_byname(frame.f_code.co_filename)]
    del running
    variables = [value for frame in frames for _, value in locals_of(frame)]
    return reached_from(found, [*variables, *sys.modules.values(), *frames]), hidden


def _lists(found: list[object], wanted: object) -> bool:
    """Whether this very object is in the collector's list.

    PyTorch's own namespace is not, once ``gc.freeze()`` was called with a tensor alive. Python 3.12 counts some objects
    of the interpreter as frozen though nobody called it.
    """
    return any(map(is_, found, repeat(wanted)))


def reached_from(objects: list[object], others: list[object]) -> list[object]:
    """These objects, the others, and all that they lead to, each once, as far as the collector knows them."""
    seen = set(map(id, objects))
    found, below = list(others), list(objects)
    while found or below:
        found += [held for lot in in_lots(below) for held in gc.get_referents(*lot)]
        found += [one.base for one in found if type(one) is numpy.ndarray]  # the collector does not know arrays
        below = list({id(one): one for one in found if id(one) not in seen and gc.is_tracked(one)}.values())
        seen.update(map(id, below))
        objects += below
        found = []
    return objects


def _with_outer(frame: types.FrameType | None) -> Iterable[types.FrameType]:
    while frame is not None:
        yield frame
        frame = frame.f_back


def in_lots(objects: list[object]) -> Iterator[list[object]]:
    """The objects some at a time: seldom does one of them matter, and to ask each for its referents takes longer."""
    never = sys.modules.get("_asyncio") if _ASYNCIO_NEVER_ENDS else None
    for start in range(0, len(objects), _AT_ONCE):
        lot = objects[start : start + _AT_ONCE]
        yield lot if never is None else [one for one in lot if one is not never]


_ASYNCIO_NEVER_ENDS = (3, 12) <= sys.version_info < (3, 12, 5)
"""There the module ``_asyncio``, asked for its referents after a future was awaited, answers until no memory is left
(CPython issue 122695)."""


class Climb:
    """What a climb through the heap found.

    Attributes:
        reached: the ways from roots down to the tensors, as `search` gives them.
        unheld: ids of the tensors that no Python object holds: only PyTorch itself keeps those alive.
        met: the objects met on the way, by id.
    """

    def __init__(self, reached: Reached, unheld: frozenset[int], met: OursById) -> None:
        self.reached = reached
        self.unheld = unheld
        self.met = met


def climb(tensors: Targets, *, whole: bool = False) -> Climb:
    """Climbs from the tensors to their holders, and theirs, until variables are met; then walks back down.

    Args:
        tensors: where to start.
        whole: to go on to every variable that leads to a tensor, not only to the first.
    """
    ends = [*all_roots(), *every_module_root()]
    known = {id(root.value) for root in ends} | {
        id(vars(module)) for module in list(sys.modules.values()) if type(module) is types.ModuleType
    }
    wanted = frozenset(map(id, tensors))
    met = OursById()
    references = _References(everything()[0])
    unheld = wanted - references.climb(set(wanted), met)
    reached = Reached({})
    passed: set[int] = set()
    for _ in range(HEIGHT):
        fresh = {ident for ident in met if ident not in known} - passed
        if not fresh or (not whole and not known.isdisjoint(met)):
            allowed = wanted | met.keys()
            reached = search([root for root in ends if id(root.value) in allowed], depth=HEIGHT + 2, only=allowed)
            if not fresh or all(ident in reached.places for ident in wanted - unheld):
                break
        passed = set(met)
        references.climb(fresh, met)
    else:
        allowed = wanted | met.keys()
        reached = search([root for root in ends if id(root.value) in allowed], depth=HEIGHT + 2, only=allowed)
    return Climb(reached, unheld, met)


class _References:
    """What refers to what on the heap, read once, so that each level of a climb costs a look into an array.

    Referents are kept as numbers of 32 bits, lot after lot: what fits is asked again, object by object.
    """

    def __init__(self, heap: list[object]) -> None:
        self._lots = list(in_lots(heap))
        found = [_codes(gc.get_referents(*lot)) for lot in self._lots]
        self._ends = numpy.cumsum([len(codes) for codes in found])
        self._codes = numpy.concatenate(found) if found else _codes([])

    def climb(self, frontier: set[int], met: OursById) -> set[int]:
        """Adds to `met` what refers to the frontier; which of the frontier are referred to."""
        held: set[int] = set()
        for holder in self._suspects(frontier):
            referents = gc.get_referents(holder)
            if not frontier.isdisjoint(map(id, referents)) and not is_ours(holder):
                held |= frontier.intersection(map(id, referents))
                met[id(holder)] = holder
        return held

    def _suspects(self, frontier: set[int]) -> Iterator[object]:
        """The objects of the lots in which something may refer to the frontier."""
        wanted = (numpy.fromiter(frontier, numpy.int64, len(frontier)) >> 4).astype(numpy.uint32)
        marked = numpy.zeros(_MARKS, dtype=bool)
        marked[wanted % _MARKS] = True
        near = numpy.flatnonzero(marked[self._codes % _MARKS])
        hits = near[numpy.isin(self._codes[near], wanted)]
        for lot in numpy.unique(numpy.searchsorted(self._ends, hits, side="right")).tolist():
            yield from self._lots[lot]


_MARKS = 1 << 22


def _codes(objects: list[object]) -> numpy.typing.NDArray[numpy.uint32]:
    return (numpy.fromiter(map(id, objects), numpy.int64, len(objects)) >> 4).astype(numpy.uint32)


def is_ours(holder: object) -> bool:
    """Whether an object belongs to the look itself, or leads nowhere: a running function, an iterator."""
    kind = type(holder)
    return kind in _NOT_HOLDERS or str(namespace_of(kind).get("__module__")).startswith("byname.")


_NOT_HOLDERS = frozenset({types.ModuleType} | {type(iter([])), type(iter({}.values())), type(map(id, []))})
