"""Census: every live storage of the process, with its size, name, kind and holders."""

from __future__ import annotations

import gc
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import torch
from torch import nn

from byname.autograd.pause import not_ended
from byname.autograd.walk import is_node
from byname.errors import BadArgumentError
from byname.memory.blocks import StorageRegion, blocks_of, cuda_is_in_use, unattributed, used
from byname.memory.living import Link, LiveObjects, optimizer_state
from byname.memory.snapshot import HeapSnapshot, heap_at_rest
from byname.naming.history import name_of_output
from byname.naming.name import NAMELESS, Name, quote, unnamed, with_relation
from byname.naming.search import ScratchDict
from byname.reading.modules import registered
from byname.reading.quiet import dynamo_skip
from byname.reading.tensor import Card, Carded, fact, is_tensor
from byname.source.location import Located, Site
from byname.table import Alias, Column, Lazy, Tabled, Totals, bytes_text, counted
from byname.tracking.lookup import site_of_tensor


@dataclass(frozen=True, slots=True)
class StorageRow(Carded, Located, Tabled):
    """One storage, with its name and use in the program. Each column of the table is an attribute.

    Attributes:
        name: the program's name of its tensor; of several tensors, of the one that covers most of it.
        kind: ``parameter``, ``buffer``, ``gradient``, ``optimizer``, ``saved`` (only autograd's graph holds it),
            ``input`` (the program holds it, and a living graph reads it and has not computed it), or ``other``.
        module: the path of the module that it belongs to; empty where it belongs to none.
        card: the shape, dtype and device of that tensor; None for a bare storage.
        device: its device.
        bytes: the size of the whole storage, used or not.
        views: the number of further live tensors that view it with another offset, shape, strides or dtype.
        used: the most bytes of it that the program's tensors can cover.
        memory: ``pinned`` or ``shared``; empty for ordinary memory.
        holders: its other holders: names, nodes of a graph, unexplained references.
        site: the location that made it; None when no tracker recorded it.
    """

    name: Name
    kind: str
    module: str
    card: Card | None
    device: torch.device = field()  # without `field()` the property of `Carded` would be the default
    bytes: int = field()
    views: int
    used: int
    memory: str
    holders: tuple[str, ...]
    site: Site | None

    held_by = Alias[tuple[str, ...]]("holders")

    columns = (
        Column("name"),
        Column("kind"),
        Column("module", drop_order=4),
        Column("dtype", drop_order=6),
        Column("shape", drop_order=9),
        Column("device", drop_order=5),
        Column("bytes"),
        Column("views", drop_order=2),
        Column("used", drop_order=3),
        Column("memory", drop_order=1),
        Column("held_by", drop_order=10, show=lambda one: "; ".join(one.holders)),
        Column("site", drop_order=8),
        Column("caller", drop_order=7),
    )


class Census(Totals[StorageRow]):
    """The storages of all living tensors at one moment, the largest first. It keeps none of them alive.

    Attributes:
        unattributed: bytes allocated on accelerators that belong to no tensor found; None without an accelerator.
        notes: sentences about tensors that the census could not find or name.
    """

    __slots__ = ("items", "notes", "unattributed")
    _row = StorageRow
    _by = ("kind", "name", "site", "dtype", "device", "module")

    def __init__(self, items: Sequence[StorageRow], unattributed: int | None, notes: tuple[str, ...]) -> None:
        self.items = items
        self.unattributed = unattributed
        self.notes = notes

    @property
    def bytes(self) -> int:
        """The sum of all storages in bytes."""
        return sum(one.bytes for one in self.items)

    def _memory(self, one: StorageRow) -> tuple[None, int]:
        return None, one.bytes

    def _shown(self) -> list[dict[str, Any]]:
        return _with_entries_together(super()._shown())

    def _title(self) -> str:
        kinds = ", ".join(f"{kind} {bytes_text(size)}" for kind, _, size in self.by("kind") if size)
        return f"{counted(len(self), 'storage')}, {bytes_text(self.bytes)}" + (f": {kinds}" if kinds else "")

    def _notes(self) -> Sequence[str]:
        if self.unattributed is None:
            return self.notes
        return (f"unattributed: {bytes_text(self.unattributed)} that the allocator has given out", *self.notes)


