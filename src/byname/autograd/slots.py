"""Slots: the tensors that the nodes of a graph saved, each live, freed, modified or packed.

This module reads slots through ``_raw_saved_*``, which neither unpack, nor copy, nor recompute, nor fail on a freed
graph; the ordinary ``_saved_*`` do all four (PyTorch 2.13).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Any, NamedTuple

import torch

from byname.autograd.walk import ACCUMULATE, Node, Walk, by_kind
from byname.naming.children.reference import literal
from byname.reading.tensor import PLAIN, fact, is_tensor


class Slot(NamedTuple):
    """One saved tensor: the number of its node, the name and the state of the slot, and the tensor itself."""

    number: int
    name: str
    state: str
    tensor: torch.Tensor | None


def slots_of(walk: Walk) -> list[Slot]:
    """Return every saved tensor of every node. Callers hold `DisableTorchFunction`.

    A graph can have a million slots, so one loop handles plain live tensors, and `slots_of_node` the others.
    """
    known: dict[type, Sequence[tuple[str, str]]] = {}
    found: list[Slot] = []
    add, make = found.append, tuple.__new__
    for number, node in enumerate(islice(walk.nodes, 1, None), 1):
        kind = type(node)
        fields = known.get(kind)
        if fields is None:
            fields = known[kind] = _saved_fields(kind)
        for field in fields:
            name, attribute = field
            try:
                raw = getattr(node, attribute)
                data = raw.data
                plain = type(data) in PLAIN and raw.unpack_hook is None
                if plain and (not data._version or versions_in_error(node, name) is None):
                    add(make(Slot, (number, name, "live", data)))
                    continue
            except (RuntimeError, AttributeError):  # freed; or several tensors, none, or an inference tensor
                pass
            found += slots_of_node(number, node, (field,))
    return found


def held_by_nodes(nodes: Iterable[Node]) -> Iterator[tuple[Node, str, torch.Tensor]]:
    """Yield each tensor that these nodes hold, with its node and slot name. Callers hold `DisableTorchFunction`.

    The tensors are saved tensors in any state, and the leaves into which the nodes accumulate.
    """
    for kind, same in by_kind(nodes).items():
        if kind is ACCUMULATE:
            yield from ((node, "variable", node.variable) for node in same if node.variable is not None)
            continue
        for name, attribute in _saved_fields(kind):
            name = f"saved_{name}" if attribute == _CUSTOM else name
            for node in same:
                for shown, raw in _raw_slots(node, name, attribute) or ():
                    tensor = None if raw is None else _tensor_in(raw.data)
                    if tensor is not None:
                        yield node, shown, tensor


def _raw_slots(node: Node, name: str, attribute: str) -> list[tuple[str, Any]] | None:
    """Return the raw slots behind an attribute of a node with their names; None for a list that backward has freed."""
    try:
        found = getattr(node, attribute)
    except RuntimeError:  # of a freed node, PyTorch refuses a list of tensors as a whole
        return None
    if type(found) is not tuple:
        return [(name, found)]
    return [(f"{name}[{position}]", raw) for position, raw in enumerate(found)]


def suspect_nodes(kinds: Mapping[type, Sequence[Node]]) -> list[Node]:
    """Return the nodes, given by their classes, in which a saved tensor may be freed or modified.

    This takes a fraction of the time of `slots_of`, and few nodes remain. Callers hold `DisableTorchFunction`.
    """
    fields = ((same, field) for kind, same in kinds.items() for field in _saved_fields(kind))
    return list(dict.fromkeys(node for same, field in fields for node in _suspect_nodes(same, *field)))


def _suspect_nodes(nodes: Sequence[Node], name: str, attribute: str) -> Iterator[Node]:
    """Yield the nodes whose slot may hold something other than an unchanged plain tensor."""
    getter = f"_saved_{name}"
    for node in nodes:
        try:
            raw = getattr(node, attribute)
            data = raw.data
            if type(data) in PLAIN:
                if data._version and raw.unpack_hook is None:
                    getattr(node, getter)  # raises if it was modified
            elif data is not None or raw.unpack_hook is not None or _was_freed(raw, node, name):
                yield node
        except (RuntimeError, AttributeError):  # modified; or several tensors, freed or not; or an inference tensor
            yield node


def slots_of_node(number: int, node: Node, fields: Sequence[tuple[str, str]]) -> Iterator[Slot]:
    for name, attribute in fields:
        if attribute == _CUSTOM:
            yield from _custom_slots(number, node)
            continue
        raws = _raw_slots(node, name, attribute)
        if raws is None:
            yield Slot(number, name, "freed", None)
        for shown, raw in raws or ():
            state, tensor = _state(node, raw, name)
            if state is not None:
                yield Slot(number, shown, state, tensor)


_CUSTOM = "_raw_saved_tensors"
_CUSTOM_FIELDS = [("tensors", _CUSTOM)]
_RAW = "_raw_saved_"


def _saved_fields(kind: type) -> Sequence[tuple[str, str]]:
    """Return the names of a node class's slots, with the attributes that read them raw."""
    is_custom = issubclass(kind, torch.autograd.function.BackwardCFunction)
    return _CUSTOM_FIELDS if is_custom else _builtin_fields(kind)


