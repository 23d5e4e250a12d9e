"""Who holds a tensor that no search from the variables met? One pass over the heap a level, from the tensor up."""

from __future__ import annotations

import gc
import sys
import types

from byname.naming.roots import Root, all_roots, every_module_root
from byname.naming.search import Place, Reached, Targets, Way, search

__all__ = ["Climb", "climb"]

HEIGHT = 16


class Climb:
    """What a climb through the heap found.

    Attributes:
        reached: the ways from roots down to the tensors, as `search` gives them.
        unheld: ids of the tensors that no Python object holds: only PyTorch itself keeps those alive.
    """

    def __init__(self, reached: Reached, unheld: frozenset[int]) -> None:
        self.reached = reached
        self.unheld = unheld


def climb(tensors: Targets) -> Climb:
    """Climbs from the tensors to their holders, and theirs, until variables are met; then walks back down."""
    roots = [*all_roots(), *every_module_root()]
    known = {id(root.value) for root in roots} | {
        id(vars(module)) for module in list(sys.modules.values()) if type(module) is types.ModuleType
    }
    wanted = frozenset(map(id, tensors))
    met = _Met()
    frontier = set(wanted)
    unheld = wanted - _climb_one(frontier, met)
    reached = Reached({})
    for _ in range(HEIGHT):
        frontier = {ident for ident in met if ident not in known} - frontier
        arrived = any(ident in known for ident in met)
        if arrived or not frontier:
            allowed = wanted | met.keys()
            usable = [root for root in roots if id(root.value) in allowed]
            reached = search(usable, depth=HEIGHT + 2, only=allowed)
            if not frontier or all(ident in reached.places for ident in wanted - unheld):
                break
        before = set(met)
        _climb_one(frontier, met)
        frontier = before
    return Climb(reached, unheld)


class _Met(dict[int, object]):
    """The holders met, by id; its own class, so that it is never taken for a holder itself."""


def _climb_one(frontier: set[int], met: _Met) -> set[int]:
    """One pass over the heap: adds to `met` what refers to the frontier; which of the frontier are referred to."""
    held: set[int] = set()
    heap = gc.get_objects()
    for holder in heap:
        referents = gc.get_referents(holder)
        if not frontier.isdisjoint(map(id, referents)) and type(holder) not in _NOT_HOLDERS and holder is not heap:
            held |= frontier.intersection(map(id, referents))
            met[id(holder)] = holder
    return held


_NOT_HOLDERS = frozenset(
    {types.FrameType, types.TracebackType, types.ModuleType, Place, Reached, Way, Root, Climb, Targets, _Met}
    | {type(iter([])), type(iter({}.values())), type(map(id, []))}
)
