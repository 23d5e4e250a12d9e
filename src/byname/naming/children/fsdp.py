"""Which parameters does a graph under ``fully_shard`` end in? The gathered ones, which no module holds by name."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from byname.reading.objects import parents_of

__all__ = ["Gathered", "gathered_parameters", "is_sharded"]


class Gathered(NamedTuple):
    """A gathered parameter, the module and name it stands for, and the sharded parameter that the optimizer has."""

    module: nn.Module
    name: str
    gathered: torch.Tensor
    sharded: torch.Tensor


def is_sharded(kind: type) -> bool:
    """Whether a module of this class was given to ``fully_shard``."""
    return any(parent.__name__ == "FSDPModule" for parent in parents_of(kind))


def gathered_parameters(module: Any) -> Iterator[Gathered]:
    """The gathered parameters of one sharded module, as far as they are there at the moment.

    Read from private fields of ``torch.distributed.fsdp`` (2.7 to 2.13), each asked for and none relied on.
    """
    state = module._get_fsdp_state()
    groups = getattr(state, "_fsdp_param_groups", None) or [getattr(state, "_fsdp_param_group", None)]
    for group in groups:
        for one in getattr(group, "fsdp_params", ()):
            gathered = getattr(one, "_unsharded_param", None)
            info = getattr(one, "_module_info", None)
            if gathered is not None and info is not None:
                yield Gathered(info.module, info.param_name, gathered, one.sharded_param)
