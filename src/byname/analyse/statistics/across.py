"""What have the statistics of all ranks seen? Their states, as bytes, go to every rank."""

from __future__ import annotations

from typing import Any

import torch

from byname.analyse.statistics.packing import packed, unpacked
from byname.errors import BadArgumentError

__all__ = ["states_of_all_ranks"]


def states_of_all_ranks(state: dict[str, Any], group: Any = None) -> list[Any]:
    """The states of all ranks of a group in the order of ranks; just this one where there is no group.

    Args:
        state: this rank's, as `packed` takes it.
        group: a process group; the default one if None.

    Raises:
        BadArgumentError: if this rank is not of the group.
    """
    from torch import distributed

    if not distributed.is_available() or not distributed.is_initialized():
        return [state]
    if distributed.get_rank(group) < 0:
        raise BadArgumentError(f"rank {distributed.get_rank()} is not of this group: only ranks that are call it")
    mine = torch.frombuffer(bytearray(packed(state)), dtype=torch.uint8)
    device = _device_of(group)
    size = torch.tensor([len(mine)], device=device)
    sizes = [torch.empty_like(size) for _ in range(distributed.get_world_size(group))]
    distributed.all_gather(sizes, size, group=group)
    room = int(max(sizes))
    sent = torch.zeros(room, dtype=torch.uint8, device=device)
    sent[: len(mine)] = mine.to(device)
    got = [torch.empty_like(sent) for _ in sizes]
    distributed.all_gather(got, sent, group=group)
    return [unpacked(bytes(one[: int(length)].cpu().numpy())) for one, length in zip(got, sizes, strict=True)]


def _device_of(group: Any) -> torch.device:
    """Where a backend wants its tensors: nccl on the current GPU, others on the CPU."""
    from torch import distributed

    on_gpu = distributed.get_backend(group) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_gpu else torch.device("cpu")
