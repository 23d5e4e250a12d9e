"""Are two figures the same? Tensors have no single answer to `==`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

__all__ = ["same"]


def same(one: Any, other: Any) -> bool:
    """Whether all numbers are equal, in dicts, lists, tensors and arrays; NaN is the same as NaN.

    >>> same({"dead": torch.tensor([1, 2])}, {"dead": [1.0, 2.0]})
    True
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, Mapping) or isinstance(other, Mapping):
        return False
    if _is_array(one) or _is_array(other):
        return _same_arrays(one, other)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) or bool(one != one and other != other)  # NaN is not itself


def _is_array(value: Any) -> bool:
    import numpy as np

    return isinstance(value, Tensor | np.ndarray)


def _same_arrays(one: Any, other: Any) -> bool:
    try:
        mine, others = (torch.as_tensor(value).detach().cpu() for value in (one, other))
    except (TypeError, ValueError, RuntimeError):  # PyTorch's answers for what is no numbers
        return False
    if mine.shape != others.shape:
        return False
    return bool(((mine == others) | ((mine != mine) & (others != others))).all())
