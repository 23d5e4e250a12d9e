"""What is in the graph behind a tensor? One walk: iterative, each node once, linear in nodes and edges.

The walk holds nodes, and nodes hold tensors, so a `Walk` lives only as long as the call that asked; results keep the
numbers and words they need.
"""

from __future__ import annotations

import bisect
import random
import sys
import threading
from collections import defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from itertools import chain, cycle, islice, repeat
from typing import Any, TypeAlias

import numpy
import torch
from torch.utils._python_dispatch import _disable_current_modes

from byname.errors import NoGraphError, NotATensorError
from byname.naming.sites import SiteLookup, site_of_tensor
from byname.reading.objects import found_in
from byname.reading.quiet import collection_paused, untouched
from byname.reading.tensor import fact, is_tensor
from byname.source.location import Site
from byname.table import printable

__all__ = [
    "Node",
    "PathCounts",
    "Walk",
    "accumulate_type",
    "accumulator",
    "as_sequence",
    "by_kind",
    "has_graph",
    "is_node",
    "leaf_tensors",
    "lots",
    "mark",
    "node_name",
    "nodes_behind",
    "nodes_from",
    "opaque_reason",
    "root_node",
]

Node: TypeAlias = Any
"""``torch.autograd.graph.Node``; its children are looked at through private methods, which the stub does not know."""


class Walk:
    """The nodes behind some roots, numbered in the order of their distance.

    Attributes:
        nodes: the nodes; number 0 stands for "no node", an input that needs no gradient.
        numbers: the number of each node.
        roots: the numbers of the roots.
        tensors: the root tensors themselves, where tensors were given.
    """

    def __init__(self, root: Any) -> None:
        given = as_sequence(root)
        self.tensors: list[torch.Tensor] = [one for one in given if is_tensor(one)]
        start = list(dict.fromkeys(root_node(one) for one in given))
        self.nodes: list[Node] = [None, *start]
        self.roots: list[int] = list(range(1, len(start) + 1))
        self.numbers: dict[Node, int] = {node: number for number, node in enumerate(self.nodes)}
        # All edges in one list, node after node: where each node's begin, and to which nodes they lead.
        self._begins: list[int] = [0]
        self._targets: list[int] = []
        self._levels: list[int] = []
        with collection_paused():
            self._walk()

    def _walk(self) -> None:
        nodes, number_for, add = self.nodes, self.numbers.setdefault, self.nodes.append
        targets, add_target, add_begin = self._targets, self._targets.append, self._begins.append
        count = level_end = len(nodes)
        pairs = zip(islice(nodes, 1, None), lots(), strict=False)  # grows while it is walked
        for at, (node, marked) in enumerate(pairs, 1):
            if at == level_end:
                self._levels.append(at)
                level_end = count
            add_begin(len(targets))
            edges = node.next_functions
            for below, _ in edges:
                number = number_for(below, count)
                if number == count:
                    count += 1
                    add(below)
                add_target(number)
            if marked and edges:
                mark(node, edges)

    @cached_property
    def rows(self) -> list[list[int]]:
        """For each node the numbers of the nodes that its gradients go to, in the order of its inputs."""
        return _rows(self._begins, self._targets)

    @cached_property
    def users(self) -> list[list[int]]:
        """For each node the numbers of those that use it."""
        found: list[list[int]] = [[] for _ in self.nodes]
        for number, row in enumerate(self.rows):
            for below in row:
                found[below].append(number)
        return found

    def path_counts(self, wanted: Iterable[int]) -> PathCounts:
        """Counts, when asked, the ways to the wanted nodes; it holds numbers only."""
        return PathCounts(self._begins, self._targets, self.roots, wanted)

    def inputs(self, number: int) -> int:
        """How many inputs a node has."""
        return len(self.nodes[number].next_functions)

    def distance(self, number: int) -> int:
        """The fewest steps from a root to a node."""
        return bisect.bisect_right(self._levels, number)

    def leaf_numbers(self) -> list[int]:
        """The numbers of the nodes that accumulate into a leaf."""
        accumulate = accumulate_type()
        return [number for number, kind in enumerate(map(type, self.nodes)) if kind is accumulate]

    def consumers(self, wanted: Iterable[int]) -> dict[int, list[tuple[int, int]]]:
        """For each wanted node, who uses it: the number of the node and the position among its inputs."""
        found: dict[int, list[tuple[int, int]]] = {number: [] for number in wanted}
        is_wanted = numpy.zeros(len(self.nodes), dtype=bool)
        is_wanted[list(found)] = True
        targets, begins = numpy.array(self._targets, dtype=numpy.int64), numpy.array(self._begins)
        edges = numpy.flatnonzero(is_wanted[targets])
        users = numpy.searchsorted(begins, edges, side="right") - 1
        places = zip(targets[edges].tolist(), users.tolist(), (edges - begins[users]).tolist(), strict=True)
        for number, user, position in places:
            found[number].append((user, position))
        return found

    def lookup(self) -> SiteLookup:
        """Finds where in the source the nodes were made."""
        with untouched():
            return SiteLookup(self.tensors, self.numbers.__contains__)

    def opaque(self) -> list[tuple[int, str]]:
        """The nodes that hide others, with what each hides."""
        kinds = dict(zip(map(type, self.nodes[1:]), self.nodes[1:], strict=True))
        hiding = {kind: reason for kind, node in kinds.items() if (reason := opaque_reason(node))}
        if not hiding:
            return []
        return [(number, hiding[type(node)]) for number, node in enumerate(self.nodes) if type(node) in hiding]