def _with_entries_together(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows to show: entries of a list as one, but not parameters and the like, which tell layers apart."""
    together: dict[Hashable, list[dict[str, Any]]] = {}
    for number, row in enumerate(rows):
        pattern = {**row, "name": POSITION.sub("[*]", row["name"]), "held by": POSITION.sub("[*]", row["held by"])}
        alike = pattern != row and row["kind"] in ("other", "saved", "input")
        together.setdefault(tuple(pattern.values()) if alike else number, []).append(row)
    shown = []
    for same in together.values():
        shown += same if len(same) < _MANY_ENTRIES else [_whole(same)]
    return sorted(shown, key=lambda row: -row["bytes"])


def _whole(same: Sequence[dict[str, Any]]) -> dict[str, Any]:
    name, held = (POSITION.sub("[*]", same[0][column]) for column in ("name", "held by"))
    summed = {column: sum(row[column] for row in same) for column in ("bytes", "used")}
    return {**same[0], "name": f"{name} ({len(same)} alike)", "held by": held, **summed}


POSITION = re.compile(r"\[\d+\]")
_MANY_ENTRIES = 4


@dynamo_skip
def census(*, collect: bool = False, names: bool = True) -> Census:
    """Return every storage with live tensors in this process, with its size, kind, name and holders.

    Nothing has to be prepared. The census finds tensors on Python's heap, and from there those that only PyTorch's C++
    holds: gradients, bases of views, parts of sparse tensors, tensors saved by the nodes of autograd's graphs. It runs
    none of the program's code, and the result keeps nothing alive. Under `track` the rows also have the line that made
    them.

    Args:
        collect: whether to collect garbage first. Otherwise tensors in reference cycles are listed, and marked so.
        names: whether to find names, kinds and holders too; without them the census is several times as fast.

    Returns:
        `Census`, a sequence of `StorageRow`; ``.bytes`` is the sum, ``.by("kind")`` has totals.

    Raises:
        BadArgumentError: an argument is neither True nor False.

    >>> import byname, torch
    >>> def train():
    ...     model = torch.nn.Linear(4, 2)
    ...     return [(row["name"], row["kind"], row["bytes"]) for row in byname.census().rows()]
    >>> [row for row in train() if row[0].startswith("model.")]
    [('model.weight', 'parameter', 32), ('model.bias', 'parameter', 8)]
    """
    for argument, value in (("collect", collect), ("names", names)):
        if type(value) is not bool:
            raise BadArgumentError(f"census({argument}=...) must be True or False, but got {type(value).__name__}")
    if collect:
        gc.collect()
    with heap_at_rest():
        if names:
            snapshot = HeapSnapshot()
            rows: Sequence[StorageRow] = sorted(map(_RowBuilder(snapshot).row_of, snapshot.blocks), key=_place)
            return Census(
                rows, unattributed(snapshot.blocks), (*_omission_notes(snapshot.living), *snapshot.index.bound())
            )
        alive = LiveObjects()
        blocks = blocks_of(alive.tensors, alive.storages)
        # a row must hold neither tensors nor storages
        rows = Lazy(
            [StorageRegion(one.device, one.bytes, one.start, cards=one.cards) for one in blocks], _row_without_names
        )
        return Census(rows, unattributed(blocks), _omission_notes(alive))


def _place(one: StorageRow) -> tuple[Any, ...]:
    """Return the sort key of a row: the largest first, and rows of equal size always in the same order."""
    return -one.bytes, str(one.name), *map(str, (one.holders, one.card, one.kind, one.views, one.used, one.device))


def _row_without_names(block: StorageRegion) -> StorageRow:
    card = block.cards[0] if block.cards else None
    covered = used(block, block.cards)
    return StorageRow(NAMELESS, "other", "", card, block.device, block.bytes, block.views, covered, "", (), None)


class Kinds:
    """Decides the kinds of a snapshot's tensors by the registries of modules and optimizers, also without names."""

    def __init__(self, snapshot: HeapSnapshot) -> None:
        self._snapshot = snapshot

    def of(self, tensors: Sequence[torch.Tensor]) -> str:
        """Return the kind of the memory block in which these tensors lie."""
        if any(id(one) in self._parameters or issubclass(type(one), nn.Parameter) for one in tensors):
            return "parameter"
        if any(id(one) in self._buffers for one in tensors):
            return "buffer"
        if any(self._is_gradient(one) for one in tensors):
            return "gradient"
        if any(
            id(one) in self._state or any(name.how == "optimizer" for name in self._snapshot.names(one))
            for one in tensors
        ):
            return "optimizer"
        if not any(is_node(link.owner) for one in tensors for link in self._snapshot.links(one)):
            return "other"
        if not any(self._snapshot.names(one) for one in tensors):
            return "saved"
        return "other" if any(fact(one, "grad_fn") is not None for one in tensors) else "input"

    def owned(self, tensors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, nn.Module]]:
        """Return the parameters and buffers among these tensors, or whose gradients are, each with its module."""
        graded = [link.owner for one in tensors for link in self._snapshot.links(one) if link.role == "grad"]
        known = [*tensors, *graded]
        pairs = [(one, self._parameters.get(id(one)) or self._buffers.get(id(one))) for one in known]
        return [(one, module) for one, module in pairs if module is not None]

    def _is_gradient(self, tensor: torch.Tensor) -> bool:
        links = self._snapshot.links(tensor)
        wholes = [link.owner for link in links if is_tensor(link.owner) and link.role not in ("grad", "base")]
        return any(link.role == "grad" for one in [tensor, *wholes] for link in self._snapshot.links(one))

    @cached_property
    def _parameters(self) -> dict[int, nn.Module]:
        return self._registered("_parameters")

    @cached_property
    def _buffers(self) -> dict[int, nn.Module]:
        return self._registered("_buffers")

    def _registered(self, registry: str) -> dict[int, nn.Module]:
        modules = self._snapshot.living.modules
        pairs = ((id(one), module) for module in modules for one in registered(module, registry) if is_tensor(one))
        return ScratchDict(pairs)

    @cached_property
    def _state(self) -> frozenset[int]:
        return frozenset(id(value) for _, value in optimizer_state(self._snapshot.living))


