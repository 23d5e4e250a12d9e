"""Which modules are only around others, and which cannot be looked into?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from byname.errors import BadArgumentError
from byname.reading.modules import modules_in
from byname.watch.places.spot import Spot

__all__ = ["inside_of", "is_script", "notes_on_scripts", "unseen_in_script", "without_scripts"]

_WRAPPERS = {
    "DistributedDataParallel": "module",
    "DataParallel": "module",
    "OptimizedModule": "_orig_mod",
    "FullyShardedDataParallel": "_fsdp_wrapped_module",
    "CheckpointWrapper": "_checkpoint_wrapped_module",
}


def inside_of(module: nn.Module) -> tuple[nn.Module, tuple[str, ...]]:
    """The module inside of wrappers for several processes or devices, and of compiled ones; the names on the way."""
    names: list[str] = []
    while type(module).__module__.partition(".")[0] == "torch" and type(module).__name__ in _WRAPPERS:
        name = _WRAPPERS[type(module).__name__]
        inner = module.__dict__["_modules"].get(name)
        if inner is None:
            break
        module = inner
        names.append(name)
    return module, tuple(names)


def is_script(module: Any) -> bool:
    """Whether a module was scripted or traced: TorchScript runs it, and knows no hooks."""
    return isinstance(module, torch.jit.ScriptModule)


def without_scripts(spots: list[Spot]) -> list[Spot]:
    """The places that can be got at, where some were asked for by wildcards.

    Raises:
        BadArgumentError: for a place in a scripted module that was asked for by its own path.
    """
    lost = [spot for spot in spots if is_script(spot.module) and spot.kind not in ("parameter", "buffer")]
    for spot in lost:
        if spot.alone or len(lost) == len(spots):
            raise BadArgumentError(unseen_in_script(spot.full, spot.module))
    return [spot for spot in spots if spot not in lost] if lost else spots


def unseen_in_script(path: str, module: nn.Module) -> str:
    """What to say of a place in a scripted module."""
    return (
        f"`{path}`: TorchScript runs this {module.original_name}, and what happens in it cannot be seen; attach to the "
        "module that was scripted or traced, or to the one that calls it"
    )


def notes_on_scripts(model: nn.Module) -> Iterator[str]:
    """What to tell about scripted and traced modules."""
    names = dict.fromkeys(str(one.original_name) for one in modules_in(model) if is_script(one))
    if names:
        yield f"nothing can be seen inside of scripted or traced modules ({', '.join(names)}): TorchScript runs them"
