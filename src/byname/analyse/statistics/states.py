"""How are states and settings copied, moved, compared and told? They are plain values with tensors among them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from numbers import Integral, Real
from typing import Any

import torch
from torch import Tensor

__all__ = ["callable_name", "copied", "listed", "mapped", "plain", "same", "tensors_in", "told"]


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


def plain(value: Any) -> Any:
    """A setting as a state can hold it: whatever is no plain value by the name of its function or class.

    >>> plain({"fires": torch.relu, "sizes": (1, 2.5), "dtype": torch.float32})
    {'fires': 'relu', 'sizes': (1, 2.5), 'dtype': 'torch.float32'}
    """
    if value is None or isinstance(value, Tensor | bool):
        return value
    if isinstance(value, str):
        return str(value)
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value)
    if isinstance(value, dict):
        return {plain(key): plain(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return (list if isinstance(value, list) else tuple)(map(plain, value))
    if isinstance(value, torch.dtype | torch.device):
        return str(value)
    return callable_name(value)


def callable_name(value: Any) -> str:
    """What tells a function from another in a state: its name, or that of its class."""
    name = getattr(value, "__name__", None)
    return name if isinstance(name, str) else type(value).__name__


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
    """Whether two settings are equal; a tensor has no truth value, and NaN is the same as NaN."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.equal(one.cpu(), other.cpu())
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if {type(one), type(other)} == {int, float}:
        return bool(one == other)
    return type(one) is type(other) and (bool(one == other) or bool(one != one and other != other))
