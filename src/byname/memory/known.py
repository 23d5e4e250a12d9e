"""Was this memory there before? Weak marks on the storages of one moment, by which they are known again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from byname.memory.blocks import Block
from byname.reading.tensor import STORAGE

__all__ = ["Known"]


class Known:
    """The storages of some blocks. While a mark lives, no other storage gets the address of the one it is on."""

    def __init__(self, blocks: Iterable[Block]) -> None:
        self._marks: dict[int, StorageWeakRef] = {}
        self._bytes: dict[int, int] = {}
        for block in blocks:
            self._bytes |= dict.fromkeys(block.keys, block.bytes)
            for storage in _storages_of(block):
                if storage._cdata not in self._marks:
                    self._marks[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]

    def has(self, block: Block) -> bool:
        """Whether some of this memory was there, and it was as large. To be called inside `looking`."""
        return any(key in self._marks and block.bytes <= self._bytes[key] for key in block.keys)


def _storages_of(block: Block) -> Iterator[torch.UntypedStorage]:
    if block.storage is not None:
        yield block.storage
    for tensor, facts in zip(block.tensors, block.facts, strict=True):
        if facts[STORAGE] is not None:
            yield torch._C.TensorBase.untyped_storage(tensor)
