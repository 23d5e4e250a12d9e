"""Patterns: groups of tensors whose names differ only in positions, with all the memory that they keep alive.

``trainer.history[17]['loss']`` belongs to ``trainer.history[*]['loss']``. A tensor with several names is in several
groups, and a group also holds the memory in the graphs behind its tensors. A container that keeps getting new text
keys counts as one pattern.

After its backward a graph holds nodes but no saved tensors, so ``total_loss += loss`` grows by nodes alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import torch

from byname.autograd.walk import Node, is_node, nodes_from
from byname.memory.snapshot import HeapSnapshot
from byname.naming.names import Named
from byname.naming.reference_path import pattern_of
from byname.naming.search import ScratchList, Targets
from byname.reading.tensor import fact

_NEW_KEY = re.compile(r"""\[(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\]|\.[^\W\d]\w*?\d+$""")
"""A text key, or the name of an attribute that ends with a number, as ``setattr(self, f"h_{step}", h)`` makes them."""
_MANY = 3
"""Number of new keys at one place that make a pattern."""


class Key(NamedTuple):
    """The common pattern of a group's names, and the scope in which they hold."""

    pattern: str
    scope: str


class Size(NamedTuple):
    """The size of a group."""

    members: int = 0  # its tensors; its blocks if no variable leads to it
    pieces: int = 0  # the memory blocks that they keep alive
    bytes: int = 0  # of these


class GraphExtent(NamedTuple):
    """The extent of a graph: the number of its nodes, and the sequence numbers of the oldest and the newest.

    PyTorch numbers the nodes of a thread in the order in which they are made; nodes of leaves have the largest number.
    """

    nodes: int
    oldest: int
    newest: int


@dataclass(slots=True, eq=False)
class Group:
    """The tensors whose names have one pattern. It holds them, so it must not outlive the snapshot."""

    key: Key  # the pattern; empty for tensors that no variable leads to
    tensors: list[torch.Tensor] = field(default_factory=Targets)
    paths: list[Named] = field(default_factory=ScratchList)  # for each its name with this pattern
    blocks: set[int] = field(default_factory=set)  # the numbers of the snapshot's blocks that it keeps alive
    graph: GraphExtent | None = None  # of the graph behind its tensors
    numbers: frozenset[int] = frozenset()  # the sequence numbers of the nodes in it
    firsts: int = 0  # the tensors for which it gives the best name

    def size(self, snapshot: HeapSnapshot, without: Iterable[int] = ()) -> Size:
        mine = self.blocks.difference(without)
        members = {id(one) for one in self.tensors if snapshot.block_of(one) in mine} if self.paths else mine
        return Size(len(members), len(mine), sum(snapshot.blocks[number].bytes for number in mine))


def groups_of(snapshot: HeapSnapshot) -> dict[Key, Group]:
    """Return every group of a snapshot; `LOST` and `HIDDEN` are the keys of the groups without names."""
    found: dict[Key, Group] = {}
    for tensor in snapshot.living.tensors:
        keys: dict[Key, Named] = {}
        for named in snapshot.paths(tensor):
            keys.setdefault(Key(pattern_of(named.path), named.path.root.scope), named)
        for number, (key, named) in enumerate(keys.items()):
            group = found.get(key)
            if group is None:
                group = found[key] = Group(key)
            group.tensors.append(tensor)
            group.paths.append(named)
            group.firsts += number == 0
    held = _held_by_node(snapshot)
    for group in found.values():
        nodes = _nodes_behind(group.tensors)
        group.blocks |= _blocks_held(snapshot, group.tensors, nodes, held)
        if nodes:
            group.numbers = frozenset([node._sequence_nr() for node in nodes])
            newest = max(fact(one, "grad_fn")._sequence_nr() for one in group.tensors if fact(one, "grad_fn"))
            group.graph = GraphExtent(len(nodes), min(group.numbers), newest)
    return found | _others(snapshot, found.values(), held)


def wider_group(key: Key, groups: Iterable[Group]) -> Group:
    """Return several groups as one, under a wider pattern."""
    whole = Group(key)
    for group in groups:
        whole.tensors += group.tensors
        whole.paths += group.paths
        whole.blocks |= group.blocks
        whole.firsts += group.firsts
    return whole


def _held_by_node(snapshot: HeapSnapshot) -> dict[Node, list[int]]:
    found: dict[Node, list[int]] = {}
    for number, block in enumerate(snapshot.blocks):
        if any(snapshot.names(one) for one in block.tensors):
            continue
        for link in (link for one in block.tensors for link in snapshot.links(one)):
            if is_node(link.owner):
                found.setdefault(link.owner, []).append(number)
    return found


def _nodes_behind(tensors: Iterable[torch.Tensor]) -> list[Node]:
    return nodes_from([node for tensor in tensors if (node := fact(tensor, "grad_fn")) is not None], set())


def _blocks_held(
    snapshot: HeapSnapshot, tensors: Iterable[torch.Tensor], nodes: Iterable[Node], held: dict[Node, list[int]]
) -> set[int]:
    return {snapshot.block_of(tensor) for tensor in tensors}.union(*(held.get(node, ()) for node in nodes))


def _others(snapshot: HeapSnapshot, groups: Iterable[Group], held: dict[Node, list[int]]) -> dict[Key, Group]:
    """Return the groups of all other memory: `LOST`, which only reference cycles keep alive, and `HIDDEN`."""
    others = set(range(len(snapshot.blocks))).difference(*(group.blocks for group in groups))
    lost = Targets(one for number in others for one in snapshot.blocks[number].tensors if id(one) in snapshot.garbage)
    behind = _blocks_held(snapshot, lost, _nodes_behind(lost), held) & others
    found = {}
    for key, numbers in ((LOST, behind), (HIDDEN, others - behind)):
        if numbers:
            tensors = Targets(one for number in sorted(numbers) for one in snapshot.blocks[number].tensors)
            found[key] = Group(key, tensors, blocks=numbers)
    return found


LOST = Key("", "a reference cycle")
HIDDEN = Key("", "")


def _form_of(key: Key) -> Key:
    return Key(_NEW_KEY.sub(_wild, key.pattern), key.scope)


def _wild(key: re.Match[str]) -> str:
    return "[*]" if key[0].startswith("[") else f"{key[0].rstrip('0123456789')}*"


def widened(known: Iterable[Key], fresh: Iterable[Key], gone: Iterable[Key]) -> Mapping[Key, Key]:
    """Return the wider pattern of each known pattern that has one, from those that are new and those that are gone."""
    new, former = _by_form(fresh), _by_form(gone)
    places = ((form, _open_place([*keys, *former.get(form, ())], form in former)) for form, keys in new.items())
    wide = {form: place for form, place in places if place is not None}
    found = {}
    for key in known:
        place = wide.get(_form_of(key)) if _NEW_KEY.search(key.pattern) else None
        if place is not None:
            part = list(_NEW_KEY.finditer(key.pattern))[place]
            found[key] = key._replace(pattern=f"{key.pattern[: part.start()]}{_wild(part)}{key.pattern[part.end() :]}")
    return found


def _by_form(keys: Iterable[Key]) -> dict[Key, list[Key]]:
    found: dict[Key, list[Key]] = {}
    for key in keys:
        if _NEW_KEY.search(key.pattern):
            found.setdefault(_form_of(key), []).append(key)
    return found


def _open_place(keys: list[Key], replaced: bool) -> int | None:
    """Return the first place at which these patterns have many keys, outside of other entries; None if there is none.

    The patterns differ only in text keys; if some vanished as others came, these were `replaced`, and two are enough.
    """
    found = [list(_NEW_KEY.finditer(key.pattern)) for key in keys]
    for place in range(len(found[0])):
        different = len({each[place][0] for each in found})
        inside = any("[*]" in key.pattern[: each[place].start()] for key, each in zip(keys, found, strict=True))
        if different >= (2 if replaced else _MANY) and not inside:  # the fields of a record are inside an entry
            return place
    return None


_ENOUGH = 3
"""Number of snapshots in which a graph must be longer than in the snapshot before."""


def growing_graph(groups: Mapping[Key, Group], graphs: Sequence[Mapping[Key, GraphExtent]]) -> tuple[Group, int] | None:
    """Return the shortest of the graphs that became longer from snapshot to snapshot and begin where they began.

    It is given as its group and the number of new nodes. Graphs that lead to it grow with it, so the shortest one is
    the cause. The groups are those of the last snapshot.
    """
    histories = {key: _extent_history(key, graphs) for key, group in groups.items() if group.graph and group.firsts}
    growing = {
        key: history
        for key, history in histories.items()
        if sum(after.nodes > before.nodes for before, after in pairwise(history)) >= _ENOUGH
    }
    if not growing:
        return None
    key = min(growing, key=lambda one: (growing[one][-1].nodes, one))
    return groups[key], growing[key][-1].nodes - growing[key][0].nodes


def _extent_history(key: Key, graphs: Sequence[Mapping[Key, GraphExtent]]) -> list[GraphExtent]:
    """Return the extents of a group's graph since it last began anew."""
    history: list[GraphExtent] = []
    for extent in (snapshot.get(key) for snapshot in graphs):
        if extent is None or (history and (extent.oldest != history[-1].oldest or extent.nodes < history[-1].nodes)):
            history = []
        if extent is not None:
            history.append(extent)
    return history
