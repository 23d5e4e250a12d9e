"""How much memory of accelerators belongs to no tensor that was found? Only an allocator that counts can tell."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from byname.memory.blocks import Block

__all__ = ["cuda_is_in_use", "unattributed"]


def unattributed(blocks: Iterable[Block]) -> int | None:
    """What the allocators of accelerators have given out, less what was found. Where none is in use nobody counts."""
    if not cuda_is_in_use():
        return None
    given = sum(torch.cuda.memory_allocated(device) for device in range(torch.cuda.device_count()))
    found = sum(-(-block.bytes // _GRAIN) * _GRAIN for block in blocks if block.device.type == "cuda")
    return max(0, given - found)


def cuda_is_in_use() -> bool:
    """Whether the program has used CUDA; to ask anything else of it would start it."""
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]


_GRAIN = 512
"""Bytes of which PyTorch's CUDA allocator gives out multiples."""
