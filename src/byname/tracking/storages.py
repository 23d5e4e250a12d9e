"""Which storages are behind these values? Those of tensors, of their parts, and of what stands in lists."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from byname.tracking.functions import PLAIN_TENSORS

__all__ = ["is_given", "storages_in"]


def is_given(storage: torch.UntypedStorage, values: Iterable[Any]) -> bool:
    """Whether a storage comes in with an operator's arguments."""
    for value in values:
        if type(value) in PLAIN_TENSORS and value.layout is torch.strided:
            if value.untyped_storage() is storage:
                return True
        elif type(value) not in _NUMBERS and any(one is storage for one in storages_in([value])):
            return True
    return False


_NUMBERS = (int, float, bool, type(None))


def storages_in(values: Iterable[Any]) -> Iterator[Any]:
    """The storages among some values, in the tensors among them, and in the lists."""
    for value in values:
        if issubclass(type(value), torch.Tensor):
            yield from _storages_of(value)
        elif type(value) is torch.UntypedStorage:
            yield value
        elif issubclass(type(value), (list, tuple)):
            yield from storages_in(value)


def _storages_of(tensor: torch.Tensor) -> Iterator[Any]:
    """A tensor's storage, or those of the parts that it consists of."""
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse: no storage of its own, as an opaque layout
        watched = torch._C._len_torch_dispatch_stack()  # a mode of the program's would see that we ask for the parts
        for part in () if watched else _PARTS.get(tensor.layout, ()):
            yield getattr(torch.Tensor, part)(tensor).untyped_storage()
        return
    if type(tensor) in PLAIN_TENSORS or (storage.device.type != "meta" and _has_memory(storage)):
        yield storage


def _has_memory(storage: torch.UntypedStorage) -> bool:
    """Whether there is memory behind a storage; that of a wrapper only says how large it would be."""
    try:
        return storage.data_ptr() != 0
    except RuntimeError:  # PyTorch's answer for a wrapper
        return False


_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    torch.sparse_csr: ("crow_indices", "col_indices", "values"),
    torch.sparse_bsr: ("crow_indices", "col_indices", "values"),
    torch.sparse_csc: ("ccol_indices", "row_indices", "values"),
    torch.sparse_bsc: ("ccol_indices", "row_indices", "values"),
}
