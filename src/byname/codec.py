"""Codec: nested values as JSON, with tags for types that JSON lacks, and the bytes of tensors beside it.

Files of bytes are written whole or not at all.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Callable
from contextlib import suppress
from errno import EEXIST
from pathlib import Path
from secrets import token_hex
from sys import getsizeof
from typing import Any

import numpy
import torch
from torch import Tensor

from byname.errors import NotStorableError, RecordingError

_UNREADABLE_DTYPES = re.compile(r"quint|qint|bits|u?int[1-7](?![0-9])|float4")
"""Beginnings of dtypes whose elements cannot be read alone: PyTorch has no operation for bits and for types smaller
than a byte, and crashes on a quantized tensor without its scale."""
_DTYPES_BY_NAME = {str(one).removeprefix("torch."): one for one in vars(torch).values() if type(one) is torch.dtype}
READABLE_DTYPES = frozenset(one for name, one in _DTYPES_BY_NAME.items() if not _UNREADABLE_DTYPES.match(name))
"""The dtypes whose elements PyTorch can read; files hold no other dtypes."""
_MAX_DEPTH = 200
"""The most containers within one another; deeper ones would reach Python's recursion limit while they are read."""
_MOST_DIMENSIONS = 64
"""The most dimensions of a tensor that PyTorch's operations take."""
_MOST = 2**48
"""The most elements of a tensor, each dimension without any counted as one."""
_LONGEST = 10_000
"""The most bits of an integer that is written in decimal; Python refuses to read longer ones (CVE-2020-10735)."""


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def dtype_named(name: object) -> torch.dtype:
    """Return the dtype of tensors that a file names; raise a `RecordingError` if PyTorch cannot read such tensors."""
    dtype = _dtype(name)
    if dtype not in READABLE_DTYPES:
        raise RecordingError(f"a recording cannot have tensors of {dtype}: PyTorch cannot read their elements")
    return dtype


def _dtype(name: object) -> torch.dtype:
    found = _DTYPES_BY_NAME.get(name) if type(name) is str else None
    if found is None:
        raise RecordingError(f"this PyTorch has no dtype {name!r:.60}; a newer version of PyTorch may have it")
    return found