class _RowBuilder:
    def __init__(self, snapshot: HeapSnapshot) -> None:
        self._snapshot = snapshot
        self._kinds = Kinds(snapshot)

    def row_of(self, block: StorageRegion) -> StorageRow:
        """Return the row of a block, described by its largest named tensor."""
        snapshot = self._snapshot
        named = [at for at, one in enumerate(block.tensors) if snapshot.names(one)]
        at = min(named or range(len(block.tensors)), key=lambda at: self._order(block, at), default=None)
        tensor = None if at is None else block.tensors[at]
        name = self._name(block, tensor)
        site = name.site or self._site(block, tensor)
        cards = [block.cards[one] for one in named] or block.cards
        return StorageRow(
            unnamed(site) if name.how == "unnamed" else name,
            self._kinds.of(block.tensors),
            self._module(block),
            None if at is None else block.cards[at],
            block.device,
            block.bytes,
            block.views,
            used(block, cards),
            _memory(block),
            self._holders(block, name, named),
            site,
        )

    def _module(self, block: StorageRegion) -> str:
        """Return the path, or else the class, of the module that owns a parameter, a buffer or a gradient."""
        index, owners = self._snapshot.index, self._kinds.owned(block.tensors)
        paths = [index.owner_of(tensor) or index.path_of(owner) for tensor, owner in owners]
        return min(filter(None, paths), key=len, default="") or next((type(owner).__name__ for _, owner in owners), "")

    def _order(self, block: StorageRegion, at: int) -> tuple[int, int, int, str, str]:
        """Return the sort key of a block's tensors: the largest, then a model's own, then the shortest name."""
        name, card = next(iter(self._snapshot.names(block.tensors[at])), NAMELESS), block.cards[at]
        owned = name.how in ("parameter", "buffer", "optimizer")
        return -(card.bytes or 0), not owned, len(name.path), name.path, str(card.shape)

    def _site(self, block: StorageRegion, tensor: torch.Tensor | None) -> Site | None:
        site = None if tensor is None else site_of_tensor(tensor, self._snapshot.lookup)
        seen = (self._snapshot.living.allocations.get(storage._cdata) for storage in block.storages)
        return site or next((one.line.site for one in seen if one is not None), None)

    def _name(self, block: StorageRegion, tensor: torch.Tensor | None) -> Name:
        """Return a tensor's own name, or else one made from its owner's or its call's, or a former or empty name."""
        snapshot = self._snapshot
        if tensor is None:
            path = snapshot.index.path_of(block.storages[0])
            return Name(path, "attribute") if path else NAMELESS
        own = snapshot.names(tensor)
        if own:
            return own[0]
        links = [link for one in block.tensors for link in snapshot.links(one)]
        for link in links:
            if is_tensor(link.owner) and snapshot.names(link.owner):
                return _name_from_owner(link, snapshot.names(link.owner)[0])
        for link in links:
            call = snapshot.lookup.call(link.owner) if snapshot.lookup and is_node(link.owner) else None
            if call is not None and link.role == "result":
                name = name_of_output(call, link.owner._sequence_nr(), 0)
                if name is not None:
                    return name
        return snapshot.index.names(tensor, snapshot.lookup)[0]

    def _holders(self, block: StorageRegion, name: Name, named: Sequence[int]) -> tuple[str, ...]:
        """Return the other holders of a block: names, nodes of graphs, and unexplained references."""
        snapshot = self._snapshot
        names = [one.name for at in named for one in snapshot.paths(block.tensors[at])]
        others = dict.fromkeys(
            quote(one) for one in names if ".param_groups[" not in one.path and str(one) != str(name)
        )
        links = [link for one in block.tensors for link in snapshot.links(one)]
        owners = snapshot.slots([link for link in links if not named or link.role != "variable"])
        unexplained = snapshot.unexplained(block.tensors)
        found = [*_few(sorted(others)), *_few(sorted(owners))]
        if unexplained:
            found.append(counted(unexplained, "unexplained C++ reference"))
        if not found and not named and not links and block.tensors:
            found.append(snapshot.describe_holder(block.tensors))
        return tuple(found)


def _name_from_owner(link: Link, owner: Name) -> Name:
    if link.role in ("base", "value", "tangent"):
        return with_relation(owner, f"{link.role} of")
    call = "" if link.role == "grad" else "()"
    return replace(owner, path=f"{owner.path}.{link.role}{call}", text="", exact=False)


def _few(words: Sequence[str]) -> list[str]:
    return [*words[:2], *([f"{len(words) - 2} more"] if len(words) > 2 else [])]


def _memory(block: StorageRegion) -> str:
    if not block.storages or not block.bytes or block.device.type != "cpu":
        return ""
    if cuda_is_in_use() and block.storages[0].is_pinned():
        return "pinned"
    return "shared" if block.storages[0].is_shared() else ""


def _omission_notes(alive: LiveObjects) -> tuple[str, ...]:
    notes = []
    if alive.hidden:
        notes.append(
            f"gc.freeze() hides {counted(alive.hidden, 'object')} from the garbage collector's list: byname searched "
            "from the variables only, and tensors that only C code leads to are missing; gc.unfreeze() shows them"
        )
    if alive.unread:
        notes.append(not_ended("tensors that only graphs hold are missing"))
    return tuple(notes)
