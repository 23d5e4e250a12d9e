"""Walk: the autograd graph behind a tensor, each node once.

The walk is iterative and takes time linear in nodes and edges. It holds nodes, and nodes hold tensors, so callers drop
a `Walk` before they return; their results keep only numbers and text.

It leaves marks on some of the nodes, so that a deep graph is freed without deep recursion. A node that has a Python
object frees the nodes behind it recursively, which overflows the stack after some ten thousand of them. A marked node
hands them to Python, which frees them one after the other.
"""

from __future__ import annotations

import math
import random
import re
import sys
import threading
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, MutableSequence
from functools import cached_property
from itertools import chain, compress, count, cycle, islice, repeat
from operator import is_
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy
import torch

from byname.errors import NoGraphError, NotATensorError
from byname.reading.objects import found_in
from byname.reading.quiet import DisableTorchFunction, collection_paused, modes_disabled
from byname.reading.tensor import fact, is_tensor
from byname.source.location import Site
from byname.text import printable
from byname.tracking.log import logs
from byname.tracking.lookup import SiteLookup, site_of_tensor

if TYPE_CHECKING:
    import numpy.typing

Node: TypeAlias = Any
"""``torch.autograd.graph.Node``, untyped: the package also reads attributes that PyTorch's stub does not declare."""

ACCUMULATE: Any = vars(torch._C._functions)["AccumulateGrad"]
"""The class of the nodes that accumulate into leaves."""

Edges: TypeAlias = tuple[tuple[Any, int], ...]

Numbers: TypeAlias = "numpy.typing.NDArray[numpy.int64]"


class Walk:
    """The nodes behind some roots, numbered in the order of their distance.

    Attributes:
        nodes: the nodes; entry 0 is None and stands for an input that needs no gradient.
        inputs: the number of inputs of each node.
        roots, tensors: the numbers of the roots, and the root tensors themselves, where tensors were given.
    """

    def __init__(self, root: Any) -> None:
        given = as_sequence(root)
        self.tensors: list[torch.Tensor] = [one for one in given if is_tensor(one)]
        start = list(dict.fromkeys(map(root_node, given)))
        self.roots: list[int] = list(range(1, len(start) + 1))
        # The edges of all nodes, node after node, in one flat list.
        self.inputs: list[int] = [0]
        self._below: list[Node] = []
        with collection_paused():
            self.nodes: list[Node] = [None, *nodes_from(start, set(), self.inputs, self._below)]
        self._names: dict[type, str] = {}

    @cached_property
    def numbers(self) -> dict[Node, int]:
        return dict(zip(self.nodes, count(), strict=False))

    @cached_property
    def edges(self) -> NumberedEdges:
        targets = numpy.fromiter(map(self.numbers.__getitem__, self._below), numpy.int64, len(self._below))
        inputs = numpy.fromiter(self.inputs, numpy.int64, len(self.inputs))
        return NumberedEdges(numpy.cumsum(inputs) - inputs, targets)

    @cached_property
    def rows(self) -> list[list[int]]:
        """The numbers of the nodes that receive gradients from each node, in the order of its inputs."""
        return self.edges.rows()

    @cached_property
    def users(self) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in self.nodes]
        for number, row in enumerate(self.rows):
            for below in row:
                found[below].append(number)
        return found

    def name(self, number: int) -> str:
        return self.name_of(self.nodes[number])

    def name_of(self, node: Node) -> str:
        """Return PyTorch's name of a node; it is cached for a class whose nodes have the name of the class."""
        kind = type(node)
        known = self._names.get(kind)
        if known is None:
            known = node_name(node)
            if known == kind.__name__:
                self._names[kind] = known
        return known

    def distances(self) -> list[int]:
        """Return for every node the fewest steps from a root; entry 0, which stands for no node, is 0."""
        found: list[int] = numpy.searchsorted(self._levels(), numpy.arange(len(self.nodes)), side="right").tolist()
        return found

    def _levels(self) -> list[int]:
        """Return the number of the first node at each distance, from distance 1.

        A level begins right after the highest number that the nodes before the previous level lead to.
        """
        begins, targets = self.edges
        furthest = numpy.maximum.accumulate(numpy.concatenate(([len(self.roots)], targets)))
        after = (furthest[begins] + 1).tolist()
        found, first = [], len(self.roots) + 1
        while first < len(after):
            found.append(first)
            first = after[first]
        return found

    @cached_property
    def leaf_numbers(self) -> list[int]:
        """The numbers of the nodes that accumulate into a leaf."""
        return list(compress(count(), map(is_, self._kinds, repeat(ACCUMULATE))))

    @cached_property
    def _kinds(self) -> list[type]:
        return list(map(type, self.nodes))

    @cached_property
    def leaf_uses(self) -> dict[int, list[tuple[int, int]]]:
        """The uses of each leaf: the number of the using node and the position among its inputs."""
        order = self.leaf_numbers
        is_wanted = numpy.zeros(len(self.nodes), dtype=bool)
        is_wanted[order] = True
        begins, targets = self.edges
        found = numpy.flatnonzero(is_wanted[targets])
        found = found[numpy.argsort(targets[found], kind="stable")]
        users = numpy.searchsorted(begins, found, side="right") - 1
        uses = list(zip(users.tolist(), (found - begins[users]).tolist(), strict=True))
        ends = numpy.searchsorted(targets[found], order, side="right").tolist()
        return {number: uses[start:end] for number, start, end in zip(order, [0, *ends], ends, strict=False)}

    @cached_property
    def lookup(self) -> SiteLookup:
        """The lookup that finds the source line at which a node was made."""
        with DisableTorchFunction():
            return SiteLookup(self.tensors, lambda node: node in self.numbers)

    def site(self, number: int) -> Site | None:
        expr = self.lookup.expr(self.nodes[number]) if self.lookup else None
        return None if expr is None else expr.site

    def opaque(self) -> list[tuple[int, str]]:
        """Return the numbers of the nodes that hide others, each with a text that says what it hides."""
        kinds = dict(zip(self._kinds, self.nodes, strict=True))
        del kinds[type(None)]
        hiding = {kind: reason for kind, node in kinds.items() if (reason := opaque_reason(node))}
        if not hiding:
            return []
        return [(number, hiding[kind]) for number, kind in enumerate(self._kinds) if kind in hiding]


