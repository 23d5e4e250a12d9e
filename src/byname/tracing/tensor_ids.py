"""Tensor ids: a number for each tensor of a run, and a new number whenever the tensor is changed in place."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact, is_tensor, storage_key


@dataclass(slots=True)
class _Known:
    """A known tensor: its tensor id, its memory, and how many in-place changes of that memory the id accounts for."""

    reference: weakref.ref[torch.Tensor]
    number: int
    memory: int
    changes: int


class TensorIds:
    """The tensor ids of one run. Holds tensors weakly, except those that have a name.

    Attributes:
        sources: the names of tensors that no call made.
        unseen: for a tensor made where no function mode sees it, the ids of the tensors that it was made from.
        shapes: the shape of each.
        state: the ids of parameters and buffers, before and after each change.
        late: ``(maker, before, after)``: a call that changed a tensor through a view, found at the tensor's next use.
    """

    def __init__(self, named: Iterable[tuple[str, torch.Tensor]], state: Iterable[torch.Tensor]) -> None:
        self.sources: dict[int, str] = {}
        self.unseen: dict[int, tuple[int, ...]] = {}
        self.shapes: dict[int, tuple[int, ...]] = {}
        self.state: set[int] = set()
        self.late: list[tuple[Any, int, int]] = []
        self._names: dict[int, tuple[torch.Tensor, str]] = {}
        for name, tensor in named:
            self._names.setdefault(id(tensor), (tensor, name))
        self._state = {id(tensor) for tensor in state}
        self._known: dict[int, _Known] = {}
        self._changes: dict[int, list[Any]] = {}
        self._nodes: dict[Any, int] = {}

    def of(self, tensor: torch.Tensor, made_from: Iterable[int] = ()) -> int:
        """Return the tensor id of a tensor as it is now.

        A new one whose autograd graph leads to no known tensor is taken for made from tensors with the other ids.
        """
        known = self._known.get(id(tensor))
        if known is None or known.reference() is not tensor:
            return self._register_unseen(tensor, tuple(made_from))
        changes = self._changes.get(known.memory, [])
        for maker in changes[known.changes :]:
            before, known.number = known.number, self._next(tensor)
            self.late.append((maker, before, known.number))
        known.changes = len(changes)
        return known.number

    def made(self, tensor: torch.Tensor) -> int:
        """Return a new tensor id for the result of a call."""
        number = self._next(tensor)
        self._know(tensor, number)
        node = fact(tensor, "grad_fn")
        if node is not None:
            self._nodes[node] = number
        return number

    def changed(self, tensors: list[torch.Tensor], maker: Any) -> list[int]:
        """Return new tensor ids for tensors changed in place; views of the same memory get theirs at their next use."""
        for memory in {storage_key(tensor) for tensor in tensors}:
            self._changes.setdefault(memory, []).append(maker)
        return [self.made(tensor) for tensor in tensors]

    def same(self, tensor: torch.Tensor, other: torch.Tensor) -> None:
        """Give a tensor the id of another after ``tensor.data = other``."""
        self._know(tensor, self.of(other))

    def _know(self, tensor: torch.Tensor, number: int) -> None:
        memory = storage_key(tensor)
        self._known[id(tensor)] = _Known(weakref.ref(tensor), number, memory, len(self._changes.get(memory, ())))

    def is_named(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor is an input, a parameter, a buffer or an attribute."""
        return id(tensor) in self._names

    def _next(self, tensor: torch.Tensor) -> int:
        number = len(self.shapes)
        self.shapes[number] = shape_of(tensor) or ()
        if id(tensor) in self._state:
            self.state.add(number)
        return number

    def _register_unseen(self, tensor: torch.Tensor, made_from: tuple[int, ...]) -> int:
        """Return a tensor id for a tensor that no observed call made."""
        named = self._names.get(id(tensor))
        origins = () if named else self._origins(tensor) or made_from
        number = self.made(tensor)
        if origins:
            self.unseen[number] = origins
        else:
            self.sources[number] = named[1] if named else "constant"
        return number

    def _origins(self, tensor: torch.Tensor) -> tuple[int, ...]:
        """Return the ids of the nearest known tensors in the autograd graph behind a tensor."""
        found: dict[int, None] = {}
        waiting = [fact(tensor, "grad_fn")]
        seen: set[Any] = set()
        while waiting and len(seen) < _FAR:
            node = waiting.pop()
            if node is None or node in seen:
                continue
            seen.add(node)
            leaf = getattr(node, "variable", None)
            if node in self._nodes:
                found[self._nodes[node]] = None
            elif leaf is not None:
                found[self.of(leaf)] = None
            else:
                waiting += [before for before, _ in node.next_functions]
        return tuple(found)


_FAR = 1000
"""The number of graph nodes searched for the origin of a tensor."""


def shape_of(value: object) -> tuple[int, ...] | None:
    """Return the shape of a tensor; None for another object, a nested tensor, and a parameter without a shape yet."""
    try:
        with DisableTorchFunction():
            return tuple(fact(value, "shape")) if is_tensor(value) else None  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - lazy and nested tensors raise
        return None
