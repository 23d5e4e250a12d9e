"""What do the modules of a model hold beside their parameters? Tensors as attributes, and lists and dicts."""

from __future__ import annotations

import torch
from torch import nn

from byname.rewriting.proxies import Untraceable

__all__ = ["Contents", "check_contents", "contents_of", "tensors_of"]


def tensors_of(model: nn.Module) -> dict[int, str]:
    """The path of each tensor that a module of the model holds: parameters, buffers, and plain attributes."""
    found: dict[int, str] = {}
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        held = object.__getattribute__(module, "__dict__")
        for registry in (held["_parameters"], held["_buffers"], held):
            for name, value in registry.items():
                if isinstance(value, torch.Tensor):
                    found.setdefault(id(value), prefix + name)
    return found


Contents = dict[str, list[int]]


def contents_of(model: nn.Module) -> Contents:
    """What is in the lists, dicts and sets that the modules of a model hold as attributes."""
    found: Contents = {}
    for path, module in model.named_modules():
        for name, value in module.__dict__.items():
            if name not in _REGISTRIES and type(value) in (list, dict, set):
                items = [*value, *value.values()] if isinstance(value, dict) else value
                found[f"{path}.{name}" if path else name] = [id(item) for item in items]
    return found


_REGISTRIES = frozenset(nn.Module().__dict__)


def check_contents(before: Contents, model: nn.Module) -> None:
    """Refuses a forward that puts something into a list or dict of a module, which would happen only once."""
    now = contents_of(model)
    for path, items in before.items():
        if now.get(path) != items:
            raise Untraceable(f"changes what is in `{path}`, which would happen only once")
