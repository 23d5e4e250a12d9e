"""What is alive, under which names, and what of PyTorch's holds it? One look, on which all of this folder stands.

It holds everything that it found, so a `Look` lives only as long as the call that asks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property

import torch
from torch.utils._python_dispatch import _disable_current_modes

from byname.autograd.walk import Node, is_node, node_name, nodes_from
from byname.memory.blocks import Block, blocks_of, used
from byname.memory.garbage import garbage_among
from byname.memory.inside import held_inside
from byname.memory.living import Link, living
from byname.memory.words import end_of, holders_among
from byname.naming.name import Name, quote
from byname.naming.names import Findings, Named, find_near
from byname.naming.referrers import Climb, climb
from byname.naming.search import OursById, Targets
from byname.naming.sites import SiteLookup
from byname.reading.quiet import collection_paused, untouched
from byname.reading.tensor import PLAIN, fact

__all__ = ["Look", "looking"]


class Look:
    """Everything alive at one moment. To be made and used inside `looking`.

    Args:
        asked: tensors of which everything is to be known that leads to them, not only what a variable leads to first.

    Attributes:
        living: the tensors, nodes, modules and optimizers.
        blocks: the memory that the tensors lie in, the largest first.
        findings: the names found from the variables.
        graphs: which variable's graph each node belongs to.
        climbed: the holders of what neither a variable nor a variable's graph leads to, or of what was asked for; None
            where there is no such tensor.
        garbage: the ids of what only reference cycles keep alive, among what no variable leads to.
    """

    def __init__(self, asked: Targets | None = None) -> None:
        self.living = living()
        self.blocks = blocks_of(self.living.tensors, self.living.storages)
        self.findings = find_near()
        self._deep = Findings([], frozenset())
        self._find_graphs()
        self.climbed = self._climbed(asked)
        if self.climbed is not None:
            self._deep = Findings([self.climbed.reached], frozenset())
            if any(fact(one, "grad_fn") is not None for one in self._deep.tensors()):
                self._find_graphs()
        self.garbage = frozenset() if self.climbed is None or asked is not None else self._garbage(self.climbed)

    def _find_graphs(self) -> None:
        """Looks for what hangs on the results that variables are known to lead to."""
        self.graphs = Graphs(self)
        self._inside = held_inside(self.graphs.nodes(), self.findings)

    def _climbed(self, asked: Targets | None) -> Climb | None:
        if asked is not None:
            return climb(asked, whole=True)
        missing = Targets(tensor for block in self.blocks if not self._is_explained(block) for tensor in block.tensors)
        return climb(missing) if missing else None

    @cached_property
    def lookup(self) -> SiteLookup:
        """Where the nodes were made, as far as trackers know."""
        results = [one for one in self.living.tensors if fact(one, "grad_fn") is not None]
        return SiteLookup(results, set(self.living.nodes).__contains__)

    def _is_explained(self, block: Block) -> bool:
        return any(self.findings.met(one) or self._is_held(one) for one in block.tensors)

    def _is_held(self, tensor: torch.Tensor) -> bool:
        """Whether a variable's graph, or a tensor that a variable leads to, holds a tensor."""
        owners = [link.owner for link in self.links(tensor)]
        return any(self.graphs.has(one) if is_node(one) else self.findings.met(one) for one in owners)

    def names(self, tensor: torch.Tensor) -> tuple[Name, ...]:
        """The names by which the program reaches this very tensor, best first."""
        named = self.findings.own_names(tensor)
        return named or self._deep.own_names(tensor)

    def _garbage(self, climbed: Climb) -> frozenset[int]:
        lost = OursById(climbed.met)
        for block in self.blocks:
            if not self._is_explained(block):
                lost.update((id(one), one) for one in block.tensors)
        return garbage_among(lost)

    def ways(self, tensor: torch.Tensor) -> list[Named]:
        """The shortest way through each object that holds the tensor, with the name that it writes."""
        found = [*self.findings.own_ways(tensor), *self._deep.own_ways(tensor)]
        shortest: dict[object, Named] = {}
        for one in sorted(found, key=lambda one: len(one.way.steps)):
            shortest.setdefault(id(one.way.passed[-1]) if one.way.passed else (one.name.path, one.name.scope), one)
        return list(shortest.values())

    def block_of(self, tensor: torch.Tensor) -> int:
        """The number of the block that a tensor lies in."""
        return self._numbers[id(tensor)]

    def spare(self, number: int) -> int:
        """How many bytes of a block no tensor covers that the program has a name for."""
        block = self.blocks[number]
        pairs = zip(block.tensors, block.facts, strict=True)
        return block.bytes - used(block, [facts for tensor, facts in pairs if self.names(tensor)])

    @cached_property
    def _numbers(self) -> dict[int, int]:
        return {id(one): number for number, block in enumerate(self.blocks) for one in block.tensors}

    def links(self, tensor: torch.Tensor) -> Sequence[Link]:
        """What of PyTorch's holds a tensor, in C++ or by Python objects that only a node leads to."""
        return [*self.living.links.get(id(tensor), ()), *self._inside.get(id(tensor), ())]

    def unexplained(self, tensors: Sequence[torch.Tensor]) -> int:
        """How many references to tensors of one memory nobody accounts for: C++ code that byname cannot ask."""
        plain = [one for one in tensors if type(one) in PLAIN]
        count: int = sum(one._use_count() - 1 for one in plain)  # type: ignore[attr-defined]
        return max(0, count - sum(_weight(link, one) for one in plain for link in self.living.links.get(id(one), ())))

    @cached_property
    def _upward(self) -> Mapping[int, list[object]]:
        """For what the climb has passed, the objects that it met above."""
        return {} if self.climbed is None else holders_among(self.climbed.met)

    def slots(self, links: Iterable[Link]) -> list[str]:
        """The nodes among these owners in sentences, one for each graph."""
        found: dict[str, list[str]] = {}
        for link in links:
            if is_node(link.owner):
                found.setdefault(self.graphs.text(link.owner), []).append(f"{node_name(link.owner)}.{link.role}")
        return [f"{_first(sorted(slots))} in {graph}" for graph, slots in found.items()]

    def stranded(self, tensors: Sequence[torch.Tensor]) -> str:
        """What is known of the holder of tensors that no variable leads to, in a sentence."""
        if any(id(one) in self.garbage for one in tensors):
            return "only a reference cycle, which the garbage collector would free"
        holder = None if self.climbed is None else end_of(tensors, self._upward)
        return _NOBODY if holder is None else f"{holder}, which no variable leads to"

    def owner_text(self, link: Link) -> str:
        """What holds a tensor, in a sentence; empty where that is a tensor that holds it for nobody."""
        if is_node(link.owner):
            return f"{node_name(link.owner)}.{link.role} in {self.graphs.text(link.owner)}"
        owner = next(iter(self.names(link.owner)), None)
        return (
            f"{link.role.strip('_')} of {quote(owner)}" if owner is not None else f"{link.role.strip('_')} of a tensor"
        )


