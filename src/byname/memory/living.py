"""Live objects: the tensors on Python's heap, the tensors that only PyTorch's C++ holds, and those that are garbage.

Python's collector lists every tensor that has a Python object. These lead to the others: gradients, bases of views,
parts of sparse tensors, and tensors in the slots of autograd's graph.

Garbage are the objects that only reference cycles keep alive. They are found as the collector finds them (CPython's
``gc_refs``), without running it: an object is garbage if all its references come from objects that are garbage.
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
from byname.naming import referrers
from byname.naming.search import ScratchDict, ScratchList, Targets
from byname.reading.objects import attributes_of, heap, snapshot
from byname.reading.tensor import PLAIN, fact, is_tensor, parts_of
from byname.tracking.allocations import Allocation, living_allocations


class Link(NamedTuple):
    """A reference from PyTorch's C++ to a tensor: its owner, a node or a tensor, and the owner's name for it.

    The role is a slot's name such as ``mat2``; ``variable`` of an accumulating node; or ``grad``, ``base`` and the
    names of parts, of a tensor.
    """

    owner: Any
    role: str


class LiveObjects:
    """The live objects of the heap that are tensors or lead to one. Callers hold `heap_at_rest`, and drop it soon."""

    def __init__(self) -> None:
        objects, self.hidden = referrers.everything()  # and how many ``gc.freeze`` hides from the collector's list
        self.unread = backward_elsewhere()  # then saved tensors are left unread
        tensors, nodes, storages, modules, optimizers = _sort_by_class(objects)
        self.tensors = Targets(tensors)  # every live one, each once
        self.visible = len(tensors)  # the first of them, which are Python objects before the search
        self.storages: list[torch.UntypedStorage] = ScratchList(storages)  # and those that a tracker saw allocated
        self.modules: Sequence[nn.Module] = ScratchList(modules)
        self.optimizers: Sequence[Any] = ScratchList(optimizers)
        self.nodes: list[Node] = ScratchList()
        self._seen: set[Node] = set()
        self.allocations: dict[int, Allocation] = ScratchDict({one.storage._cdata: one for one in living_allocations()})
        self.storages += [one.storage for one in self.allocations.values()]
        self.links: dict[int, list[Link]] = {}  # the references from PyTorch's C++ to each tensor, by its id
        self._known = set(map(id, tensors))
        self._follow(self.tensors, nodes)
        if self.hidden:
            self._follow_hidden()

    def _follow(self, tensors: Iterable[torch.Tensor], nodes: Iterable[Node]) -> None:
        seen = self._seen
        fresh: list[torch.Tensor] = ScratchList(tensors)
        roots: list[Node] = ScratchList(nodes)
        while fresh or roots:
            before = len(self.tensors)
            for tensor in fresh:
                for role, held in _held_by(tensor):
                    self._add_tensor(held, Link(tensor, role))
            roots += [node for tensor in fresh if (node := fact(tensor, "grad_fn")) is not None]
            found = ScratchList(nodes_from(roots, seen))
            self.nodes += found
            for node, role, tensor in () if self.unread else held_by_nodes(found):
                self._add_tensor(tensor, Link(node, role))
            fresh, roots = ScratchList(self.tensors[before:]), ScratchList()

    def _follow_hidden(self) -> None:
        """Add the tensors in Python objects that only nodes hold, which ``gc.freeze`` hides from the collector."""
        custom = [node for node in self.nodes if issubclass(type(node), torch.autograd.function.BackwardCFunction)]
        slots = () if self.unread else packed_in(self.nodes)
        packed = [one for _, _, raw in slots for one in (raw.data, raw.unpack_hook)]
        for tensor in _sort_by_class(referrers.reached_from([], [*custom, *packed]))[0]:
            self._add_tensor(tensor)
        self._follow(self.tensors[self.visible :], ())

    def _add_tensor(self, tensor: torch.Tensor, link: Link | None = None) -> None:
        if id(tensor) not in self._known:
            self._known.add(id(tensor))
            self.tensors.append(tensor)
        if link is not None:
            self.links.setdefault(id(tensor), ScratchList()).append(link)


def optimizer_state(alive: LiveObjects) -> Iterator[tuple[str, torch.Tensor]]:
    for optimizer in alive.optimizers:
        state = attributes_of(optimizer).get("state")
        for _, entry in snapshot(state) if issubclass(type(state), dict) else ():
            if issubclass(type(entry), dict):
                yield from ((key, value) for key, value in snapshot(entry) if type(key) is str and is_tensor(value))


def _sort_by_class(objects: list[object]) -> list[list[Any]]:
    """Return the tensors, nodes, storages, modules and optimizers, by identity of classes: this runs no code."""
    sorts = {id(kind): sort for sort, family in enumerate(_FAMILIES) for kind in family()}
    found: list[list[Any]] = [[] for _ in _FAMILIES]
    codes = referrers.codes_of(map(type, objects), len(objects))
    for place in referrers.candidates(sorts.keys(), codes).tolist():
        sort = sorts.get(id(type(objects[place])))
        if sort is not None:
            found[sort].append(objects[place])
    return found


def _below(kind: type) -> Iterable[type]:
    found: dict[int, type] = {}
    waiting = [kind]
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
"""References to an object while they are counted: those of the list, of the loop's variable, and of the argument."""


def garbage_among(objects: Mapping[int, object]) -> frozenset[int]:
    """Return the ids of objects that only others of the set keep alive; with each, those that refer to it are given."""
    held, inside, outside = _references_to(objects)
    everything: list[object] = ScratchList(objects.values())
    # A variable of a running function and C++ hold references that no object on the heap has.
    alive = outside | {id(one) for one in everything if sys.getrefcount(one) - _OF_THE_LOOP > held.get(id(one), 0)}
    return frozenset(objects.keys() - _reached(alive, inside))


_FEW = 64
"""The most objects whose referrers the collector finds faster than all references of the heap are read."""


def _references_to(objects: Mapping[int, object]) -> tuple[Counter[int], dict[int, list[int]], set[int]]:
    """Return the number of references to each object, its referents among these, and the objects held by others."""
    held = Counter[int]()
    inside: dict[int, list[int]] = {}
    outside: set[int] = set()
    # The collector does not see the items of tuples that it does not track, such as tuples of arrays.
    few = referrers.few_enough(objects, _FEW) and all(map(gc.is_tracked, objects.values()))
    every = referrers.referrers_of(objects.values()) if few else referrers.References(heap()).suspects(objects.keys())
    for holder in every:
        found = [ident for ident in map(id, gc.get_referents(holder)) if ident in objects]
        held.update(found)
        if id(holder) in objects:
            inside[id(holder)] = found
        elif found and not referrers.is_ignored_holder(holder):
            outside.update(found)
    return held, inside, outside


def _reached(start: set[int], inside: Mapping[int, list[int]]) -> set[int]:
    reached, waiting = set(start), list(start)
    while waiting:
        for ident in inside.get(waiting.pop(), ()):
            if ident not in reached:
                reached.add(ident)
                waiting.append(ident)
    return reached
