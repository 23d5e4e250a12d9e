"""How does a series become one numpy array? Every type keeps its values; what fits into no array becomes objects."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byname.recording.views.reading import Values, read, tail_of

__all__ = ["NUMBERS", "array_from", "common_type", "numpy_of", "objects", "to_numpy"]

AnyArray: TypeAlias = NDArray[Any]

NUMBERS: tuple[type, ...] = (bool, int, float, complex)
"""The plain numbers."""

_WITHIN_NUMPY = frozenset(
    (
        *(torch.bool, torch.uint8, torch.uint16, torch.uint32, torch.uint64),
        *(torch.int8, torch.int16, torch.int32, torch.int64),
        *(torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128),
    )
)


def numpy_of(tensor: Tensor) -> AnyArray:
    """The tensor as numpy has it, on its own memory where that is possible.

    bfloat16 and float8 become float32 and complex32 becomes complex64, which hold each of their values exactly.
    """
    with torch.no_grad():
        plain = tensor.detach().cpu().resolve_conj().resolve_neg()
        if plain.dtype not in _WITHIN_NUMPY:
            plain = plain.to(torch.complex64 if plain.is_complex() else torch.float32)
    array: AnyArray = plain.numpy()
    return array


def to_numpy(values: Values, shapes: Sequence[tuple[int, ...]]) -> AnyArray:
    """All values as one array, the record first; an array of objects where shapes or types have nothing in common."""
    if isinstance(values, Tensor):
        return numpy_of(values).copy()
    if len(values) == 0:
        return np.zeros(0)
    if len(set(shapes)) == 1 and tail_of(values) is not None:
        return read(values, np.arange(len(values)))
    return array_from(list(values))


def array_from(values: Sequence[Any]) -> AnyArray:
    """One array of these, an own copy; of objects where they differ in shape or in kind."""
    if (
        all(issubclass(type(value), Tensor) for value in values)
        and len({(one.dtype, one.shape) for one in values}) == 1
    ):
        with torch.no_grad():
            return numpy_of(torch.stack(list(values)))
    elements = [numpy_of(value) if issubclass(type(value), Tensor) else value for value in values]
    tensors = [type(element) is np.ndarray for element in elements]
    if all(tensors):
        dtype = common_type(element.dtype for element in elements)
        if dtype is not None and len({element.shape for element in elements}) == 1:
            return np.stack(elements).astype(dtype, copy=False)
    elif not any(tensors):
        dtype = plain_type(values)
        if dtype is not None:
            return np.array(values, dtype)
    return objects(element.copy()[()] if type(element) is np.ndarray else element for element in elements)


def common_type(dtypes: Iterable[np.dtype[Any]]) -> np.dtype[Any] | None:
    """The type that holds every value of these exactly; there is one within floats, within signed integers ..."""
    found = set(dtypes)
    return np.result_type(*found) if len({dtype.kind for dtype in found}) == 1 else None


def plain_type(values: Sequence[Any]) -> np.dtype[Any] | None:
    """The type of an array that holds these plain numbers exactly; None if there is none."""
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return np.dtype(bool)
    if not kinds <= {int, float, complex}:
        return None
    if kinds == {int}:
        return np.dtype(np.int64) if all(-(2**63) <= value < 2**63 for value in values) else None
    if any(type(value) is int and abs(value) > 2**53 for value in values):
        return None  # a float would round it
    return np.dtype(np.complex128 if complex in kinds else np.float64)


def objects(values: Iterable[Any]) -> AnyArray:
    """An array of objects with one dimension, whatever the objects are: numpy would take equal shapes apart."""
    every = list(values)
    array = np.empty(len(every), dtype=object)
    for number, value in enumerate(every):
        array[number] = value
    return array