@cache  # only for PyTorch's own classes, whose number is fixed
def _builtin_fields(kind: type) -> Sequence[tuple[str, str]]:
    names = dict.fromkeys(name for parent in kind.__mro__ for name in vars(parent) if name.startswith(_RAW))
    return [(name.removeprefix(_RAW), name) for name in sorted(names)]


def _state(node: Node, raw: Any, field: str) -> tuple[str | None, torch.Tensor | None]:
    """Return the state of one slot and the tensor in it; the state is None for a slot that was never filled."""
    if raw is None:
        return None, None
    data = raw.data
    if raw.unpack_hook is not None:
        return "packed", _tensor_in(data)
    if data is None:
        return ("freed" if _was_freed(raw, node, field) else None), None
    if _changed_since_birth(data) and versions_in_error(node, field) is not None:
        return "modified", data
    return "live", data


def _was_freed(raw: Any, node: Node, field: str) -> bool:
    """Return whether backward has freed an empty slot, and forward had filled it; this calls no hook."""
    try:
        raw.unpack() if hasattr(raw, "unpack") else getattr(node, f"_saved_{field}")  # PyTorch 2.10 and 2.11 have none
    except RuntimeError:
        return True
    return False


def _custom_slots(number: int, node: Node) -> Iterator[Slot]:
    raws = _raw_slots(node, "saved_tensors", _CUSTOM)
    if raws is None:
        yield Slot(number, "saved_tensors", "freed", None)
    modified = _custom_modified(node, [raw for _, raw in raws or ()])
    for position, (shown, raw) in enumerate(raws or ()):
        if raw is not None and raw.unpack_hook is not None:
            yield Slot(number, shown, "packed", _tensor_in(raw.data))
        elif raw is not None and raw.data is not None:
            yield Slot(number, shown, "modified" if position in modified else "live", raw.data)
    for name, value in list(vars(node).items()):
        for shown, tensor in _tensors_on(name, value):
            yield Slot(number, f"ctx.{shown}", "live", tensor)


def _custom_modified(node: Node, raws: Sequence[Any]) -> Sequence[int]:
    """Return the position of the tensor of a custom function that was changed since, unless a hook would run.

    PyTorch's error has the present version of the first one that changed; if several tensors fit it, none is returned.
    """
    if any(raw is not None and raw.unpack_hook is not None for raw in raws):
        return ()
    filled = [(at, raw.data) for at, raw in enumerate(raws) if raw is not None and raw.data is not None]
    changed = [(at, data) for at, data in filled if _changed_since_birth(data)]
    versions = versions_in_error(node, "saved_tensors") if changed else None
    fitting = [at for at, data in changed if versions is not None and fact(data, "_version") == versions[0]]
    return fitting if len(fitting) == 1 else ()


def _changed_since_birth(tensor: torch.Tensor) -> bool:
    if type(tensor) is torch.Tensor:
        return not tensor.is_inference() and tensor._version > 0
    return not torch._C.TensorBase.is_inference(tensor) and fact(tensor, "_version") > 0


def _tensors_on(name: str, value: Any) -> list[tuple[str, torch.Tensor]]:
    """Return the tensors in an attribute of ``ctx``: the value itself, or the entries of a list, tuple or dict."""
    parts = [(name, value)]
    if type(value) in (list, tuple):
        parts = [(f"{name}[{at}]", one) for at, one in enumerate(value)]
    elif type(value) is dict:
        parts = [(f"{name}[{key if literal(key) else '…'!r}]", one) for key, one in list(value.items())]
    return [(shown, one) for shown, one in parts if is_tensor(one)]


def _tensor_in(packed: Any) -> torch.Tensor | None:
    """Return the tensor in a hook's packed value, if that is a tensor, or a tuple or list with exactly one."""
    parts = packed if type(packed) in (tuple, list) else (packed,)
    inside = [one for one in parts if is_tensor(one)]
    return inside[0] if len(inside) == 1 else None


def slots_in(node: Node) -> list[Slot]:
    """Return the saved tensors of one node. Callers hold `DisableTorchFunction`."""
    return list(slots_of_node(0, node, _saved_fields(type(node))))


def has_freed_slot(node: Node) -> bool:
    """Return whether any saved tensor of a node has been freed. Callers hold `DisableTorchFunction`."""
    return any(slot.state == "freed" for slot in slots_in(node))


def versions_in_error(node: Node, field: str) -> tuple[int, int] | None:
    """Return the present and the saved version of a modified slot's tensor, read from PyTorch's error.

    Only the error of the ordinary getter has the saved version. The getter is safe where the slot is neither freed nor
    hooked.
    """
    getter = "saved_tensors" if field.startswith("saved_tensors") else f"_saved_{field.partition('[')[0]}"
    try:
        getattr(node, getter)
    except RuntimeError as error:
        return parse_versions(str(error))
    return None


def parse_versions(message: str) -> tuple[int, int] | None:
    """Return the present and the expected version in PyTorch's message about a modified tensor."""
    match = re.search(r"is at version (\d+); expected version (\d+)", message)
    return None if match is None else (int(match[1]), int(match[2]))


def packed_in(nodes: Iterable[Node]) -> Iterator[tuple[Node, str, Any]]:
    """Yield the slots that a hook, such as a checkpoint's, filled: the node, the name, and the raw slot."""
    for node in nodes:
        for name, attribute in _saved_fields(type(node)):
            for _, raw in _raw_slots(node, name, attribute) or ():
                if raw is not None and raw.unpack_hook is not None:
                    yield node, name, raw
