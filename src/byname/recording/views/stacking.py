"""How does a window of tensors become one tensor? The ready callbacks `byname.stack` and `byname.stack_padded`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from byname.errors import BynameError
from byname.recording.series import Series
from byname.recording.views.arrays import NUMBERS, plain_type
from byname.recording.views.reading import cropped
from byname.table import listed

__all__ = ["stack", "stack_padded"]


def stack(path: str, series: Series) -> Series:
    """The series with all values as one tensor, the record first. A callback for `byname.record`.

    Plain numbers become a tensor of bool, int64, float64 or complex128. What is stacked already, and strings, None and
    containers, are kept as they are.

    Raises:
        BynameError: the values differ in shape or type.

    >>> ones = [torch.ones(2, 3), torch.ones(2, 3)]
    >>> series = Series("fc1", ones, [0, 1], [0, 0], [0, 0], ["train"] * 2, [(2, 3)] * 2)
    >>> stack("fc1", series).values.shape
    torch.Size([2, 2, 3])
    """
    values = _tensors(path, series)
    if values is None:
        return series
    shapes = list(dict.fromkeys(tuple(value.shape) for value in values))
    if len(shapes) > 1:
        known = listed([*map(str, shapes)], 4)
        raise BynameError(f"the values of {path} have different shapes ({known}): use stack_padded instead of stack")
    return replace(series, values=_stacked(values))


def stack_padded(path: str, series: Series) -> Series:
    """The same for values of different sizes: zeros follow at the end of each dimension, up to the largest size.

    ``.shapes`` keeps the sizes from before.

    Raises:
        BynameError: the values differ in type or in their number of dimensions.

    >>> series = Series("h", [torch.ones(2), torch.ones(3)], [0, 1], [0, 0], [0, 0], ["train"] * 2, [(2,), (3,)])
    >>> padded = stack_padded("h", series)
    >>> padded.values.tolist(), padded.shapes
    ([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]], [(2,), (3,)])
    """
    values = _tensors(path, series)
    if values is None:
        return series
    values = [cropped(value, shape) for value, shape in zip(values, series.shapes, strict=True)]
    shapes = [tuple(value.shape) for value in values]
    if len({len(shape) for shape in shapes}) > 1:
        known = listed([*map(str, dict.fromkeys(shapes))], 4)
        raise BynameError(
            f"the values of {path} differ in their number of dimensions ({known}): no padding makes them one"
        )
    if len(set(shapes)) == 1:
        return replace(series, values=_stacked(values), shapes=shapes)
    largest = tuple(max(sizes) for sizes in zip(*shapes, strict=True))
    whole = torch.zeros((len(values), *largest), dtype=values[0].dtype, device=values[0].device)
    for row, value in zip(whole, values, strict=True):
        row[tuple(slice(0, size) for size in value.shape)] = value.detach()
    return replace(series, values=whole, shapes=shapes)


def _tensors(path: str, series: Series) -> list[Tensor] | None:
    """The values as tensors of one type; None where there is nothing to stack."""
    if issubclass(type(series.values), Tensor) or not len(series):
        return None
    values = list(series.values)
    numeric = [issubclass(type(value), Tensor) or type(value) in NUMBERS for value in values]
    if not any(numeric):
        return None
    types = list(dict.fromkeys(map(_type, values)))
    if types == ["a plain number"]:
        return _numbers(path, values)
    if len(types) > 1 or not all(numeric):
        raise BynameError(
            f"the values of {path} are of different types ({listed(types, 4)}), which one tensor cannot hold; "
            "record with dtype= to have tensors of one, or return the series as it is"
        )
    return values


def _type(value: Any) -> str:
    if issubclass(type(value), Tensor):
        return str(value.dtype)
    return "a plain number" if type(value) in NUMBERS else type(value).__name__


def _numbers(path: str, values: Sequence[Any]) -> list[Tensor]:
    dtype = plain_type(values)
    if dtype is None:
        types = ", ".join(sorted({type(value).__name__ for value in values}))
        raise BynameError(
            f"no tensor holds the numbers of {path} exactly: they are of type {types}, or too large for it"
        )
    wanted: torch.dtype = getattr(torch, dtype.name)
    return [torch.tensor(value, dtype=wanted) for value in values]


def _stacked(values: list[Tensor]) -> Tensor:
    return torch.stack([value.detach() for value in values])
