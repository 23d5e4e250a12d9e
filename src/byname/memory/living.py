"""Live objects: the tensors on Python's heap, the tensors that only PyTorch's C++ holds, and which of all are garbage.

Python's collector lists every tensor that has a Python object. These hold the others: as a gradient, a base, a part of
a sparse tensor, or in a slot of autograd's graph. `LiveObjects` holds all that it found, so callers drop it before they
return.

Garbage are the objects that only reference cycles keep alive, counted as the collector does (CPython's ``gc_refs``): an
object all of whose references come from objects that are themselves unreachable. The collector is not run.
"""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.autograd import forward_ad

from byname.autograd.pause import backward_elsewhere
from byname.autograd.slots import held_by_nodes, packed_in
from byname.autograd.walk import Node, nodes_from
from byname.naming.referrers import (
    References,
    are_few,
    candidates,
    codes_of,
    everything,
    is_ours,
    reached_from,
)
from byname.naming.search import Ours, OursById, Targets
from byname.reading.objects import attributes_of, heap, snapshot
from byname.reading.tensor import PLAIN, fact, is_tensor, parts_of
from byname.tracking.allocations import Allocation, living_allocations


class Link(NamedTuple):
    """A reference from PyTorch's C++ to a tensor: its owner, and the owner's name for it.

    Attributes:
        owner: the node or the tensor.
        role: a slot's name such as ``mat2``; ``variable`` of an accumulating node; or ``grad``, ``base`` and the names
            of parts, of a tensor.
    """

    owner: Any
    role: str


class LiveObjects:
    """Everything alive that is a tensor or leads to one.

    Attributes:
        tensors: every live tensor, each once; first those that were Python objects before the search.
        visible: the number of these first ones.
        nodes: every node that was found.
        storages: storages that are Python objects, and those that a tracker has seen allocated.
        allocations: the tracker's records of these storages, by the storage's key.
        modules, optimizers: every live one.
        links: the references from PyTorch's C++ to each tensor, by its id.
        hidden: the number of objects that ``gc.freeze`` hides from the collector's list.
        unread: whether what nodes have saved was not read, since another thread's backward did not come to its end.
    """

    def __init__(self, objects: list[object], hidden: int) -> None:
        self.hidden = hidden
        self.unread = backward_elsewhere()
        tensors, nodes, storages, modules, optimizers = _sorted_out(objects)
        self.tensors = Targets(tensors)
        self.visible = len(tensors)
        self.storages: list[torch.UntypedStorage] = Ours(storages)
        self.modules: Sequence[nn.Module] = Ours(modules)
        self.optimizers: Sequence[Any] = Ours(optimizers)
        self.nodes: list[Node] = Ours()
        self._seen: set[Node] = set()
        self.allocations: dict[int, Allocation] = OursById({one.storage._cdata: one for one in living_allocations()})
        self.storages += [one.storage for one in self.allocations.values()]
        self.links: dict[int, list[Link]] = {}
        self._known = set(map(id, tensors))
        self._follow(self.tensors, nodes)
        if hidden:
            self._follow_hidden()

    def _follow(self, tensors: Iterable[torch.Tensor], nodes: Iterable[Node]) -> None:
        """Add the tensors and nodes that the found ones hold, until no new ones appear."""
        seen = self._seen
        fresh: list[torch.Tensor] = Ours(tensors)
        roots: list[Node] = Ours(nodes)
        while fresh or roots:
            before = len(self.tensors)
            roots += [node for tensor in fresh if (node := self._follow_tensor(tensor)) is not None]
            found = Ours(nodes_from(roots, seen))
            self.nodes += found
            for node, role, tensor in () if self.unread else held_by_nodes(found):
                self._found(tensor, Link(node, role))
            fresh, roots = Ours(self.tensors[before:]), Ours()

    def _follow_hidden(self) -> None:
        """Add the tensors in Python objects that only nodes hold, which ``gc.freeze`` hides from the collector."""
        custom = [node for node in self.nodes if issubclass(type(node), torch.autograd.function.BackwardCFunction)]
        slots = () if self.unread else packed_in(self.nodes)
        packed = [one for _, _, raw in slots for one in (raw.data, raw.unpack_hook)]
        for tensor in _sorted_out(reached_from([], [*custom, *packed]))[0]:
            if id(tensor) not in self._known:
                self._known.add(id(tensor))
                self.tensors.append(tensor)
        self._follow(self.tensors[self.visible :], ())

    def _found(self, tensor: torch.Tensor, link: Link) -> None:
        if id(tensor) not in self._known:
            self._known.add(id(tensor))
            self.tensors.append(tensor)
        self.links.setdefault(id(tensor), _Links()).append(link)

    def _follow_tensor(self, tensor: torch.Tensor) -> Node | None:
        """Add the tensors that a tensor holds; return the node that made it."""
        for role, held in _held_by(tensor):
            self._found(held, Link(tensor, role))
        return fact(tensor, "grad_fn")


