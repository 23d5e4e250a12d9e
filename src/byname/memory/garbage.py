"""Garbage: the objects that only reference cycles keep alive, and that the garbage collector would free.

This counts as the collector does (CPython's ``gc_refs``): an object all of whose references come from objects that are
themselves unreachable is garbage. It only reads; the collector is not run.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Mapping

from byname.naming.referrers import References, are_few, is_ours
from byname.naming.search import Ours
from byname.reading.objects import heap

_OF_THE_LOOP = 3
"""References to an object while it is counted: the list of all objects, the loop's variable, the argument."""


def garbage_among(objects: Mapping[int, object]) -> frozenset[int]:
    """Return the ids of the objects that only objects of the same set keep alive.

    Args:
        objects: by id; a set that holds, for each of its members, also the objects that refer to it.
    """
    held, inside, outside = _references_to(objects)
    alive = outside | _held_from_elsewhere(objects, held)
    return frozenset(objects.keys() - _reached(alive, inside))


_FEW = 64
"""The most objects of which the collector finds the holders sooner than all references are read."""


def _references_to(objects: Mapping[int, object]) -> tuple[Counter[int], dict[int, list[int]], set[int]]:
    """Return the references to each object, the referents of each among these, and those that others refer to."""
    held = Counter[int]()
    inside: dict[int, list[int]] = {}
    outside: set[int] = set()
    # The collector does not see what tuples hold that it does not track, as those of arrays alone.
    few = are_few(objects, _FEW) and all(map(gc.is_tracked, objects.values()))
    for holder in gc.get_referrers(*objects.values()) if few else References(heap()).suspects(objects.keys()):
        found = [ident for ident in map(id, gc.get_referents(holder)) if ident in objects]
        held.update(found)
        if id(holder) in objects:
            inside[id(holder)] = found
        elif found and not is_ours(holder):
            outside.update(found)
    return held, inside, outside


def _held_from_elsewhere(objects: Mapping[int, object], held: Mapping[int, int]) -> set[int]:
    """Return the objects with references from outside of the heap: variables of running functions, and C++."""
    everything: list[object] = Ours(objects.values())
    return {id(thing) for thing in everything if sys.getrefcount(thing) - _OF_THE_LOOP > held.get(id(thing), 0)}


def _reached(start: set[int], inside: Mapping[int, list[int]]) -> set[int]:
    reached, waiting = set(start), list(start)
    while waiting:
        for ident in inside.get(waiting.pop(), ()):
            if ident not in reached:
                reached.add(ident)
                waiting.append(ident)
    return reached