def bytes_of(tensor: Tensor) -> numpy.ndarray[Any, Any]:
    """Return the elements of a CPU tensor as bytes, in order; a contiguous tensor is not copied."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy()


def encoded(value: Any) -> tuple[str, list[Tensor]]:
    """Return a plain value as JSON, and its tensors, whose bytes the caller stores one after another.

    Plain are None, bools, numbers, text, bytes, tensors, dtypes and devices, and dicts, lists and tuples of these.
    Anything else, and what is nested deeper than 200 containers, raises a `NotStorableError`.

    >>> encoded({"k": (1, 2.5)})
    ('{"dict":[["k",{"tuple":[1,2.5]}]]}', [])
    """
    tensors: list[Tensor] = []
    size = 0

    def keep(tensor: Tensor) -> int:
        nonlocal size
        tensors.append(tensor)
        start, size = size, size + tensor.numel() * tensor.element_size()
        return start

    return json.dumps(_tagged(value, keep, 0), separators=(",", ":"), allow_nan=False), tensors


def decoded(text: str | bytes, data: Any = b"") -> Any:
    """Return the value that `encoded` wrote; `data` has the bytes of its tensors, one after another.

    Raises:
        RecordingError: the text is no value of this form, or refers to bytes that `data` lacks.
    """
    try:
        return _untagged(json.loads(text), memoryview(data).cast("B"))
    except (ValueError, TypeError, KeyError, IndexError, RecursionError, RuntimeError, OverflowError) as reason:
        if isinstance(reason, RecordingError):
            raise
        shown = text[:60]
        raise RecordingError(f"a stored value cannot be read: {shown!r} ({type(reason).__name__})") from reason


def _tagged(value: Any, keep: Callable[[Tensor], int], depth: int) -> Any:
    kind = type(value)
    if value is None or kind in (bool, str):
        return value
    if kind is int:
        return value if value.bit_length() <= _LONGEST else {"int": hex(value)}
    if kind is float:
        return value if math.isfinite(value) else {"float": str(value)}
    if kind in (list, tuple, dict):
        return _tagged_container(value, keep, depth + 1)
    if kind is Tensor:
        return {"tensor": [dtype_name(value.dtype), list(value.shape), keep(value)]}
    if kind is complex:
        return {"complex": [_tagged(value.real, keep, depth), _tagged(value.imag, keep, depth)]}
    if kind is bytes:
        return {"bytes": base64.b64encode(value).decode()}
    if kind is torch.dtype:
        return {"dtype": dtype_name(value)}
    if kind is torch.device:
        return {"device": str(value)}
    raise NotStorableError(f"a value of type {kind.__module__}.{kind.__qualname__} cannot be stored")


def _tagged_container(value: Any, keep: Callable[[Tensor], int], depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise NotStorableError(f"a value is nested deeper than {_MAX_DEPTH} containers; record a part of it")
    if type(value) is dict:
        return {"dict": [[_tagged(key, keep, depth), _tagged(one, keep, depth)] for key, one in value.items()]}
    items = [_tagged(one, keep, depth) for one in value]
    return items if type(value) is list else {"tuple": items}


def _untagged(form: Any, data: memoryview) -> Any:
    if type(form) is list:
        return [_untagged(one, data) for one in form]
    if type(form) is not dict:
        return form
    ((tag, inside),) = form.items()
    return _READERS[tag](inside, data)


def _tensor(inside: Any, data: memoryview) -> Tensor:
    name, shape, start = inside
    dtype = dtype_named(name)
    sizes_fit = type(shape) is list and len(shape) <= _MOST_DIMENSIONS and all(type(size) is int for size in shape)
    if not sizes_fit or type(start) is not int or min([start, *shape]) < 0 or math.prod(filter(None, shape)) > _MOST:
        raise ValueError("an invalid position or shape of a tensor")
    length = math.prod(shape) * dtype.itemsize
    if start + length > len(data):
        raise ValueError("a tensor beyond the stored bytes")
    if not length:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(bytearray(data[start : start + length]), dtype=dtype).view(shape)  # which owns its memory


def _dict(inside: Any, data: memoryview) -> dict[Any, Any]:
    items = [(_untagged(key, data), _untagged(one, data)) for key, one in inside]
    if len(items) > 2 * len({hash(key) for key, _ in items}) + 16:
        raise ValueError("too many keys with the same hash")
    return dict(items)


def _complex(inside: Any, data: memoryview) -> complex:
    real, imaginary = (_untagged(part, data) for part in inside)
    return complex(real, imaginary)


_READERS: dict[str, Callable[[Any, memoryview], Any]] = {
    "tensor": _tensor,
    "tuple": lambda inside, data: tuple(_untagged(one, data) for one in inside),
    "dict": _dict,
    "float": lambda inside, data: {"nan": math.nan, "inf": math.inf, "-inf": -math.inf}[inside],
    "int": lambda inside, data: int(inside, 16),
    "bytes": lambda inside, data: base64.b64decode(inside, validate=True),
    "complex": _complex,
    "dtype": lambda inside, data: _dtype(inside),
    "device": lambda inside, data: torch.device(inside),
}


def write_atomically(file: Path, content: bytes) -> None:
    """Write a file whole or not at all; one of that name is replaced, and its permissions stay. A device is refused."""
    if file.exists() and not (file.is_file() or file.is_dir()):
        raise FileExistsError(EEXIST, "this is a device or a pipe, not a file", str(file))
    part = file.with_name(f".{file.name[:100]}.{token_hex(4)}.part")
    try:
        with part.open("xb") as stream:
            stream.write(content)
        with suppress(OSError):  # there is none yet
            part.chmod(file.stat().st_mode & 0o777)
        part.replace(file)
    finally:
        part.unlink(missing_ok=True)


def size_of(copy: Any) -> int:
    """Return about how many bytes a copy takes, each container in it counted once.

    >>> size_of({"k": torch.ones(1024)}) // 4096
    1
    """
    return sum(TENSOR_BYTES + one.nbytes if type(one) is torch.Tensor else getsizeof(one) for one in _pieces(copy))


TENSOR_BYTES = 512
"""Bytes of a tensor beside its elements: objects of Python and of C++, and the allocator's share (PyTorch 2.13)."""


def _pieces(copy: Any) -> list[Any]:
    pieces, seen, left = [], set(), [copy]
    while left:
        one = left.pop()
        kind = type(one)
        if kind in (dict, list, tuple):
            if id(one) in seen:  # the copy holds its parts, so that no id is given twice meanwhile
                continue
            seen.add(id(one))
            left += [*one, *one.values()] if kind is dict else one
        pieces.append(one)
    return pieces