def nodes_behind(roots: Iterable[Any]) -> list[Node]:
    """The nodes of a `Walk` in the same order, without numbers and edges: for those who need no more."""
    return nodes_from(map(root_node, roots), set())


def nodes_from(roots: Iterable[Node], seen: set[Node]) -> list[Node]:
    """The same from nodes, without going to those that were seen before; what is found is added to them."""
    nodes = [node for node in dict.fromkeys(roots) if node not in seen]
    seen.update(nodes)
    seen.add(None)
    add, append = seen.add, nodes.append
    for node, marked in zip(nodes, lots(), strict=False):  # grows while it is walked
        edges = node.next_functions
        for below, _ in edges:
            if below not in seen:
                add(below)
                append(below)
        if marked and edges:
            mark(node, edges)
    return nodes


def by_kind(nodes: Iterable[Node]) -> dict[type, list[Node]]:
    """Nodes by their class."""
    found: defaultdict[type, list[Node]] = defaultdict(list)
    for node in nodes:
        found[type(node)].append(node)
    return found


def leaf_tensors(nodes: Iterable[Node]) -> list[torch.Tensor]:
    """The leaves that some of these nodes accumulate into."""
    accumulate: Any = accumulate_type()
    return [node.variable for node in nodes if type(node) is accumulate]


class PathCounts:
    """In how many ways does a gradient reach each leaf? Counted when first asked, by dynamic programming."""

    __slots__ = ("_begins", "_counts", "_roots", "_targets", "_wanted")

    def __init__(self, begins: list[int], targets: list[int], roots: list[int], wanted: Iterable[int]) -> None:
        self._begins = begins
        self._targets = targets
        self._roots = roots
        self._wanted = frozenset(wanted)
        self._counts: dict[int, int] | None = None

    def of(self, number: int) -> int:
        """The exact number of paths from the roots to a leaf."""
        if self._counts is None:
            self._counts = self._count()
            self._begins = self._targets = []
        return self._counts[number]

    def _count(self) -> dict[int, int]:
        rows, wanted = _rows(self._begins, self._targets), self._wanted
        ways: dict[int, int] = dict.fromkeys(self._roots, 1)
        found: dict[int, int] = {}
        for number in _from_the_roots(rows, self._roots):
            here = ways.pop(number)  # let go at once: these numbers can be thousands of digits long
            if number in wanted:
                found[number] = here
            for below in rows[number]:
                if below:
                    ways[below] = ways.get(below, 0) + here
        return found


