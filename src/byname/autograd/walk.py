"""What is in the graph behind a tensor? One walk: iterative, each node once, linear in nodes and edges.

The walk holds nodes, and nodes hold tensors, so a `Walk` lives only as long as the call that asked; results keep the
numbers and words they need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain, islice
from typing import Any, TypeAlias

import torch

from byname.card import is_tensor
from byname.errors import NoGraphError, NotATensorError
from byname.naming.sites import SiteLookup
from byname.quiet import collection_paused, untouched

__all__ = ["Node", "PathCounts", "Walk", "node_name", "opaque_reason", "root_node"]

Node: TypeAlias = Any
"""``torch.autograd.graph.Node``; its children are looked at through private methods, which the stub does not know."""


class Walk:
    """The nodes behind some roots, numbered in the order of their distance.

    Attributes:
        nodes: the nodes; number 0 stands for "no node", an input that needs no gradient.
        rows: for each node the numbers of the nodes that its gradients go to, in the order of its inputs.
        distances: for each node the fewest steps from a root.
        roots: the numbers of the roots.
        tensors: the root tensors themselves, where tensors were given.
    """

    def __init__(self, root: Any) -> None:
        given = _as_sequence(root)
        self.tensors: list[torch.Tensor] = [one for one in given if is_tensor(one)]
        start = list(dict.fromkeys(root_node(one) for one in given))
        self.nodes: list[Node] = [None, *start]
        self.rows: list[list[int]] = [[]]
        self.distances: list[int] = [-1, *[0] * len(start)]
        self.roots: list[int] = list(range(1, len(start) + 1))
        self.numbers: dict[Node, int] = {node: number for number, node in enumerate(self.nodes)}
        try:
            with collection_paused():
                self._walk()
        finally:
            self._make_safe_to_free()

    def _walk(self) -> None:
        nodes, numbers, distances = self.nodes, self.numbers, self.distances
        number_of, add, add_distance, add_row = numbers.get, nodes.append, distances.append, self.rows.append
        count = len(nodes)
        for node in islice(nodes, 1, None):  # grows while it is walked
            row = []
            for below, _ in node.next_functions:
                number = number_of(below)
                if number is None:
                    numbers[below] = number = count
                    count += 1
                    add(below)
                    add_distance(distances[len(self.rows)] + 1)
                row.append(number)
            add_row(row)

    def leaf_numbers(self) -> list[int]:
        """The numbers of the nodes that accumulate into a leaf."""
        accumulate = _accumulate_type()
        return [number for number, node in enumerate(self.nodes) if type(node) is accumulate]

    def consumers(self, wanted: Iterable[int]) -> dict[int, list[tuple[int, int]]]:
        """For each wanted node, who uses it: the number of the node and the position among its inputs."""
        found: dict[int, list[tuple[int, int]]] = {number: [] for number in wanted}
        if found:
            get = found.get
            for user, row in enumerate(self.rows):
                for position, number in enumerate(row):
                    uses = get(number)
                    if uses is not None:
                        uses.append((user, position))
        return found

    def lookup(self) -> SiteLookup:
        """Finds where in the source the nodes were made."""
        with untouched():
            return SiteLookup(self.tensors)

    def opaque(self) -> list[tuple[int, str]]:
        """The nodes that hide others, with what each hides."""
        kinds: dict[type, str] = {}
        found = []
        for number, node in enumerate(islice(self.nodes, 1, None), 1):
            kind = type(node)
            reason = kinds.get(kind)
            if reason is None:
                reason = kinds[kind] = opaque_reason(node)
            if reason:
                found.append((number, reason))
        return found

    def _make_safe_to_free(self) -> None:
        """Sees to it that the walked graph can be freed, however deep it is.

        Looking at a node leaves a Python object on it, and nodes with such objects are freed by recursion: a chain of
        50,000 overflows the C stack (PyTorch 2.13). Python's own containers are freed without deep recursion. So the
        edges that cross every 32nd level are doubled by a list in the node's ``metadata``: then no more than 32 nodes
        in a row are freed by recursion before a container takes over. The list holds only what its node holds anyway.
        """
        if len(self.nodes) < _DEEP:
            return
        # An interrupted walk has nodes that it did not reach.
        self.rows += [[] for _ in range(len(self.nodes) - len(self.rows))]
        levels = self._levels()
        if max(levels) < _DEEP:
            return
        for node, row, level in zip(self.nodes, self.rows, levels, strict=False):
            below = [self.nodes[number] for number in row if levels[number] // _STRIDE > level // _STRIDE]
            if below:
                node.metadata[_KEY] = below

    def _levels(self) -> list[int]:
        """For each node the most steps from a root."""
        levels = [0] * len(self.nodes)
        for number in _from_the_roots(self.rows, self.roots):
            below = levels[number] + 1
            for one in self.rows[number]:
                if levels[one] < below:
                    levels[one] = below
        return levels


_DEEP = 4_000
_STRIDE = 32
_KEY = "byname: freed after this node"


class PathCounts:
    """In how many ways does a gradient reach each leaf? Counted when first asked, by dynamic programming."""

    __slots__ = ("_counts", "_roots", "_rows", "_wanted")

    def __init__(self, rows: list[list[int]], roots: list[int], wanted: Iterable[int]) -> None:
        self._rows: list[list[int]] = rows
        self._roots = roots
        self._wanted = frozenset(wanted)
        self._counts: dict[int, int] | None = None

    def of(self, number: int) -> int:
        """The exact number of paths from the roots to a leaf."""
        if self._counts is None:
            self._counts = self._count()
            self._rows = []
        return self._counts[number]

    def _count(self) -> dict[int, int]:
        rows, wanted = self._rows, self._wanted
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
            if root.grad_fn is not None:
                return root.grad_fn
            node = _accumulator(root) if root.requires_grad else None
            if node is None:
                raise NoGraphError(_why_no_graph(root))
            return node
    if _is_node(root):
        return root
    if isinstance(root, torch.autograd.graph.GradientEdge):
        return root.node
    hint = "; a model has no graph, the loss computed with it has" if isinstance(root, torch.nn.Module) else ""
    raise NotATensorError(
        f"a tensor, a grad_fn or a sequence of these is needed, and this is a {type(root).__name__}{hint}"
    )


def _accumulator(leaf: torch.Tensor) -> Node:
    """The node that accumulates into a leaf; None for a view that was made under ``no_grad``, which has none."""
    with torch.enable_grad():
        view = leaf.view_as(leaf)
    return view.grad_fn.next_functions[0][0] if view.grad_fn is not None else None


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


def _as_sequence(root: Any) -> list[Any]:
    if is_tensor(root) or not isinstance(root, Sequence) or isinstance(root, torch.autograd.graph.GradientEdge):
        return [root]
    if not root:
        raise NoGraphError("the sequence of roots is empty; give at least one tensor")
    return list(root)


def _is_node(thing: object) -> bool:
    return hasattr(type(thing), "next_functions") and hasattr(type(thing), "_sequence_nr")


def _why_no_graph(tensor: torch.Tensor) -> str:
    """Why a tensor has no graph, as far as it can be known."""
    asked = "this tensor belongs to no autograd graph: it has no grad_fn and does not require grad"
    if tensor.is_inference():
        return f"{asked}. It was made under torch.inference_mode(); compute it outside of that"
    if not (tensor.is_floating_point() or tensor.is_complex()):
        kind = str(tensor.dtype).removeprefix("torch.")
        return (
            f"{asked}. Its type is {kind}, and only floating-point and complex tensors have gradients: argmax, "
            "comparisons and .long() end a graph"
        )
    base = tensor._base
    if base is not None and base.requires_grad:
        return f"{asked}, though the tensor that it is a view of does: it was detached, or made under torch.no_grad()"
    if not torch.is_grad_enabled():
        return (
            f"{asked}. Gradients are switched off here (torch.no_grad() or set_grad_enabled(False)); compute it "
            "outside of that"
        )
    return (
        f"{asked}. Either nothing it was computed from requires grad, or it was made under torch.no_grad(), or cut off "
        "by .detach(), .data, .item() or numpy; byname.track() around the computation remembers which line made it"
    )


@lru_cache(maxsize=1)
def _accumulate_type() -> type:
    """The class of the nodes that accumulate into leaves. It has no public name."""
    with untouched(), torch.enable_grad(), torch.inference_mode(False):
        return type(_accumulator(torch.empty(0, requires_grad=True, device="cpu")))
