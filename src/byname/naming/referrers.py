"""Referrers: the objects that hold a tensor which no search from the variables found.

The search goes from the tensor up to its referrers, and theirs, with one pass over the heap for each level.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Collection, Iterable, Iterator
from itertools import chain, count, repeat
from operator import is_
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy
import torch

from byname.naming.children.python import held_by_torch_future
from byname.naming.roots import all_roots, globals_among, ids_of_globals
from byname.naming.search import ScratchDict, SearchResult, Targets, search
from byname.reading.frames import locals_of
from byname.reading.objects import heap, namespace_of
from byname.source.tracebacks import is_byname, walk_frames

if TYPE_CHECKING:
    import numpy.typing

HEIGHT = 16
_BATCH_SIZE = 32
"""The number of objects whose referents are read at a time."""


def everything() -> tuple[list[object], int]:
    """Return the objects of `heap`, and how many the garbage collector hides.

    After ``gc.freeze()`` the collector lists only newer objects. This function then finds the others by following
    references from the modules, the running functions and the newer objects. It misses those that only C code holds.
    """
    found = heap()
    hidden = gc.get_freeze_count()
    # The number of frozen objects is no sign of a freeze: Python 3.12 counts some objects of the interpreter as frozen
    # anyway. After ``gc.freeze()`` PyTorch's own namespace is not in the list.
    if not hidden or any(map(is_, found, repeat(vars(torch)))):
        return found, 0
    # Not byname's own frames: the returned list would hold the frame of which it is a variable.
    running = [frame for one in list(sys._current_frames().values()) for frame in walk_frames(one)]
    frames = [frame for frame in running if not is_byname(frame.f_code.co_filename)]
    del running
    variables = [value for frame in frames for _, value in locals_of(frame)]
    return reached_from(found, [*variables, *sys.modules.values(), *frames]), hidden


def reached_from(objects: list[object], others: list[object]) -> list[object]:
    """Add the others, and all that they and these objects lead to, to ``objects``; return it.

    Only what the collector tracks is added, each once.
    """
    seen = set(map(id, objects))
    found, below = list(others), list(objects)
    while found or below:
        found += [held for batch in _in_batches(below) for held in gc.get_referents(*batch)]
        found += [one.base for one in found if type(one) is numpy.ndarray]  # the collector does not track arrays
        done = [one for one in found if issubclass(type(one), torch._C.Future)]  # nor what futures of C++ hold
        found += [held for one in done for _, _, held in held_by_torch_future(one)]
        below = list({id(one): one for one in found if id(one) not in seen and gc.is_tracked(one)}.values())
        seen.update(map(id, below))
        objects += below
        found = []
    return objects


def _in_batches(objects: list[object]) -> Iterator[list[object]]:
    """Yield the objects in batches, because reading the referents of each object by itself takes longer."""
    never = sys.modules.get("_asyncio") if _ASYNCIO_NEVER_ENDS else None
    for start in range(0, len(objects), _BATCH_SIZE):
        batch = objects[start : start + _BATCH_SIZE]
        yield batch if never is None else [one for one in batch if one is not never]


_ASYNCIO_NEVER_ENDS = (3, 12) <= sys.version_info < (3, 12, 5)
"""Versions in which ``gc.get_referents`` of the module ``_asyncio``, after a future was awaited, fills all memory
(CPython issue 122695).
"""


class ReferrerSearch(NamedTuple):
    """Result of a referrer search through the heap.

    Attributes:
        reached: the paths from roots down to the tensors, as `search` gives them.
        unheld: ids of the tensors that no Python object holds: only PyTorch itself keeps those alive.
        met: the objects met on the way, by id.
    """

    reached: SearchResult
    unheld: frozenset[int]
    met: ScratchDict


def find_referrers(tensors: Targets, *, whole: bool = False, near: SearchResult | None = None) -> ReferrerSearch:
    """Search from the tensors up to their holders, and theirs, until variables are met; then search back down.

    Args:
        whole: True to go on to every variable that leads to a tensor, not only to the first.
        near: a search from the variables; the paths to objects that it met are not searched again.
    """
    ends = all_roots()
    modules = [module for module in list(sys.modules.values()) if type(module) is types.ModuleType]
    known = {id(root.value) for root in ends} | ids_of_globals() | {id(vars(module)) for module in modules}
    inner = {} if near is None else near.dicts_of_owners()
    wanted = ScratchDict((id(tensor), tensor) for tensor in tensors)
    met = ScratchDict()
    references = _references_for(wanted, None)
    unheld = frozenset(wanted.keys() - _add_holders(wanted, references, met))
    passed: set[int] = set()
    above: set[int] = set()
    for height in range(HEIGHT + 1):
        fresh = ScratchDict((ident, one) for ident, one in met.items() if ident not in known and ident not in passed)
        if near is not None:
            for ident in fresh.keys() & (near.numbers.keys() | inner.keys()):
                above.update(near.ids_down_to(inner.get(ident, ident)))
                del fresh[ident]
        is_last = not fresh or height == HEIGHT
        if is_last or (not whole and not known.isdisjoint(met)):
            allowed = wanted.keys() | met.keys() | above
            starts = [root for root in ends if id(root.value) in allowed]
            reached = search([*starts, *globals_among(allowed)], depth=HEIGHT + 2, only=allowed)
            if is_last or reached.numbers.keys() >= wanted.keys() - unheld:
                break
        passed = set(met)
        references = _references_for(fresh, references)
        _add_holders(fresh, references, met)
    return ReferrerSearch(reached, unheld, met)


def _references_for(frontier: ScratchDict, known: References | None) -> References | None:
    """Return the references for a level of the search; None for a few objects, for which the collector is faster.

    The heap is listed before any object holds the list; otherwise the list would contain its own holder.
    """
    return known if known is not None or few_enough(frontier, _FEW) else References(everything()[0])


def few_enough(objects: Collection[int], most: int) -> bool:
    """Return whether ``gc.get_referrers`` of some objects is safe, and faster than `References`."""
    alone = len(sys._current_frames()) == 1  # else it lists tuples that other threads are building; see `heap`
    return len(objects) <= most and alone and not gc.get_freeze_count() and not _ASYNCIO_NEVER_ENDS


def referrers_of(objects: Iterable[object]) -> list[object]:
    """Return what the collector finds, less the arguments of this question, which Python 3.13 finds, too."""
    asked = tuple(objects)
    return [one for one in gc.get_referrers(*asked) if one is not asked]


def _add_holders(frontier: ScratchDict, references: References | None, met: ScratchDict) -> set[int]:
    """Add the referrers of the frontier to `met`; return the ids of the frontier that have one."""
    held: set[int] = set()
    for holder in referrers_of(frontier.values()) if references is None else references.suspects(frontier.keys()):
        referents = gc.get_referents(holder)
        if not frontier.keys().isdisjoint(map(id, referents)) and not is_ignored_holder(holder):
            held.update(ident for ident in map(id, referents) if ident in frontier)
            met[id(holder)] = holder
    return held


_FEW = 8
"""The most objects for which ``gc.get_referrers`` is faster than reading the whole heap."""


class References:
    """The references on the heap, read once, so that each level of a search only scans an array.

    Referents are kept as 32-bit codes, one batch after the other; a batch that matches is read again, object by object.
    Plain tuples are read when another object refers to them.
    """

    def __init__(self, objects: list[object]) -> None:
        self._batches = list(_in_batches(objects))
        codes, counts, tuples = [], [], set[int]()
        for start in count(0, _BATCHES_AT_ONCE):
            requested = [gc.get_referents(*batch) for batch in self._batches[start : start + _BATCHES_AT_ONCE]]
            if not requested:
                break
            found = list(map(len, requested))
            counts += found
            codes.append(codes_of(chain.from_iterable(requested), sum(found)))
            fresh = {
                id(one): one for one in chain.from_iterable(requested) if type(one) is tuple and id(one) not in tuples
            }
            tuples.update(fresh)
            self._batches += _in_batches([*fresh.values()])
        self._ends = numpy.cumsum(counts)
        self._codes = numpy.concatenate(codes) if codes else codes_of([], 0)

    def suspects(self, frontier: Collection[int]) -> Iterator[object]:
        """Yield the objects of the batches in which one may refer to the frontier."""
        hits = candidates(frontier, self._codes)
        for batch in numpy.unique(numpy.searchsorted(self._ends, hits, side="right")).tolist():
            yield from self._batches[batch]


_BATCHES_AT_ONCE = 1024
_MARKS = 1 << 20

Codes: TypeAlias = "numpy.typing.NDArray[numpy.uint32]"
"""Shortened addresses of objects: equal for the same object, and seldom equal for two different ones."""


def codes_of(objects: Iterable[object], count: int) -> Codes:
    """Return the codes of `count` objects. An object array holds their addresses, and an address is an ``id``."""
    addresses = numpy.frombuffer(numpy.fromiter(objects, object, count), numpy.uintp) if count else numpy.zeros(0)
    return _shortened(addresses.astype(numpy.uint64))


def _shortened(addresses: numpy.typing.NDArray[numpy.uint64]) -> Codes:
    return (addresses >> numpy.uint64(4)).astype(numpy.uint32)


def candidates(wanted: Collection[int], codes: Codes) -> numpy.typing.NDArray[numpy.int64]:
    """Return the positions in an array of codes at which objects with these ids may be, and few others."""
    sought = _shortened(numpy.fromiter(wanted, numpy.uint64, len(wanted)))
    marked = numpy.zeros(_MARKS, dtype=bool)
    marked[sought & (_MARKS - 1)] = True
    near = numpy.flatnonzero(marked[codes & (_MARKS - 1)])
    return near[numpy.isin(codes[near], sought)]


def is_ignored_holder(holder: object) -> bool:
    """Return whether an object is no holder in the program: one of byname's that looks, a module, an iterator."""
    kind = type(holder)
    return kind in _NOT_HOLDERS or str(namespace_of(kind).get("__module__")).startswith(_LOOKING)


_LOOKING = tuple(f"byname.{folder}." for folder in ("reading", "tracking", "naming", "autograd", "memory", "diagnose"))
"""The parts of byname whose objects hold tensors only while they look at them."""


_NOT_HOLDERS = frozenset({types.ModuleType} | {type(iter([])), type(iter({}.values())), type(map(id, []))})
