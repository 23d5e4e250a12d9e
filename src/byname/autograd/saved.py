"""What does autograd keep for backward, whose is it, and how much memory does it take?

Slots are read by ``_raw_saved_*``, which neither unpacks, nor copies, nor recomputes, nor fails on a freed graph; the
ordinary ``_saved_*`` do all four (PyTorch 2.13).
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, overload

import torch

from byname.autograd.leaves import opaque_notes
from byname.autograd.walk import Node, Walk, node_name
from byname.card import Card, Facts, facts_of, is_tensor, untouched
from byname.naming.name import Name, unnamed
from byname.naming.names import Findings, find
from byname.naming.search import Targets
from byname.naming.track import Call, SiteLookup, name_at
from byname.site import Site
from byname.table import Rows, bytes_text, column_of, grouped

__all__ = ["Saved", "SavedTensor", "saved"]


@dataclass(frozen=True, slots=True)
class SavedTensor:
    """One tensor that a node saved for backward.

    Attributes:
        node: the name of the node, such as ``AddmmBackward0``.
        slot: what the node calls it (``self``, ``mat2``, ``result``); of a custom function, its position in
            ``saved_tensors`` or the attribute of ``ctx``.
        state: ``live``; ``freed`` by a backward; ``modified`` in place since it was saved, so that backward will fail;
            ``packed`` by a hook (a checkpoint, ``save_on_cpu``), and not unpacked to look at it.
        card: its plain facts; None when it is freed, or packed into something that is no tensor.
        name: what the program calls it.
        site: where the operation stands that saved it, when that is known.
        module: the path of the module that ran, or that owns the tensor; empty when neither is known.
        shares_with: the positions, in the same result, of the rows that lie in the same storage.
        number: which node of the graph, in the order of distance from the root.
    """

    node: str
    slot: str
    state: str
    card: Card | None
    name: Name
    site: Site | None
    module: str
    shares_with: tuple[int, ...]
    number: int

    @property
    def bytes(self) -> int:
        """What its own elements take; 0 once it is freed."""
        return 0 if self.card is None else self.card.bytes

    @property
    def tensor(self) -> torch.Tensor | None:
        """The saved tensor, or None when it is gone. (Of a result, PyTorch makes a new object whenever it is read.)"""
        return None if self.card is None else self.card.tensor

    def row(self) -> dict[str, Any]:
        """The saved tensor as plain values."""
        return {
            "name": str(self.name),
            "node": self.node,
            "slot": self.slot,
            "state": self.state,
            "shape": None if self.card is None else self.card.shape,
            "dtype": None if self.card is None else str(self.card.dtype).removeprefix("torch."),
            "bytes": self.bytes,
            "shares with": self.shares_with or None,
            "module": self.module,
            "saved at": None if self.site is None else str(self.site),
        }


class _Slot(NamedTuple):
    """One saved tensor as the walk over the nodes finds it, with the tensor itself."""

    number: int
    name: str
    state: str
    tensor: torch.Tensor | None


@dataclass(frozen=True, slots=True, repr=False)
class Saved(Rows[SavedTensor]):
    """What a graph keeps for backward. Prints as a table; ``rows()`` has the values, ``by`` the totals."""

    items: tuple[SavedTensor, ...]
    opaque: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.items)

    @overload
    def __getitem__(self, position: int) -> SavedTensor: ...
    @overload
    def __getitem__(self, position: slice) -> Sequence[SavedTensor]: ...
    def __getitem__(self, position: int | slice) -> SavedTensor | Sequence[SavedTensor]:
        return self.items[position]

    @property
    def bytes(self) -> int:
        """What the saved tensors keep in memory: whole storages, each counted once."""
        return sum(size for _, _, size in self.by("state"))

    def by(self, column: str) -> list[tuple[Any, int, int]]:
        """Totals ``(key, count, bytes)``, most bytes first; a storage counts once, where it was met first.

        Args:
            column: ``node``, ``module``, ``site``, ``name``, ``state``, ``dtype`` or ``device``.

        Raises:
            BadArgumentError: there is no such column.
        """
        read = column_of(column, _COLUMNS)
        return grouped((read(one), *_memory(one.card)) for one in self.items)

    def rows(self) -> list[dict[str, Any]]:
        """One dict a saved tensor."""
        return [one.row() for one in self.items]

    def _title(self) -> str:
        return f"{len(self)} saved tensors, {bytes_text(self.bytes)}"

    def _notes(self) -> Sequence[str]:
        return self.opaque


_COLUMNS = {
    "node": lambda one: one.node,
    "module": lambda one: one.module,
    "site": lambda one: "" if one.site is None else str(one.site),
    "name": lambda one: str(one.name),
    "state": lambda one: one.state,
    "dtype": lambda one: "" if one.card is None else str(one.card.dtype).removeprefix("torch."),
    "device": lambda one: "" if one.card is None else str(one.card.device),
}


def saved(root: Any) -> Saved:
    """The tensors that autograd saved for the backward of a loss: under which node, whose, how large, in what state.

    Works before and after backward, on checkpointed, hooked and modified graphs. No hook is called, nothing is
    unpacked, copied or recomputed.

    Args:
        root: a tensor, a ``grad_fn``, or a sequence of these.

    Returns:
        `Saved`, a sequence of `SavedTensor`; ``.bytes`` counts each storage once.

    Raises:
        NotATensorError: `root` is neither tensor nor node.
        NoGraphError: `root` belongs to no graph; the message says why as far as it can be known.

    >>> import byname, torch
    >>> x = torch.ones(3, requires_grad=True)
    >>> y = x.exp()
    >>> loss = (y * x).sum()
    >>> [(row.node, row.slot, row.state, row.bytes) for row in byname.saved(loss)]
    [('MulBackward0', 'other', 'live', 12), ('MulBackward0', 'self', 'live', 12), ('ExpBackward0', 'result', 'live', 12)]
    >>> byname.saved(loss).bytes
    24
    """
    return saved_of(Walk(root))


def saved_of(walk: Walk) -> Saved:
    """The saved tensors of a walk that was made already."""
    with untouched():
        slots = list(_slots(walk))
    cards = [None if slot.tensor is None else facts_of(slot.tensor) for slot in slots]
    return _named(walk, slots, cards)


def _named(walk: Walk, slots: list[_Slot], facts: list[Facts | None]) -> Saved:
    lookup = walk.lookup()
    calls = {slot.number: None for slot in slots}
    if lookup:
        calls = {number: lookup.call(walk.nodes[number]) for number in calls}
    tensors = Targets(slot.tensor for slot in slots if slot.tensor is not None)
    findings = find(tensors, deep=False)
    naming = _Naming(walk, findings, lookup, calls)
    shared = _sharing(facts)
    items = []
    with untouched():
        for position, (slot, fact) in enumerate(zip(slots, facts, strict=True)):
            card = None if fact is None else Card(*fact)
            spot = call.spot() if (call := calls[slot.number]) is not None else None
            items.append(
                SavedTensor(
                    node=node_name(walk.nodes[slot.number]),
                    slot=slot.name,
                    state=slot.state,
                    card=card,
                    name=naming.of(slot, card),
                    site=None if spot is None else spot.site,
                    module=naming.module(slot),
                    shares_with=shared.get(position, ()),
                    number=slot.number,
                )
            )
    return Saved(tuple(items), opaque_notes(walk))


class _Naming:
    """Names the saved tensors of one walk."""

    def __init__(self, walk: Walk, findings: Findings, lookup: SiteLookup, calls: dict[int, Call | None]) -> None:
        self._walk = walk
        self._findings = findings
        self._lookup = lookup
        self._calls = calls
        self._modules: dict[int, str] = {}

    def of(self, slot: _Slot, card: Card | None) -> Name:
        """The name of what a slot holds. To be called inside `untouched`."""
        if slot.tensor is None or card is None:
            return unnamed()
        named = self._findings.names(slot.tensor, self._lookup)[0]
        if named.how != "unnamed" and not named.relation:
            return named
        return self._result(slot, card) or named

    def _result(self, slot: _Slot, card: Card) -> Name | None:
        """The name of the node's own result, which PyTorch saves as a new object in the same memory."""
        node = self._walk.nodes[slot.number]
        for tensor, other in self._findings.sharing(card.storage):
            if tensor.grad_fn is node and card.same_value(other):
                return self._findings.own_names(tensor)[0]
        call = self._calls[slot.number]
        spot = None if call is None else call.spot()
        if slot.name != "result" or call is None or spot is None or call.inside or call.after != call.before + 1:
            return None
        assert call.code is not None
        return name_at(spot, call.code)

    def module(self, slot: _Slot) -> str:
        """The module that ran when the slot was filled, or that owns the tensor in it."""
        call = self._calls[slot.number]
        running = None if call is None or call.module is None else call.module()
        if running is None:
            return "" if slot.tensor is None else self._findings.owner_of(slot.tensor)
        if id(running) not in self._modules:
            self._modules[id(running)] = self._findings.path_of(running) or type(running).__name__
        return self._modules[id(running)]