class _Links(list[Link]):
    """List of links, in a class of its own by which byname tells it from the program's lists."""


def living() -> LiveObjects:
    """Return the live objects of the whole heap. Callers hold `heap_at_rest`."""
    objects, hidden = everything()
    return LiveObjects(objects, hidden)


def optimizer_state(alive: LiveObjects) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in the state of live optimizers, with their keys."""
    for optimizer in alive.optimizers:
        state = attributes_of(optimizer).get("state")
        for _, entry in snapshot(state) if issubclass(type(state), dict) else ():
            if issubclass(type(entry), dict):
                yield from ((key, value) for key, value in snapshot(entry) if type(key) is str and is_tensor(value))


def _sorted_out(objects: list[object]) -> list[list[Any]]:
    """Return the tensors, nodes, storages, modules and optimizers among these objects.

    The identity of the class decides: this runs no code of an object, and not even the hash of a metaclass.
    """
    sorts = {id(kind): sort for sort, family in enumerate(_FAMILIES) for kind in family()}
    found: list[list[Any]] = [[] for _ in _FAMILIES]
    for place in candidates(sorts.keys(), codes_of(map(type, objects), len(objects))).tolist():
        sort = sorts.get(id(type(objects[place])))
        if sort is not None:
            found[sort].append(objects[place])
    return found


def _below(*kinds: type) -> Iterable[type]:
    """Return some classes with all their subclasses."""
    found: dict[int, type] = {}
    waiting = list(kinds)
    while waiting:
        kind = waiting.pop()
        if id(kind) not in found:
            found[id(kind)] = kind
            waiting += type.__subclasses__(kind)
    return found.values()


def _node_classes() -> Iterable[type]:
    """Return the classes of nodes: PyTorch's own are attributes of a module, those of custom functions have a base."""
    own = [kind for kind in vars(torch._C._functions).values() if type(kind) is type]
    return [*own, *_below(torch.autograd.function.BackwardCFunction)]


_FAMILIES: tuple[Callable[[], Iterable[type]], ...] = (
    lambda: _below(torch.Tensor),
    _node_classes,
    lambda: _below(torch.UntypedStorage),
    lambda: _below(nn.Module),
    lambda: _below(torch.optim.Optimizer),
)


def _held_by(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors that a tensor holds in C++, each with its role."""
    plain = type(tensor) in PLAIN
    read = getattr if plain else fact
    if fact(tensor, "is_leaf") or fact(tensor, "retains_grad"):
        gradient = read(tensor, "grad")
        if gradient is not None:
            yield "grad", gradient
    base = read(tensor, "_base")
    if base is not None:
        yield "base", base
    if plain and tensor.layout is not torch.strided:
        yield from parts_of(tensor).items()
    if torch._C._functorch.is_functorch_wrapped_tensor(tensor):
        yield "value", torch._C._functorch.get_unwrapped(tensor)
    if forward_ad._current_level >= 0:
        yield from _tangent(tensor)


def _tangent(tensor: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    if type(tensor) not in PLAIN or not tensor.dtype.is_floating_point:
        return
    try:
        tangent = torch._VF._unpack_dual(tensor, level=forward_ad._current_level).tangent
    except (NotImplementedError, RuntimeError):  # sparse and nested tensors have no tangents
        return
    if tangent is not None:
        yield "tangent", tangent


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
