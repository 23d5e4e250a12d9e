"""Patterns: tensors whose names differ in one place only, with all that they keep alive.

``trainer.history[17]['loss']`` belongs to ``trainer.history[*]['loss']``. A tensor with several names is in several
groups; what lies in the graph behind a tensor is held through it. A container that gets new text keys all the time
counts as one pattern.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch

from byname.autograd.walk import Node, is_node, nodes_from
from byname.memory.snapshot import HeapSnapshot
from byname.naming.names import Named
from byname.naming.search import Ours, Targets, pattern_of
from byname.reading.tensor import fact

__all__ = ["Group", "HIDDEN", "Key", "LOST", "Size", "groups_of", "joined", "widened"]

_TEXT_KEY = re.compile(r"""\[(?:'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*")\]""")
_MANY = 3
"""How many new keys of one place make a pattern."""


class Key(NamedTuple):
    """What the names of a group have in common, and the scope in which they hold."""

    pattern: str
    scope: str


class Size(NamedTuple):
    """How many tensors a group has, how many pieces of memory are held through them, and how large these are.

    What no variable leads to has no members that the program knows of: there every piece of memory counts as one.
    """

    members: int = 0
    pieces: int = 0
    bytes: int = 0


@dataclass(slots=True, eq=False)
class Group:
    """The tensors whose names have one pattern. It holds them, so it lives only as long as the look.

    Attributes:
        key: the pattern; empty for what no variable leads to.
        tensors: its members.
        ways: for each member the way whose name has the pattern.
        blocks: the numbers, in the look's list, of the pieces of memory that are held through it.
        firsts: of how many members it is the best name.
    """

    key: Key
    tensors: list[torch.Tensor] = field(default_factory=Targets)
    ways: list[Named] = field(default_factory=Ours)
    blocks: set[int] = field(default_factory=set)
    firsts: int = 0

    def size(self, look: HeapSnapshot, without: Iterable[int] = ()) -> Size:
        """How large it is, apart from some pieces of memory."""
        mine = self.blocks.difference(without)
        members = {id(one) for one in self.tensors if look.block_of(one) in mine} if self.ways else mine
        return Size(len(members), len(mine), sum(look.blocks[number].bytes for number in mine))


def groups_of(look: HeapSnapshot) -> dict[Key, Group]:
    """Every group of a look; under an empty pattern what belongs to none."""
    found: dict[Key, Group] = {}
    for tensor in look.living.tensors:
        keys: dict[Key, Named] = {}
        for named in look.ways(tensor):
            keys.setdefault(Key(pattern_of(named.way), named.way.root.scope), named)
        for number, (key, named) in enumerate(keys.items()):
            group = found.get(key)
            if group is None:
                group = found[key] = Group(key)
            group.tensors.append(tensor)
            group.ways.append(named)
            group.firsts += number == 0
    held = _held_by_node(look)
    for group in found.values():
        group.blocks |= _blocks_held(look, group.tensors, held)
    return found | _others(look, found.values(), held)


def joined(key: Key, groups: Iterable[Group]) -> Group:
    """Several groups as one, under a wider pattern."""
    whole = Group(key)
    for group in groups:
        whole.tensors += group.tensors
        whole.ways += group.ways
        whole.blocks |= group.blocks
        whole.firsts += group.firsts
    return whole


def _held_by_node(look: HeapSnapshot) -> dict[Node, list[int]]:
    """For each node the blocks of what it holds, apart from what a variable holds too."""
    found: dict[Node, list[int]] = {}
    for number, block in enumerate(look.blocks):
        if any(look.names(one) for one in block.tensors):
            continue
        for link in (link for one in block.tensors for link in look.links(one)):
            if is_node(link.owner):
                found.setdefault(link.owner, []).append(number)
    return found


def _blocks_held(look: HeapSnapshot, tensors: Iterable[torch.Tensor], held: dict[Node, list[int]]) -> set[int]:
    found = {look.block_of(tensor) for tensor in tensors}
    roots = [node for tensor in tensors if (node := fact(tensor, "grad_fn")) is not None]
    for node in nodes_from(roots, set()):
        found.update(held.get(node, ()))
    return found


def _others(look: HeapSnapshot, groups: Iterable[Group], held: dict[Node, list[int]]) -> dict[Key, Group]:
    """What no variable leads to: what only reference cycles hold, with all behind it, and the rest."""
    claimed: set[int] = set().union(*(group.blocks for group in groups))
    rest = {number for number in range(len(look.blocks)) if number not in claimed}
    lost = Targets(one for number in rest for one in look.blocks[number].tensors if id(one) in look.garbage)
    behind = _blocks_held(look, lost, held) & rest
    return {key: _unnamed(look, key, numbers) for key, numbers in ((LOST, behind), (HIDDEN, rest - behind)) if numbers}


def _unnamed(look: HeapSnapshot, key: Key, numbers: set[int]) -> Group:
    tensors = Targets(one for number in sorted(numbers) for one in look.blocks[number].tensors)
    return Group(key, tensors, blocks=numbers)


LOST = Key("", "a reference cycle")
HIDDEN = Key("", "")


def _form_of(key: Key) -> Key:
    """A pattern with every text key held open."""
    return Key(_TEXT_KEY.sub("[*]", key.pattern), key.scope)


def widened(known: Iterable[Key], fresh: Iterable[Key], gone: Iterable[Key]) -> Mapping[Key, Key]:
    """The wider pattern of each pattern that has one.

    Args:
        known: all patterns there have been.
        fresh: those that were not there at first.
        gone: those that are not there any more.
    """
    new, former = _by_form(fresh), _by_form(gone)
    places = ((form, _open_place([*keys, *former.get(form, ())], form in former)) for form, keys in new.items())
    wide = {form: place for form, place in places if place is not None}
    found = {}
    for key in known:
        place = wide.get(_form_of(key)) if _TEXT_KEY.search(key.pattern) else None
        if place is not None:
            found[key] = _opened(key, place)
    return found


def _by_form(keys: Iterable[Key]) -> dict[Key, list[Key]]:
    found: dict[Key, list[Key]] = {}
    for key in keys:
        if _TEXT_KEY.search(key.pattern):
            found.setdefault(_form_of(key), []).append(key)
    return found


def _opened(key: Key, place: int) -> Key:
    found = list(_TEXT_KEY.finditer(key.pattern))[place]
    return Key(f"{key.pattern[: found.start()]}[*]{key.pattern[found.end() :]}", key.scope)


def _open_place(keys: list[Key], replaced: bool) -> int | None:
    """The first place at which these patterns have many keys, not inside of another; None where there is none.

    Args:
        keys: patterns of one form.
        replaced: whether some of them went as others came; then two are many.
    """
    texts = [_TEXT_KEY.findall(key.pattern) for key in keys]
    for place in range(len(texts[0])):
        different = len({each[place] for each in texts})
        if different >= (2 if replaced else _MANY) and not any(_is_within_another(key, place) for key in keys):
            return place
    return None


def _is_within_another(key: Key, place: int) -> bool:
    """Whether a key stands inside an entry of another container, as the fields of a record do."""
    return "[*]" in key.pattern[: list(_TEXT_KEY.finditer(key.pattern))[place].start()]
