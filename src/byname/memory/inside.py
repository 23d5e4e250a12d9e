"""Which tensors do the nodes of a graph hold by Python objects? On the ``ctx`` of functions, and packed by hooks."""

from __future__ import annotations

from collections.abc import Collection, Iterator

import torch

from byname.autograd.slots import packed_in
from byname.autograd.walk import Node
from byname.memory.living import Link
from byname.naming.names import Findings
from byname.naming.patterns import written
from byname.naming.roots import FOREIGN, Root
from byname.naming.search import Ours, Reached, search
from byname.table import printable

__all__ = ["held_inside", "reached_from_context"]


def held_inside(nodes: Collection[Node], findings: Findings) -> dict[int, list[Link]]:
    """For each tensor that only these nodes lead to, by its id, the nodes that do, and how.

    Args:
        nodes: nodes of living graphs.
        findings: what variables lead to.
    """
    roots = list(_roots(nodes))
    if not roots:
        return {}
    found: dict[int, list[Link]] = {}
    known = {id(root): node for node, root in roots}
    reached = search([root for _, root in roots])
    for tensor, _ in reached.tensors():
        if findings.met(tensor):
            continue
        for way in reached.ways_to(tensor, limit=1):
            link = Link(known[id(way.root)], printable(_role(way.root, written(way).words)))
            found.setdefault(id(tensor), Ours()).append(link)
    return found


def reached_from_context(node: Node) -> Reached:
    """What the ``ctx`` of a custom function leads to."""
    return search([_context(node)])


def _context(node: Node) -> Root:
    return Root("ctx", node, "graph", "", evaluates=False, quality=FOREIGN)


def _roots(nodes: Collection[Node]) -> Iterator[tuple[Node, Root]]:
    """The Python objects that nodes hold."""
    for node in nodes:
        if issubclass(type(node), torch.autograd.function.BackwardCFunction):
            yield node, _context(node)
    for node, slot, raw in packed_in(nodes):
        for one in (raw.data, raw.unpack_hook):
            yield node, Root(slot, one, "packed", "", evaluates=False, quality=FOREIGN)


def _role(root: Root, words: str) -> str:
    return f"{root.text} (packed)" if root.how == "packed" else words
