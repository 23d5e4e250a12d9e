"""Kinds: the role of a memory block in the program, such as parameter, buffer, gradient or saved tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property

import torch
from torch import nn

from byname.autograd.walk import is_node
from byname.memory.living import LiveObjects
from byname.memory.snapshot import HeapSnapshot
from byname.naming.search import OursById
from byname.reading.modules import registered, state_of
from byname.reading.objects import attributes_of, snapshot
from byname.reading.tensor import fact, facts_of, is_tensor


class Kinds:
    """The kinds of a snapshot's tensors. Registries of modules and optimizers decide, even without names."""

    def __init__(self, look: HeapSnapshot) -> None:
        self._look = look

    def of(self, tensors: Sequence[torch.Tensor]) -> str:
        """Return the kind of the memory block in which these tensors lie."""
        if any(id(one) in self._parameters or issubclass(type(one), nn.Parameter) for one in tensors):
            return "parameter"
        if any(id(one) in self._buffers for one in tensors):
            return "buffer"
        if any(self._is_gradient(one) for one in tensors):
            return "gradient"
        if any(id(one) in self._state or self._is_in_a_state(one) for one in tensors):
            return "optimizer"
        if not any(is_node(link.owner) for one in tensors for link in self._look.links(one)):
            return "other"
        if not any(self._look.names(one) for one in tensors):
            return "saved"
        return "other" if any(fact(one, "grad_fn") is not None for one in tensors) else "input"

    def owned(self, tensors: Sequence[torch.Tensor]) -> list[tuple[torch.Tensor, nn.Module]]:
        """Return the parameters and buffers among these tensors, or whose gradients are, each with its module."""
        graded = [link.owner for one in tensors for link in self._look.links(one) if link.role == "grad"]
        known = [*tensors, *graded]
        pairs = [(one, self._parameters.get(id(one)) or self._buffers.get(id(one))) for one in known]
        return [(one, module) for one, module in pairs if module is not None]

    def _is_in_a_state(self, tensor: torch.Tensor) -> bool:
        """Return whether an optimizer's state leads to the tensor, at any depth."""
        return any(name.how == "optimizer" for name in self._look.names(tensor))

    def _is_gradient(self, tensor: torch.Tensor) -> bool:
        """Return whether the tensor is a gradient, or a part of a sparse one."""
        links = self._look.links(tensor)
        wholes = [link.owner for link in links if is_tensor(link.owner) and link.role not in ("grad", "base")]
        return any(link.role == "grad" for one in [tensor, *wholes] for link in self._look.links(one))

    @cached_property
    def _parameters(self) -> dict[int, nn.Module]:
        return self._registered("_parameters")

    @cached_property
    def _buffers(self) -> dict[int, nn.Module]:
        return self._registered("_buffers")

    def _registered(self, registry: str) -> dict[int, nn.Module]:
        modules = self._look.living.modules
        pairs = ((id(one), module) for module in modules for one in registered(module, registry) if is_tensor(one))
        return OursById(pairs)

    @cached_property
    def _state(self) -> frozenset[int]:
        return frozenset(id(value) for _, value in _optimizer_state(self._look.living))


def _optimizer_state(alive: LiveObjects) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors in the state of live optimizers, with their keys."""
    for optimizer in alive.optimizers:
        state = attributes_of(optimizer).get("state")
        for _, entry in snapshot(state) if issubclass(type(state), dict) else ():
            if issubclass(type(entry), dict):
                yield from ((key, value) for key, value in snapshot(entry) if type(key) is str and is_tensor(value))


def originals(alive: LiveObjects) -> frozenset[tuple[str, tuple[int, ...]]]:
    """Return the ``state_dict()`` keys of the tensors of live models and optimizers, with their shapes."""
    pairs = [*_optimizer_state(alive), *(pair for module in alive.modules for pair in state_of(module))]
    shapes = ((key, facts_of(value)[0]) for key, value in pairs)
    return frozenset((key, tuple(shape)) for key, shape in shapes if shape is not None)  # lazy and nested have none