def _rows(begins: list[int], targets: list[int]) -> list[list[int]]:
    return [targets[begin:end] for begin, end in zip(begins, [*begins[1:], len(targets)], strict=True)]


def _from_the_roots(rows: list[list[int]], roots: list[int]) -> Iterator[int]:
    """The nodes in an order in which each comes after all that use it (Kahn 1962)."""
    waiting = [0] * len(rows)
    for number in chain.from_iterable(rows):
        waiting[number] += 1
    ready = [number for number in roots if not waiting[number]]
    while ready:
        number = ready.pop()
        yield number
        for below in rows[number]:
            waiting[below] -= 1
            if below and not waiting[below]:
                ready.append(below)


def root_node(root: Any) -> Node:
    """The node that a root stands for.

    Raises:
        NoGraphError: a tensor outside any graph.
        NotATensorError: neither a tensor nor a node.
    """
    if is_tensor(root):
        with untouched():
            node = fact(root, "grad_fn")
            if node is None and fact(root, "requires_grad"):
                node = accumulator(root)
            if node is None:
                raise NoGraphError(why_no_graph(root, site_of_tensor(root)))
            return node
    if is_node(root):
        return root
    if type(root) is torch.autograd.graph.GradientEdge:
        return root.node
    is_module = issubclass(type(root), torch.nn.Module)
    hint = "; a model has no graph, the loss computed with it has" if is_module else ""
    raise NotATensorError(
        f"a tensor, a grad_fn or a sequence of these is needed, and this is of type {type(root).__name__}{hint}"
    )


def has_graph(root: Any) -> bool:
    """Whether a root belongs to a graph: a tensor that requires grad, a node or an edge."""
    if not is_tensor(root):
        return True
    with untouched():
        return bool(fact(root, "requires_grad"))


def accumulator(leaf: torch.Tensor) -> Node:
    """The node that accumulates into a leaf; None where there is none, as for a view made under ``no_grad``."""
    with _nothing_between():
        try:
            view = torch._C.TensorBase.view_as(leaf, leaf)
        except Exception:  # noqa: BLE001 - wrapper subclasses and nested tensors refuse this each in their own way
            return None
    node = fact(view, "grad_fn")
    return None if node is None else node.next_functions[0][0]


@contextmanager
def _nothing_between() -> Iterator[None]:
    """Lets PyTorch compute as if no mode of the user's were active."""
    with _disable_current_modes(), torch.inference_mode(False), torch.enable_grad():
        yield


def node_name(node: Node) -> str:
    """PyTorch's name of a node without its C++ namespace."""
    name: str = node.name()
    return name.rpartition("::")[2]


def opaque_reason(node: Node) -> str:
    """What a node hides from a walk, in words; empty for a node that hides nothing."""
    name = node_name(node)
    reason = next((words for start, words in _OPAQUE.items() if name.startswith(start)), "")
    if not reason and "DifferentiableGraph" in name:
        reason = "a scripted function: its operations are inside"
    return reason


_OPAQUE = {
    "CompiledFunctionBackward": "a compiled function: its operations are inside",
    "CheckpointFunctionBackward": "a reentrant checkpoint: the parameters used in it are not in the graph",
    "CopySlices": "an in-place change of a view: what that operation saved is inside",
}


def as_sequence(root: Any) -> list[Any]:
    """The roots that were given: one, or a list, tuple or set of them.

    Raises:
        NoGraphError: none was given.
    """
    if type(root) not in (list, tuple, set, frozenset):
        return [root]
    if not root:
        raise NoGraphError("the sequence of roots is empty; give at least one tensor")
    return list(root)