def _memory(card: Card | None) -> tuple[Hashable | None, int]:
    return (None, 0) if card is None else (card.storage, card.storage_bytes)


_STORAGE_FIELD = 5


def _sharing(facts: list[Facts | None]) -> dict[int, tuple[int, ...]]:
    """For each row the other rows in the same storage."""
    rows: dict[int, list[int]] = {}
    for position, fact in enumerate(facts):
        if fact is not None and fact[_STORAGE_FIELD] is not None:
            rows.setdefault(fact[_STORAGE_FIELD], []).append(position)
    groups = [group for group in rows.values() if len(group) > 1]
    return {one: tuple(other for other in group if other != one) for group in groups for one in group}


def _slots(walk: Walk) -> Iterator[_Slot]:
    """Every saved tensor of every node. To be called inside `untouched`."""
    known: dict[type, list[tuple[str, str]]] = {}
    for number, node in enumerate(islice(walk.nodes, 1, None), 1):
        kind = type(node)
        fields = known.get(kind)
        if fields is None:
            fields = known[kind] = _saved_fields(kind)
        for name, attribute in fields:
            if attribute == _CUSTOM:
                yield from _custom_slots(number, node)
                continue
            found = getattr(node, attribute)
            if type(found) is tuple:
                for position, one in enumerate(found):
                    yield from _slot(number, node, f"{name}[{position}]", one, f"_saved_{name}")
            else:
                yield from _slot(number, node, name, found, f"_saved_{name}")


