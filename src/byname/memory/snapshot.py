"""Heap snapshot: the live tensors, their names, and what in PyTorch holds them.

The census, growth, holders and the report on memory that has run out read a snapshot. It holds all that it found, so
callers drop it before they return.
"""

from __future__ import annotations

import gc
import types
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

import torch

from byname.autograd.pause import backward_elsewhere, backward_paused
from byname.autograd.slots import packed_in
from byname.autograd.walk import Node, is_node, node_name, nodes_from
from byname.memory.blocks import StorageRegion, blocks_of, used
from byname.memory.living import Link, LiveObjects, garbage_among
from byname.naming.name import Name, quote
from byname.naming.names import Named, NameIndex, Searches
from byname.naming.reference_path import ReferencePath
from byname.naming.referrers import ReferrerSearch, find_referrers
from byname.naming.roots import FOREIGN, Root, roots_of_suspended
from byname.naming.search import ScratchDict, ScratchList, SearchResult, Targets, search
from byname.reading.frames import locals_of
from byname.reading.objects import name_of_class
from byname.reading.quiet import DisableTorchFunction, collection_paused, modes_disabled
from byname.reading.tensor import PLAIN, fact
from byname.text import printable
from byname.tracking.lookup import SiteLookup


class HeapSnapshot:
    """A snapshot of the heap at one moment. Callers hold `heap_at_rest`.

    Args:
        requested: tensors for which to find every reference path, not only the first from a variable.
    """

    def __init__(self, requested: Targets | None = None) -> None:
        self.living = LiveObjects()
        self.blocks = blocks_of(self.living.tensors, self.living.storages)  # the largest first
        self.index = NameIndex([Searches().near])  # the names found from the variables
        self._deep = NameIndex([], frozenset())
        self._find_graphs()
        self.referrers = self._find_referrers(requested)
        if self.referrers is not None:
            self._go_deep(self.referrers.reached)
        # the ids of unreachable objects that only reference cycles keep alive
        self.garbage = frozenset() if self.referrers is None or requested is not None else self._garbage(self.referrers)
        if self.referrers is not None and (suspended := self._suspended(self.referrers)):
            self._go_deep(self.referrers.reached, search(suspended))

    def _go_deep(self, *found: SearchResult) -> None:
        self._deep = NameIndex([*found], frozenset())
        if any(fact(one, "grad_fn") is not None for one in self._deep.tensors()):
            self._find_graphs()

    def _suspended(self, referrers: ReferrerSearch) -> list[Root]:
        """Return the variables of suspended generators that are in use though no variable leads to them."""
        met = referrers.met.items()
        return roots_of_suspended(
            one for ident, one in met if ident not in self.garbage and ident not in referrers.reached.numbers
        )

    def _find_graphs(self) -> None:
        self.graphs = GraphsByVariable(self)  # the variable whose graph each node belongs to
        self._inside = held_inside(self.graphs.nodes(), self.index)

    def _find_referrers(self, requested: Targets | None) -> ReferrerSearch | None:
        """Search from these tensors, or else from those that neither a variable nor a variable's graph leads to."""
        if requested is not None:
            return find_referrers(requested, whole=True, near=self.index.searches[0])
        missing = Targets(tensor for block in self.blocks if not self._is_explained(block) for tensor in block.tensors)
        return find_referrers(missing) if missing else None

    @cached_property
    def lookup(self) -> SiteLookup:
        """The lookup of the locations at which trackers saw the nodes made."""
        results = [one for one in self.living.tensors if fact(one, "grad_fn") is not None]
        return SiteLookup(results, set(self.living.nodes).__contains__)

    def _is_explained(self, block: StorageRegion) -> bool:
        return any(self.index.contains(one) or self._is_held(one) for one in block.tensors)

    def _is_held(self, tensor: torch.Tensor) -> bool:
        """Return whether a variable's graph, or a tensor that a variable leads to, holds a tensor."""
        owners = [link.owner for link in self.links(tensor)]
        return any(self.graphs.has(one) if is_node(one) else self.index.contains(one) for one in owners)

    def names(self, tensor: torch.Tensor) -> tuple[Name, ...]:
        """Return the names by which the program reaches this tensor object, best first."""
        named = self.index.own_paths(tensor) or self._deep.own_paths(tensor)
        return tuple([one.name for one in named])

    def _garbage(self, referrers: ReferrerSearch) -> frozenset[int]:
        lost = ScratchDict(referrers.met)
        for block in self.blocks:
            if not self._is_explained(block):
                lost.update((id(one), one) for one in block.tensors)
        if all(root.how != "tag" for root in referrers.reached.roots()):  # a tag keeps nothing alive, a variable does
            lost = ScratchDict((ident, one) for ident, one in lost.items() if ident not in referrers.reached.numbers)
        return garbage_among(lost) if lost else frozenset()

    def paths(self, tensor: torch.Tensor) -> list[Named]:
        """Return the shortest reference path through each object that holds the tensor, with its name."""
        found = [*self.index.own_paths(tensor), *self._deep.own_paths(tensor)]
        shortest: dict[object, Named] = {}
        for one in sorted(found, key=lambda one: len(one.path.steps)):
            shortest.setdefault(id(one.path.passed[-1]) if one.path.passed else (one.name.path, one.name.scope), one)
        return list(shortest.values())

    def block_of(self, tensor: torch.Tensor) -> int:
        return self._numbers[id(tensor)]

    def unused_bytes(self, number: int) -> int:
        """Return the bytes of a block that no named tensor covers."""
        block = self.blocks[number]
        pairs = zip(block.tensors, block.cards, strict=True)
        return block.bytes - used(block, [card for tensor, card in pairs if self.names(tensor)])

    @cached_property
    def _numbers(self) -> dict[int, int]:
        return {id(one): number for number, block in enumerate(self.blocks) for one in block.tensors}

    def links(self, tensor: torch.Tensor) -> Sequence[Link]:
        """Return PyTorch's references to a tensor, from C++ or from Python objects that only a node holds."""
        return [*self.living.links.get(id(tensor), ()), *self._inside.get(id(tensor), ())]

    def unexplained(self, tensors: Sequence[torch.Tensor]) -> int:
        """Return the number of unexplained references to tensors in one block of memory, which C++ code holds."""
        plain = [one for one in tensors if type(one) in PLAIN]
        count: int = sum(one._use_count() - 1 for one in plain)  # type: ignore[attr-defined]
        return max(0, count - sum(_weight(link, one) for one in plain for link in self.living.links.get(id(one), ())))

    @cached_property
    def _upward(self) -> Mapping[int, list[object]]:
        found: dict[int, list[object]] = {}
        for holder in () if self.referrers is None else self.referrers.met.values():
            for ident in set(map(id, gc.get_referents(holder))):
                found.setdefault(ident, ScratchList()).append(holder)
        return found

    def slots(self, links: Iterable[Link]) -> list[str]:
        """Return one text for each graph with the nodes among these owners."""
        found: dict[str, list[str]] = {}
        for link in links:
            if is_node(link.owner):
                found.setdefault(self.graphs.text(link.owner), []).append(f"{node_name(link.owner)}.{link.role}")
        return [f"{_first(sorted(slots))} in {graph}" for graph, slots in found.items()]

    def describe_holder(self, tensors: Sequence[torch.Tensor]) -> str:
        """Return a text for the holder of tensors that no variable leads to."""
        if any(id(one) in self.garbage for one in tensors):
            return "only a reference cycle, which the garbage collector would free"
        return _nearest_holder(tensors, self._upward) or _UNKNOWN_HOLDER

    def owner_text(self, link: Link) -> str:
        if is_node(link.owner):
            return f"{node_name(link.owner)}.{link.role} in {self.graphs.text(link.owner)}"
        owner = next(iter(self.names(link.owner)), None)
        return f"{link.role.strip('_')} of {'a tensor' if owner is None else quote(owner)}"


