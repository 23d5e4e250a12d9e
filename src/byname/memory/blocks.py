"""Memory blocks: the storages of live tensors; storages that share memory are one block."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from byname.naming.search import ScratchList
from byname.reading.tensor import Card, read_card, storage_address

core: Any = torch._C


@dataclass(slots=True, eq=False)
class StorageRegion:
    """One block of memory with the tensors in it and their cards, or one tensor without a storage."""

    device: torch.device
    bytes: int  # the size of overlapping storages together
    start: int  # its address; 0 without memory
    storages: list[torch.UntypedStorage] = field(default_factory=ScratchList)
    tensors: list[torch.Tensor] = field(default_factory=ScratchList)
    cards: list[Card] = field(default_factory=ScratchList)

    @property
    def views(self) -> int:
        """The number of distinct shapes, dtypes, offsets and strides among its tensors, less one."""
        if len(self.cards) < 2:
            return 0
        return len({(str(one.shape), str(one.dtype), one.offset, str(one.strides)) for one in self.cards}) - 1


def blocks_of(tensors: Iterable[torch.Tensor], storages: Iterable[torch.UntypedStorage]) -> list[StorageRegion]:
    """Return the blocks of tensors and bare storages, largest first. Callers hold `DisableTorchFunction`."""
    found: dict[int, StorageRegion] = {}
    without: list[StorageRegion] = ScratchList()
    for tensor in tensors:
        card = read_card(tensor)
        key = card.storage
        block = found.get(key) if key is not None else None
        if block is None:
            block = _new_block(tensor, card)
            if key is None:
                without.append(block)
            else:
                found[key] = block
        block.tensors.append(tensor)
        block.cards.append(card)
    for storage in storages:
        if storage._cdata not in found:
            start = storage_address(storage)
            size = storage.nbytes() if start else 0
            found[storage._cdata] = StorageRegion(storage.device, size, start, ScratchList([storage]))
    return sorted([*_merged(found.values()), *without], key=lambda block: (-block.bytes, block.start))


def _new_block(tensor: torch.Tensor, card: Card) -> StorageRegion:
    size = card.storage_bytes
    if card.storage is None:
        own = card.bytes if tensor.layout is torch._mkldnn else 0  # type: ignore[attr-defined]  # sparse ones have parts
        return StorageRegion(card.device, own, 0)
    storage = torch._C.TensorBase.untyped_storage(tensor)
    start = _address(tensor, storage) if size else 0
    return StorageRegion(card.device, size if start else 0, start, ScratchList([storage]))


def _address(tensor: torch.Tensor, storage: torch.UntypedStorage) -> int:
    """Return the address of a tensor's storage. Reading it from a lazily cloned storage would copy the memory."""
    if core._is_cow_tensor(tensor):
        offset = torch._C.TensorBase.storage_offset(tensor) * torch._C.TensorBase.element_size(tensor)
        return int(core._data_address(tensor) - offset)
    return storage_address(storage)


def _merged(blocks: Iterable[StorageRegion]) -> list[StorageRegion]:
    """Merge blocks that overlap: each call of ``torch.from_numpy`` makes a new storage of the same memory."""
    result: list[StorageRegion] = ScratchList()
    last: dict[torch.device, StorageRegion] = {}
    for block in sorted(blocks, key=lambda block: (block.start, -block.bytes)):
        before = last.get(block.device)
        if block.start and before is not None and block.start < before.start + before.bytes:
            before.bytes = max(before.bytes, block.start + block.bytes - before.start)
            before.storages += block.storages
            before.tensors += block.tensors
            before.cards += block.cards
            continue
        result.append(block)
        if block.start and block.bytes:
            last[block.device] = block
    return result


def used(block: StorageRegion, cards: Sequence[Card]) -> int:
    """Return an upper bound on the bytes of a block that some of its tensors cover; overlaps count once."""
    if len(cards) == 1 and cards[0].bytes == block.bytes:
        return block.bytes
    spans = sorted({span for one in cards if (span := _span(one)) is not None})
    covered, end = 0, 0
    for start, stop in spans:
        covered += max(0, stop - max(start, end))
        end = max(end, stop)
    own = {(one.offset, one.shape, one.strides): one.bytes for one in cards if _span(one) is not None}
    nested = sum(one.bytes for one in cards if one.shape is None and type(one.bytes) is int)  # at unknown offsets
    return int(min(block.bytes, min(covered, sum(own.values())) + nested))


def _span(card: Card) -> tuple[int, int] | None:
    """Return the offsets of a tensor's first byte and of the byte after its last; None for symbolic sizes."""
    shape, strides = card.shape, card.strides
    if shape is None or strides is None or not card.bytes or any(type(one) is not int for one in (*shape, *strides)):
        return None
    reach = sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))
    begin = card.offset * card.dtype.itemsize
    return begin, begin + (reach + 1) * card.dtype.itemsize


def unattributed(blocks: Iterable[StorageRegion]) -> int | None:
    """Return the bytes that the CUDA allocator has given out and these blocks lack; None if CUDA is not in use."""
    if not cuda_is_in_use():
        return None
    given = sum(torch.cuda.memory_allocated(device) for device in range(torch.cuda.device_count()))
    found = sum(-(-block.bytes // _GRAIN) * _GRAIN for block in blocks if block.device.type == "cuda")
    return max(0, given - found)


def cuda_is_in_use() -> bool:
    """Return whether the program has used CUDA, without initializing it."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


_GRAIN = 512
"""PyTorch's CUDA allocator rounds sizes up to a multiple of this number of bytes."""