def _weight(link: Link, tensor: torch.Tensor) -> int:
    """How many references an owner has: a conjugate, and a view of complex numbers as pairs, hold their base twice."""
    if link.role != "base" or not tensor.is_complex():
        return 1
    return 2 if link.owner.is_conj() or not link.owner.is_complex() else 1


def _first(words: Sequence[str]) -> str:
    return words[0] if len(words) == 1 else f"{words[0]} and {len(words) - 1} more"


_NOBODY = "nobody that byname can see: C++ code, or an expression that is being evaluated"


class Graphs:
    """Which variable leads to each node? Of several the one whose tensor was made last: a loss, and not its parts."""

    def __init__(self, look: Look) -> None:
        self._names: list[Name] = []
        self._sources: dict[Node, int] = {}
        seen: set[Node] = set()
        for node, name in sorted(_sources(look), key=lambda source: -source[0]._sequence_nr()):
            behind = nodes_from([node], seen)
            if behind:
                self._sources |= dict.fromkeys(behind, len(self._names))
                self._names.append(name)

    def name(self, node: Node) -> Name | None:
        """The variable whose graph a node belongs to; None where no variable leads to it."""
        source = self._sources.get(node)
        return None if source is None else self._names[source]

    def text(self, node: Node) -> str:
        """The same in a sentence."""
        name = self.name(node)
        return "a graph that no variable leads to" if name is None else f"the graph of {quote(name)}"

    def has(self, node: Node) -> bool:
        """Whether a variable leads to a node."""
        return node in self._sources

    def nodes(self) -> Collection[Node]:
        """The nodes that variables lead to."""
        return self._sources.keys()


def _sources(look: Look) -> Iterator[tuple[Node, Name]]:
    """The nodes that variables lead to, as such or as those of tensors, with the variables' names."""
    for tensor in look.living.tensors:
        node = fact(tensor, "grad_fn")
        name = None if node is None else next(iter(look.names(tensor)), None)
        if name is not None:
            yield node, name
    for node in look.living.nodes:
        path = look.findings.path_of(node) if look.findings.met(node) else ""
        if path:
            yield node, Name(path, "attribute")


@contextmanager
def looking() -> Iterator[None]:
    """The context of a look: nothing of the program's runs, and the collector waits."""
    with untouched(), collection_paused(), _disable_current_modes():
        yield