_CUSTOM = "_raw_saved_tensors"
_RAW = "_raw_saved_"


def _saved_fields(kind: type) -> list[tuple[str, str]]:
    """The names of a node class's slots, with the attributes that read them raw."""
    names = dict.fromkeys(name for parent in kind.__mro__ for name in vars(parent) if name.startswith(_RAW))
    return [(name.removeprefix(_RAW), name) for name in sorted(names)]


def _slot(number: int, node: Node, shown: str, raw: Any, getter: str) -> Iterator[_Slot]:
    if raw is None:
        return
    data = raw.data
    if raw.unpack_hook is not None:
        yield _Slot(number, shown, "packed", _tensor_in(data))
    elif data is None:
        if _was_freed(raw):
            yield _Slot(number, shown, "freed", None)
    else:
        modified = not data.is_inference() and data._version > 0 and _was_modified(node, getter)
        yield _Slot(number, shown, "modified" if modified else "live", data)


def _was_freed(raw: Any) -> bool:
    """Tells a slot that backward has freed from one that was never filled; without data no hook is called."""
    try:
        raw.unpack()
    except RuntimeError:
        return True
    return False


def _was_modified(node: Node, getter: str) -> bool:
    """Whether a tensor has another version than when it was saved.

    The saved version can be had in no other way than by the error of the ordinary getter, which is safe here: the slot
    is neither freed nor hooked.
    """
    try:
        getattr(node, getter)
    except RuntimeError as error:
        return "modified by an inplace operation" in str(error)
    return False


def _custom_slots(number: int, node: Node) -> Iterator[_Slot]:
    """What a custom function saved: its ``save_for_backward`` and the tensors it put on ``ctx``."""
    try:
        raws = node._raw_saved_tensors
    except RuntimeError:
        yield _Slot(number, "saved_tensors", "freed", None)
        raws = ()
    modified = _custom_modified(node, raws)
    for position, raw in enumerate(raws):
        shown = f"saved_tensors[{position}]"
        if raw is not None and raw.unpack_hook is not None:
            yield _Slot(number, shown, "packed", _tensor_in(raw.data))
        elif raw is not None and raw.data is not None:
            changed = modified and raw.data._version > 0
            yield _Slot(number, shown, "modified" if changed else "live", raw.data)
    for name, value in list(vars(node).items()):
        for shown, tensor in _tensors_on(name, value):
            yield _Slot(number, f"ctx.{shown}", "live", tensor)


def _custom_modified(node: Node, raws: Sequence[Any]) -> bool:
    """Whether some tensor of a custom function was changed since it was saved; asked only where no hook would run."""
    filled = [raw for raw in raws if raw is not None and raw.data is not None]
    if any(raw.unpack_hook is not None for raw in filled):
        return False
    if all(raw.data.is_inference() or raw.data._version == 0 for raw in filled):
        return False
    return _was_modified(node, "saved_tensors")


def _tensors_on(name: str, value: object) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors in an attribute of ``ctx``: itself, or in a list, tuple or dict."""
    if is_tensor(value):
        yield name, value  # type: ignore[misc]
    elif type(value) in (list, tuple):
        yield from ((f"{name}[{at}]", one) for at, one in enumerate(value) if is_tensor(one))  # type: ignore[arg-type]
    elif type(value) is dict:
        yield from ((f"{name}[{key!r}]", one) for key, one in list(value.items()) if is_tensor(one))


def _tensor_in(packed: object) -> torch.Tensor | None:
    """The tensor that a hook packed a saved one into, where it is one or a tuple with just one."""
    if is_tensor(packed):
        return packed  # type: ignore[return-value]
    inside = [one for one in packed if is_tensor(one)] if type(packed) in (tuple, list) else []  # type: ignore[attr-defined]
    return inside[0] if len(inside) == 1 else None
