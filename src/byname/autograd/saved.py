"""Saved tensors: the tensors that autograd keeps for backward, with their names and their memory."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeAlias

from byname.autograd.describe import Describer
from byname.autograd.leaves import opaque_notes
from byname.autograd.pause import backward_elsewhere, backward_paused, not_ended
from byname.autograd.slots import Slot, slots_of
from byname.autograd.walk import Walk
from byname.naming.name import NAMELESS, Name
from byname.naming.names import NameIndex, Searches
from byname.naming.reference_path import Names
from byname.naming.search import Targets
from byname.reading.quiet import DisableTorchFunction, collection_paused
from byname.reading.tensor import Card, Carded, read_card
from byname.source.location import Located, Site
from byname.table import Alias, Column, Lazy, Tabled, Totals, bytes_text, counted


@dataclass(frozen=True, slots=True)
class SavedTensor(Carded, Located, Tabled):
    """One tensor that a node saved for backward. Each column of the table is an attribute.

    Attributes:
        node: the name of the node, such as ``AddmmBackward0``.
        slot: the node's own name for it (``self``, ``mat2``, ``result``); for a custom function, its position in
            ``saved_tensors`` or the attribute of ``ctx``.
        state: ``live``; ``freed`` by a backward; ``modified`` in place since it was saved, so that backward will fail;
            ``packed`` by a hook (a checkpoint, ``save_on_cpu``); byname never unpacks it.
        card: its shape, dtype, device and storage; None when it is freed, or packed into something that is no tensor.
            For an operation's own result, PyTorch makes a new tensor object on each read.
        name: its name in the program.
        site: the location of the operation that saved it; None when unknown.
        module: the path of the module that ran, or that owns the tensor; empty when neither is known.
        number: the number of its node, in the order of distance from the root.
        position: the index of the row in its result.
        storage_rows: the indices of all rows that share its storage.
    """

    node: str
    slot: str
    state: str
    card: Card | None
    name: Name
    site: Site | None
    module: str
    number: int
    position: int
    storage_rows: Sequence[int] = field(hash=False)

    @property
    def shares_with(self) -> tuple[int, ...]:
        """The positions, in the same result, of the other rows that lie in the same storage."""
        return tuple([row for row in self.storage_rows if row != self.position])

    saved_at = Alias["Site | None"]("site")

    columns = (
        Column("name"),
        Column("node"),
        Column("slot", drop_order=6),
        Column("state", drop_order=7),
        Column("shape", drop_order=8),
        Column("dtype", drop_order=1),
        Column("bytes"),
        Column("shares_with", 2, read=lambda one: _first(one.storage_rows, one.position)),
        Column("module", drop_order=5),
        Column("saved_at", drop_order=4),
        Column("caller", drop_order=3),
    )


class Saved(Totals[SavedTensor]):
    """The saved tensors of a graph. Prints as a table; ``rows()`` has the values, ``by`` the totals.

    A graph can have millions of slots, so a row object is created on access.
    """

    _row = SavedTensor
    _by = ("node", "module", "site", "name", "state", "dtype", "device")

    def __init__(self, fields: list[_Fields], cards: list[Card | None], opaque: tuple[str, ...]) -> None:
        self._fields = fields
        self._cards = cards
        self.opaque = opaque

    @property
    def items(self) -> Sequence[SavedTensor]:  # type: ignore[override]
        """The saved tensors."""
        return Lazy(range(len(self._fields)), self._at)

    def _at(self, position: int) -> SavedTensor:
        fields, card = self._fields[position], self._cards[position]
        rows = () if card is None else self._rows_by_storage.get(card.storage, ())
        node, slot, state, name, site, module, number = fields
        if isinstance(name, Names):
            module, name = module or name.owner(), name.best
        return SavedTensor(node, slot, state, card, name, site, module, number, position, rows)

    @cached_property
    def _rows_by_storage(self) -> dict[Hashable, list[int]]:
        found: dict[Hashable, list[int]] = {}
        for position, card in enumerate(self._cards):
            if card is not None and card.storage is not None:
                found.setdefault(card.storage, []).append(position)
        return found

    @property
    def bytes(self) -> int:
        """The memory that the saved tensors keep alive, in bytes: whole storages, each counted once."""
        storages: dict[Hashable, int] = {}
        for position, card in enumerate(self._cards):
            if card is not None:
                storages[position if card.storage is None else (card.storage,)] = card.storage_bytes
        return sum(storages.values())

    def _title(self) -> str:
        return f"{counted(len(self), 'saved tensor')}, {bytes_text(self.bytes)}"

    def _notes(self) -> Sequence[str]:
        return self.opaque


_Fields: TypeAlias = tuple[str, str, str, Name | Names, Site | None, str, int]
"""A row without its card: node, slot, state, name, site, module, number. `Names` know the module that owns a tensor."""


def saved(root: Any) -> Saved:
    """Return the tensors that autograd saved for the backward of a loss, with node, name, size and state.

    It works before and after backward, on checkpointed, hooked and modified graphs. It calls no hook, and unpacks,
    copies and recomputes nothing.

    Args:
        root: a tensor, a ``grad_fn``, or a sequence of these.

    Returns:
        `Saved`, a sequence of `SavedTensor`; ``.bytes`` counts each storage once.

    Raises:
        NotATensorError: `root` is neither tensor nor node.
        NoGraphError: `root` belongs to no graph; the message gives the likely reason.

    >>> import byname, torch
    >>> x = torch.ones(3, requires_grad=True)
    >>> y = x.exp()
    >>> loss = (y * x).sum()
    >>> [(row.node, row.slot, row.state, row.bytes) for row in byname.saved(loss)]  # doctest: +NORMALIZE_WHITESPACE
    [('MulBackward0', 'other', 'live', 12), ('MulBackward0', 'self', 'live', 12),
     ('ExpBackward0', 'result', 'live', 12)]
    >>> byname.saved(loss).bytes
    24
    """
    with collection_paused():  # until all that the search held is freed, so that the collector has none of it to visit
        return _saved_of(Walk(root))


def _saved_of(walk: Walk) -> Saved:
    with backward_paused(), DisableTorchFunction():
        slots = slots_now(walk)
        return rows_among(walk, slots, find_saved(slots or (), Searches()))


def slots_now(walk: Walk) -> list[Slot] | None:
    """Return the saved tensors of a walk; None while a backward of another thread may free them."""
    return None if backward_elsewhere() else slots_of(walk)


def find_saved(slots: Sequence[Slot], searches: Searches) -> NameIndex:
    return searches.find(Targets(slot.tensor for slot in slots if slot.tensor is not None), deep=False)


def rows_among(walk: Walk, slots: Sequence[Slot] | None, index: NameIndex) -> Saved:
    """Return the rows of some slots, with the names that a search found. Callers hold `DisableTorchFunction`.

    A graph can have a million slots, so one loop does it all.
    """
    lookup = walk.lookup
    describer = Describer(walk, index)
    sites = walk.site if lookup else None
    storages, met = index.by_storage, index.contains
    fields: list[_Fields] = []
    cards: list[Card | None] = []
    add_fields, add_card = fields.append, cards.append
    seen: dict[int, Card] = {}
    last, name, site = 0, "", None
    called: Name | Names
    for slot in slots or ():
        number, shown, state, tensor = slot
        if number != last:
            last, name, site = number, walk.name(number), None if sites is None else sites(number)
        card, called = None, NAMELESS
        if tensor is not None:
            card = seen.get(id(tensor))
            if card is None:
                card = seen[id(tensor)] = read_card(tensor)
            if sites is not None or card.storage in storages or met(tensor):
                called = describer.saved(number, shown, tensor, card)
        add_card(card)
        add_fields(
            (name, shown, state, called, site, "" if sites is None else describer.module(number, tensor), number)
        )
    unread = [not_ended("saved tensors are missing")] if slots is None else []
    return Saved(fields, cards, (*unread, *opaque_notes(walk), *index.bound()))


def _first(rows: Sequence[int], without: int) -> str | None:
    """Return the first of some rows as text, because thousands of rows can share a storage."""
    words = ", ".join([str(row) for row in rows[: _SHOWN + 1] if row != without][:_SHOWN])
    more = len(rows) - 1 - _SHOWN
    return (words if more <= 0 else f"{words} and {more} more") or None


_SHOWN = 6
