"""Which module runs for a snapshot, and where on it is the analyser?"""

from __future__ import annotations

from typing import Any

from torch import nn

from byname.analyse.analyser import Analyser, Switched
from byname.errors import BadArgumentError
from byname.model.module_tree import inside_of
from byname.model.where import unwrapped

__all__ = ["observations_on", "run_of"]


def run_of(model: Any) -> nn.Module:
    """What runs of a model: of one wrapped for several processes the inside, which does not communicate."""
    inner = unwrapped(model)
    _, names = inside_of(model)
    return model if _SHARDED in names else inner  # the inside of a sharded one has no parameters of its own


_SHARDED = "_fsdp_wrapped_module"


def observations_on(model: nn.Module, analyser: Analyser) -> tuple[Switched, ...]:
    """Where the analyser is put. All of them: a model may run another, which is observed, too."""
    modules = {id(one) for one in model.modules()}
    observed = [one.model for one in analyser.observations if one.model is not None]
    if any(id(one) in modules or any(part is model for part in one.modules()) for one in observed):
        return analyser.observations
    name = type(analyser).__name__
    where = f"it is observed on {_kinds(observed)}" if observed else "it is observed nowhere, or was removed"
    raise BadArgumentError(
        f"there is nothing to take a snapshot of: the {name} is not observed on this {type(model).__name__}, {where}. "
        "Call byname.observe(model, where, analyser) first, and keep it until the training is over"
    )


def _kinds(models: list[nn.Module]) -> str:
    return "another " + " and another ".join(dict.fromkeys(type(one).__name__ for one in models))
