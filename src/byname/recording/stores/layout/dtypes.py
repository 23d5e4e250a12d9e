"""How do the elements of a tensor lie in an HDF5 file? As the type of the same bits, so that every tool reads numbers.

HDF5 has no type for bfloat16, but lets a file describe any float: two bytes, eight bits of exponent, which other tools
convert to float32. The eight-bit floats differ from it in how they write infinity, so they lie as bytes, and the name
of the dtype beside them says what they are. Bytes are never converted on the way: a NaN keeps its payload.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

__all__ = ["file_type", "modes", "numbers", "strings", "taken_as"]

_NATIVE = {
    torch.bool: "bool",
    torch.float16: "<f2",
    torch.float32: "<f4",
    torch.float64: "<f8",
    torch.complex64: "<c8",
    torch.complex128: "<c16",
    torch.int8: "<i1",
    torch.int16: "<i2",
    torch.int32: "<i4",
    torch.int64: "<i8",
    torch.uint8: "<u1",
    torch.uint16: "<u2",
    torch.uint32: "<u4",
    torch.uint64: "<u8",
}


@lru_cache(maxsize=64)
def file_type(dtype: torch.dtype) -> Any:
    """The HDF5 type (``h5py.h5t.TypeID``) of the elements of tensors of a dtype."""
    import numpy
    from h5py import h5t

    if dtype in _NATIVE:
        return numbers(_NATIVE[dtype])
    if dtype is torch.bfloat16:
        kind = h5t.IEEE_F32LE.copy()
        kind.set_fields(15, 7, 8, 0, 7)  # where the sign, the exponent and the mantissa are, and how long
        kind.set_size(2)
        kind.set_ebias(127)
        return kind
    if dtype is torch.complex32:
        return h5t.py_create(numpy.dtype([("r", "<f2"), ("i", "<f2")]))
    if dtype.itemsize == 1:
        return numbers("<u1")
    return h5t.py_create(numpy.dtype(f"V{dtype.itemsize}"))


def taken_as(dtype: torch.dtype) -> torch.dtype:
    """The dtype that NumPy has for the numbers of another: float32 for bfloat16, without loss."""
    if dtype in _NATIVE:
        return dtype
    return torch.complex64 if dtype.is_complex else torch.float32


@lru_cache(maxsize=1)
def strings() -> Any:
    """The HDF5 type of text: UTF-8 of any length."""
    import h5py

    return h5py.h5t.py_create(h5py.string_dtype(), logical=True)


@lru_cache(maxsize=16)
def numbers(code: str) -> Any:
    """The HDF5 type of what NumPy has under a code such as ``"<i8"``."""
    import numpy
    from h5py import h5t

    return h5t.py_create(numpy.dtype(code), logical=True)


@lru_cache(maxsize=1)
def modes() -> Any:
    """The HDF5 type of modes: 0 is called train, 1 eval."""
    from h5py import h5t

    kind = h5t.enum_create(h5t.STD_I8LE)
    kind.enum_insert(b"train", 0)
    kind.enum_insert(b"eval", 1)
    return kind