def _weight(link: Link, tensor: torch.Tensor) -> int:
    """Return how many references a link stands for: conjugates, and complex views as pairs, hold their base twice."""
    if link.role != "base" or not tensor.is_complex():
        return 1
    return 2 if link.owner.is_conj() or not link.owner.is_complex() else 1


def _first(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{words[0]} and {len(words) - 1} more"


_NO_VARIABLE = ", to which byname found no variable"
_UNKNOWN_HOLDER = "something that cannot be followed: C or C++ code, or an expression that is being evaluated"


class GraphsByVariable:
    """Map from a node to the variable whose graph has it; of several variables the latest: a loss, not its parts."""

    def __init__(self, snapshot: HeapSnapshot) -> None:
        self._names: list[Name] = []
        self._sources: dict[Node, int] = {}
        seen: set[Node] = set()
        for node, name in sorted(_sources(snapshot), key=lambda source: -source[0]._sequence_nr()):
            behind = nodes_from([node], seen)
            if behind:
                self._sources |= dict.fromkeys(behind, len(self._names))
                self._names.append(name)

    def name(self, node: Node) -> Name | None:
        """Return the variable whose graph a node belongs to; None if no variable leads to it."""
        source = self._sources.get(node)
        return None if source is None else self._names[source]

    def text(self, node: Node) -> str:
        """Return a text for the graph of a node, with the variable's name if it has one."""
        name = self.name(node)
        return "a graph that no variable leads to" if name is None else f"the graph of {quote(name)}"

    def has(self, node: Node) -> bool:
        return node in self._sources

    def nodes(self) -> Collection[Node]:
        return self._sources.keys()


def _sources(snapshot: HeapSnapshot) -> Iterator[tuple[Node, Name]]:
    """Yield the nodes that variables hold, or that made the tensors they hold, with the names of the variables."""
    for tensor in snapshot.living.tensors:
        node = fact(tensor, "grad_fn")
        name = None if node is None else next(iter(snapshot.names(tensor)), None)
        if name is not None:
            yield node, name
    for node in snapshot.living.nodes:
        path = snapshot.index.path_of(node) if snapshot.index.contains(node) else ""
        if path:
            yield node, Name(path, "attribute")


@contextmanager
def heap_at_rest() -> Iterator[None]:
    """Disable the program's modes and overrides, and pause the collector and backward, while a snapshot is in use."""
    with backward_paused(), DisableTorchFunction(), collection_paused(), modes_disabled():
        yield


def held_inside(nodes: Collection[Node], index: NameIndex) -> dict[int, list[Link]]:
    """Return the links from nodes to tensors that no variable leads to, by the id of the tensor."""
    roots = list(_roots(nodes))
    if not roots:
        return {}
    found: dict[int, list[Link]] = {}
    known = {id(root): node for node, root in roots}
    reached = search([root for _, root in roots])
    for tensor in reached.tensors():
        if index.contains(tensor):
            continue
        for path in reached.paths_to(tensor, limit=1):
            role = f"{path.root.text} (packed)" if path.root.how == "packed" else path.text.whole().words
            found.setdefault(id(tensor), ScratchList()).append(Link(known[id(path.root)], printable(role)))
    return found


def reached_from_context(node: Node) -> SearchResult:
    """Return the objects that the ``ctx`` of a custom function leads to."""
    return search([_context(node)])


def _context(node: Node) -> Root:
    return Root("ctx", node, "graph", "", evaluates=False, quality=FOREIGN)


def _roots(nodes: Collection[Node]) -> Iterator[tuple[Node, Root]]:
    for node in nodes:
        if issubclass(type(node), torch.autograd.function.BackwardCFunction):
            yield node, _context(node)
    for node, slot, raw in () if backward_elsewhere() else packed_in(nodes):
        for one in (raw.data, raw.unpack_hook):
            yield node, Root(slot, one, "packed", "", evaluates=False, quality=FOREIGN)


def path_start(path: ReferencePath) -> str:
    """Return the start of a reference path as text: ``a variable of train (train.py:14)``, ``a global of __main__``."""
    root = path.root
    begins = f"from `{root.text}`, " if path.length else ""
    if root.how == "local":
        return f"{begins}a variable of {root.scope}" + (" in another thread" if root.foreign else "")
    if root.how == "global":
        return f"{begins}a global of {root.scope}"
    return f"{begins}{_BEGINNINGS.get(root.how, root.how)}"


_BEGINNINGS = {"tag": "a tag", "given": "what was given", "task": "a task", "error": "an error", "graph": "of autograd"}


def _nearest_holder(tensors: Iterable[object], holders: Mapping[int, list[object]]) -> str:
    """Return the nearest holder that can be recognised: a variable of a function, an object of a class, or a list."""
    wanted = set(map(id, tensors))
    passed, nearest = set(wanted), ""
    while wanted:
        above = ScratchList(one for ident in wanted for one in holders.get(ident, ()) if id(one) not in passed)
        running = [words for one in above if type(one) is types.FrameType for words in _in_frame(one, passed)]
        functions = [_in_function(one, passed) for one in above if type(one) is types.FunctionType]
        classes = [f"an object of class {name_of_class(type(one))}" for one in above if type(one) not in _COMMON]
        if running:
            return printable(min(running))
        if functions or classes:
            return printable(min(functions or classes)) + _NO_VARIABLE
        nearest = nearest or next((f"a {type(one).__name__}" for one in above if type(one) in _COMMON[:5]), "")
        wanted = set(map(id, above))
        passed |= wanted
    return nearest and nearest + _NO_VARIABLE


def _in_frame(frame: types.FrameType, passed: Collection[int]) -> list[str]:
    """Return the variables by which the search reached the frame of a function that runs, or that an error left."""
    function = frame.f_code.co_qualname
    return [f"`{name}` of the function {function}" for name, value in locals_of(frame) if id(value) in passed]


def _in_function(function: types.FunctionType, passed: Collection[int]) -> str:
    """Return the variable in a function's closure by which the search reached it, or else the function."""
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    variables = [name for name, cell in cells if id(cell) in passed]
    place = f"`{variables[0]}` in the closure of" if variables else "the function"
    return f"{place} {function.__qualname__}"


_COMMON = (list, tuple, dict, set, frozenset, types.CellType, types.FrameType, OrderedDict)
