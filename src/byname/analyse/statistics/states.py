"""How are states and settings copied, moved, compared and told? They are plain values with tensors among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

__all__ = ["copied", "listed", "mapped", "same", "tensors_in", "told"]


def copied(value: Any) -> Any:
    """A copy that can be changed in place, also outside of an inference mode in which it is made."""
    with torch.inference_mode(False):
        return mapped(value, lambda tensor: tensor.detach().clone())


def mapped(value: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """A value with another in the place of each tensor in it."""
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, dict):
        return {key: mapped(one, change) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(mapped(one, change) for one in value)
    return value


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors in a value, however deep in lists and dicts."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict | list | tuple):
        for one in value.values() if isinstance(value, dict) else value:
            yield from tensors_in(one)


def listed(settings: dict[str, Any], names: Iterable[str]) -> str:
    """Some of the settings as they stand in a call; of large tensors the shape."""
    shown = {name: settings[name] for name in names}
    return ", ".join(
        f"{name}=<{tuple(value.shape)} of {value.dtype}>"
        if isinstance(value, Tensor) and value.numel() > 6
        else f"{name}={value!r}"
        for name, value in shown.items()
    )


def told(value: Any) -> str:
    """What was found in the place of something else, shortly."""
    return f"{sorted(map(str, value))!s:.200}" if isinstance(value, dict) else f"{value!r:.200}"


def same(one: Any, other: Any) -> bool:
    """Whether two settings are equal; a tensor has no truth value."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one.cpu(), other.cpu())
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and bool(one == other)