def nodes_behind(roots: Iterable[Any]) -> list[Node]:
    """Return the nodes of a `Walk` in the order of their distance, without the cost of its numbers and edges."""
    return nodes_from(map(root_node, roots), set())


_UNKEPT: deque[Any] = deque(maxlen=0)
"""List that drops what is appended."""


def nodes_from(
    roots: Iterable[Node],
    seen: set[Node],
    inputs: MutableSequence[int] = _UNKEPT,
    targets: MutableSequence[Node] = _UNKEPT,
) -> list[Node]:
    """Return the nodes reachable from some nodes, except those in `seen`, and add the new ones to `seen`.

    It is one loop, because a call per node would cost as much as PyTorch's own work.

    Args:
        inputs: gets the number of edges of each node.
        targets: gets the node at the end of each edge; None for an input that needs no gradient.
    """
    nodes = [node for node in dict.fromkeys(roots) if node not in seen]
    seen.update(nodes)
    seen.add(None)
    add, append, waiting = seen.add, nodes.append, iter(nodes)  # grows while it is walked
    add_inputs, add_target = inputs.append, targets.append
    edges: Edges = ()
    for gap in gaps():
        node = None
        for node in islice(waiting, gap):
            edges = node.next_functions
            add_inputs(len(edges))
            for below, _ in edges:
                add_target(below)
                if below not in seen:
                    add(below)
                    append(below)
        if node is None:
            break
        if edges:
            mark(node, edges)
    return nodes


def by_kind(nodes: Iterable[Node]) -> dict[type, list[Node]]:
    found: defaultdict[type, list[Node]] = defaultdict(list)
    for node in nodes:
        found[type(node)].append(node)
    return found


def leaf_tensors(nodes: Iterable[Node]) -> list[torch.Tensor]:
    """Return the leaves into which some of these nodes accumulate."""
    return [node.variable for node in nodes if type(node) is ACCUMULATE]


class NumberedEdges(NamedTuple):
    """Edges as numbers, node after node: the first position of each node's edges, and the targets of all edges."""

    begins: Numbers
    targets: Numbers

    def rows(self) -> list[list[int]]:
        begins, targets = self.begins.tolist(), self.targets.tolist()
        return [targets[begin:end] for begin, end in zip(begins, [*begins[1:], len(targets)], strict=True)]


def root_node(root: Any) -> Node:
    """Return the node of a root, which may be a tensor, a node or a `GradientEdge`.

    Raises:
        NoGraphError: the root is a tensor outside any graph.
        NotATensorError: the root is neither a tensor nor a node.
    """
    if is_tensor(root):
        with DisableTorchFunction():
            node = fact(root, "grad_fn")
            if node is None and fact(root, "requires_grad") and fact(root, "is_leaf"):
                node = accumulator(root)
            if node is None:
                raise NoGraphError(why_no_graph(root, site_of_tensor(root)))
            return node
    if is_node(root):
        return root
    if type(root) is torch.autograd.graph.GradientEdge:
        return root.node
    is_module = issubclass(type(root), torch.nn.Module)
    hint = "; a model has no graph, but the loss computed with it has one" if is_module else ""
    raise NotATensorError(f"expected a tensor, a grad_fn or a sequence of these, but got {type(root).__name__}{hint}")