def is_node(thing: object) -> bool:
    """Whether this is a node of autograd's graph, judged by its class."""
    return all(found_in(type(thing), name) is not None for name in ("next_functions", "_sequence_nr"))


def why_no_graph(tensor: torch.Tensor, site: Site | None) -> str:
    """Why a tensor has no graph, as far as it can be known, and where it was made, if a tracker saw it."""
    asked = "this tensor belongs to no autograd graph: it has no grad_fn and does not require grad"
    if site is not None:
        asked += f" (made at {site}: {printable(site.statement)})"
    if torch._C.TensorBase.is_inference(tensor):
        return f"{asked}. It was made under torch.inference_mode(); compute it outside of that"
    tensor_type = fact(tensor, "dtype")
    if not (tensor_type.is_floating_point or tensor_type.is_complex):
        kind = str(tensor_type).removeprefix("torch.")
        return (
            f"{asked}. Its type is {kind}, and only floating-point and complex tensors have gradients: argmax, "
            "comparisons and .long() end a graph"
        )
    base = fact(tensor, "_base")
    if base is not None and fact(base, "requires_grad"):
        return f"{asked}, though the tensor that it is a view of does: it was detached, or made under torch.no_grad()"
    if not torch.is_grad_enabled():
        return (
            f"{asked}. Gradients are switched off here (torch.no_grad() or set_grad_enabled(False)); compute it "
            "outside of that"
        )
    return (
        f"{asked}. Either nothing it was computed from requires grad, or it was made under torch.no_grad(), or cut off "
        "by .detach(), .data, .item() or numpy"
        + ("" if site else "; byname.track() around the computation remembers which line made it")
    )


@lru_cache(maxsize=1)
def accumulate_type() -> type:
    """The class of the nodes that accumulate into leaves. It has no public name."""
    with untouched(), _nothing_between():
        return type(accumulator(torch.empty(0, requires_grad=True, device="cpu")))


Edges: TypeAlias = tuple[tuple[Any, int], ...]

_KEY = "byname: freed after this node"
_LOTS = random.Random(0).choices((True, False), (1, 7), k=10_007)
_DEEP = (3, 13) <= sys.version_info < (3, 14)
"""Python defers freeing a tuple inside of other tuples: from 50 of them on until 3.12, near the end of the stack since
3.14. In 3.13 it is from 10,000 on, whatever the stack, and the nodes between them take 16 MB by then."""
_UNMARKED = 500
"""So many nodes are freed by recursion on any stack. Only Python 3.13 spares them the marks, which run Python code
there: an interrupt that comes in this code is lost, as in any ``__del__``."""


def lots() -> Iterator[bool]:
    """Draw for each node of a walk, in its order, whether it is to be marked. There is no end of lots."""
    return chain(repeat(False, _UNMARKED), cycle(_LOTS)) if _DEEP else cycle(_LOTS)


def mark(node: Any, edges: Edges) -> None:
    """Let what lies behind a node be freed after the node, and not inside of its freeing."""
    node.metadata[_KEY] = _Deferred(edges) if _DEEP else edges


class _Queue(threading.local):
    """The edges that a thread has still to free, and whether it is about to."""

    def __init__(self) -> None:
        self.edges: list[Edges] = []
        self.running = False


class _Deferred:
    """Edges that are freed one mark after the other, by the first mark of them all."""

    __slots__ = ("edges",)

    def __init__(self, edges: Edges) -> None:
        self.edges = edges

    def __del__(self, queue: _Queue = _Queue()) -> None:  # noqa: B008 - one for all, and there until the very end
        waiting = queue.edges
        waiting.append(self.edges)
        del self.edges
        if queue.running:
            return
        queue.running = True
        while waiting:
            try:
                waiting.pop()
            except KeyboardInterrupt:  # lost in a ``__del__`` in any case; the rest is not
                continue
        queue.running = False