def why_no_graph(tensor: torch.Tensor, site: Site | None) -> str:
    """Return the likely reason why a tensor has no graph, with the line that made it if a tracker saw it."""
    made = "" if site is None else f" (made at {site}: {printable(site.statement)})"
    if fact(tensor, "requires_grad") and not fact(tensor, "is_leaf"):
        return (
            f"PyTorch refuses to give the graph of this tensor{made}: it is one of several views that were made at "
            "once (split, chunk, unbind), and since then their base, or another of the views, was changed in place. "
            "Write that change out of place"
        )
    asked = f"this tensor belongs to no autograd graph: it has no grad_fn and does not require grad{made}"
    if torch._C.TensorBase.is_inference(tensor):
        return f"{asked}. It was made under torch.inference_mode(); compute it outside that context"
    tensor_type = fact(tensor, "dtype")
    if not (tensor_type.is_floating_point or tensor_type.is_complex):
        kind = str(tensor_type).removeprefix("torch.")
        return (
            f"{asked}. Its dtype is {kind}, and only floating-point and complex tensors can have gradients: argmax, "
            "comparisons and .long() cut off the graph"
        )
    base = fact(tensor, "_base")
    if base is not None and fact(base, "requires_grad"):
        return f"{asked}, though the tensor that it is a view of does: it was detached, or made under torch.no_grad()"
    if not torch.is_grad_enabled():
        return (
            f"{asked}. Gradients are switched off here (torch.no_grad() or set_grad_enabled(False)); compute it "
            "outside that context"
        )
    return (
        f"{asked}. Either nothing it was computed from requires grad, or it was made under torch.no_grad(), or it was "
        "cut off by .detach(), .data, .item() or numpy"
        + ("" if site or logs() else "; byname.track() around the computation remembers which line made it")
    )


def has_graph(root: Any) -> bool:
    """Return whether a root belongs to a graph: a tensor that requires grad, a node or an edge."""
    if not is_tensor(root):
        return True
    with DisableTorchFunction():
        return bool(fact(root, "requires_grad"))


def accumulator(leaf: torch.Tensor) -> Node:
    """Return the node that accumulates into a leaf, or None if there is none, as for a view made under ``no_grad``."""
    with modes_disabled(), torch.inference_mode(False), torch.enable_grad():
        try:
            view = torch._C.TensorBase.view_as(leaf, leaf)
        except Exception:  # noqa: BLE001 - wrapper subclasses and nested tensors refuse this each in their own way
            return None
    node = fact(view, "grad_fn")
    return None if node is None else node.next_functions[0][0]


def node_name(node: Node) -> str:
    """Return PyTorch's name of a node without its C++ namespace."""
    name: str = node.name()
    return name.rpartition("::")[2]


def opaque_reason(node: Node) -> str:
    """Return the part of the graph that a node hides from a walk, as text; empty for a node that hides nothing."""
    name = node_name(node)
    return next((words for pattern, words in _OPAQUE.items() if re.match(pattern, name)), "")


_OPAQUE = {
    "CompiledFunctionBackward": "a compiled function: its operations are hidden inside",
    "CheckpointFunctionBackward": "a reentrant checkpoint: the parameters used in it are not in the graph",
    "CopySlices": "an in-place change of a view: the tensors that it saved are hidden inside",
    ".*DifferentiableGraph": "a scripted function: its operations are hidden inside",
}


def as_sequence(root: Any) -> list[Any]:
    """Return the roots as a list, from one root or a list, tuple, set or dict of roots, which must not be empty."""
    if type(root) not in (list, tuple, set, frozenset, dict, type({}.values())):
        return [root]
    if not root:
        raise NoGraphError("the sequence of roots is empty; give at least one tensor")
    return list(root.values() if type(root) is dict else root)


def is_node(thing: object) -> bool:
    """Return whether an object is a node of autograd's graph, judged by its class."""
    return all(found_in(type(thing), name) is not None for name in ("next_functions", "_sequence_nr"))


_KEY = "byname: freed after this node"
_DEEP = (3, 13) <= sys.version_info < (3, 14)
"""Whether this is Python 3.13. Python defers the freeing of nested tuples: beyond a depth of 50 until 3.12, and near
the end of the stack since 3.14. Only 3.13 waits for a depth of 10,000, by which the nodes have used 16 MB of stack."""
_UNMARKED = 500
"""Number of nodes that any stack can free by recursion. On Python 3.13 the first nodes get no mark, because marks run
Python code there, in which an interrupt is lost, as in any ``__del__``."""


_SHARE, _RANDOM = 16, random.Random(0)
_GAPS = [1 + int(math.log(1 - _RANDOM.random()) / math.log(1 - 1 / _SHARE)) for _ in range(601)]
"""Distances from each marked node to the next.

With one node in 16 marked, a stack of 128 KB freed chains of any length; with one in 32 it did not (PyTorch 2.13). The
marks are random, so that no shape of a graph can have all its unmarked nodes in one line.
"""


def gaps() -> Iterator[int]:
    """Return an endless iterator over the number of nodes from one mark to the next."""
    return chain([_UNMARKED] if _DEEP else [], cycle(_GAPS))


def mark(node: Any, edges: Edges) -> None:
    """Mark a node: the nodes behind it are then freed after it, and not recursively within its own freeing."""
    node.metadata[_KEY] = _Deferred(edges) if _DEEP else edges


class _Queue(threading.local):
    """The edges that a thread has still to free, and whether it is freeing them now."""

    def __init__(self) -> None:
        self.edges: list[Edges] = []
        self.running = False


class _Deferred:
    """Edges whose freeing is queued: the first mark that is freed frees the edges of all later ones, one by one."""

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
            except KeyboardInterrupt:  # a ``__del__`` loses it in any case; the other edges must still be freed
                continue
        queue.running = False
