"""Value type: how one value lies in a file or a message, and is read from its bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy
import torch
from numpy.typing import NDArray
from torch import Tensor

from byname.codec import bytes_of, decoded, dtype_name, dtype_named, encoded
from byname.errors import RecordingError
from byname.recording.distributed.dtensor import Shard, checked_shard

NUMBERS = {"int": "<i8", "float": "<f8", "bool": "<u1", "complex": "<c16"}
"""What numbers of Python are in a file."""
_DIMENSIONS = 64
"""The most dimensions of a tensor that PyTorch's operations take."""
_LARGEST = 1 << 48
"""Elements of a value that no file has, also where another dimension is 0."""
_EACH = numpy.dtype("<i8")


@dataclass(frozen=True)
class ValueType:
    """How a value lies in a file.

    Attributes:
        kind: ``"tensor"``, ``"int"``, ``"float"``, ``"bool"``, ``"complex"``, ``"str"``, or ``"nested"`` for all else.
        dtype: of a tensor, by PyTorch's name.
        shape: of a tensor.
        unpadded: the shape from before it was padded, where it was.
        shard: the part of a distributed tensor that it is.
        row: the larger shape that a file has it in, padded with zeros, for other programs.
    """

    kind: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    unpadded: tuple[int, ...] | None = None
    shard: Shard | None = None
    row: tuple[int, ...] | None = None

    @cached_property
    def bytes(self) -> int | None:
        """How many bytes each value has; None where they differ."""
        if self.kind == "tensor":
            return math.prod(self.shape if self.row is None else self.row) * dtype_named(self.dtype).itemsize
        return numpy.dtype(NUMBERS[self.kind]).itemsize if self.kind in NUMBERS else None

    @property
    def padding(self) -> int:
        """How many of the bytes of each value pad it in a file."""
        return 0 if self.row is None else (self.bytes or 0) - math.prod(self.shape) * dtype_named(self.dtype).itemsize

    @property
    def own_shape(self) -> tuple[int, ...]:
        """The shape of the value without padding; () for what is no tensor."""
        return self.shape if self.unpadded is None else self.unpadded

    def facts(self) -> list[Any]:
        shard = None if self.shard is None else asdict(self.shard)
        return [self.kind, self.dtype, self.shape, self.unpadded, shard, *([] if self.row is None else [self.row])]

    @classmethod
    def of(cls, facts: Any) -> ValueType:
        """Return what `facts` was made of, or refuse what describes no type of a value."""
        kind, dtype, shape, unpadded, shard, *rows = facts
        own = None if unpadded is None else _shape(unpadded)
        part = None if shard is None else checked_shard(Shard(**{name: tuple(fact) for name, fact in shard.items()}))
        (row,) = map(_shape, rows) if rows else (None,)
        found = cls(kind, dtype, _shape(shape), own, part, row)
        if kind not in (*NUMBERS, "tensor", "str", "nested") or type(dtype) is not str:
            raise ValueError("an unknown kind of values")
        if kind != "tensor" and (dtype or found.shape or own is not None or row is not None):
            raise ValueError("a dtype or a shape for a value that is no tensor")
        if any(other is not None and len(other) != len(found.shape) for other in (own, row)):
            raise ValueError("shapes of different numbers of dimensions")
        if row is not None and any(map(int.__gt__, found.shape, row)):
            raise ValueError("a value that is larger than its row")
        try:
            found.bytes  # noqa: B018 - whether there is such a dtype
        except RecordingError as reason:
            raise ValueError(str(reason)) from reason
        if any(math.prod(filter(None, one)) > _LARGEST for one in (found.shape, found.own_shape, row or ())):
            raise ValueError("a size that is too large")
        return found

    def value(self, raw: NDArray[numpy.uint8]) -> Any:
        """Return the value that these bytes are, which belong to it from now on."""
        if self.kind == "tensor":
            whole = _tensor(raw, dtype_named(self.dtype), self.shape if self.row is None else self.row)
            return whole if self.row in (None, self.shape) else whole[tuple(map(slice, self.shape))].clone()
        if self.kind == "str":
            return raw.tobytes().decode("utf-8", "surrogatepass")
        if self.kind == "nested":
            words = json_of(raw)
            return decoded(words, raw[8 + len(words) :].data)
        (number,) = raw.view(NUMBERS[self.kind]).tolist()
        return bool(number) if self.kind == "bool" else number

    def numbers(self, raw: NDArray[numpy.uint8], count: int) -> NDArray[Any]:
        """Return the bytes of several values as numbers that NumPy has: bfloat16 becomes float32, without loss."""
        if self.kind != "tensor":
            return raw.view(NUMBERS[self.kind]).astype(numpy_dtype(self), copy=False)
        dtype = dtype_named(self.dtype)
        found: NDArray[Any] = _tensor(raw, dtype, (count, *self.shape)).to(numpy_has(dtype)).numpy()
        return found


def _shape(facts: Any) -> tuple[int, ...]:
    shape = tuple(facts)
    if len(shape) > _DIMENSIONS or any(type(size) is not int or not 0 <= size < 2**62 for size in shape):
        raise ValueError("sizes that are not valid")
    return shape


def _tensor(raw: NDArray[numpy.uint8], dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if not raw.size:
        return torch.empty(shape, dtype=dtype, device="cpu")
    return torch.frombuffer(raw, dtype=dtype).view(shape)


_NUMPY_HAS = {
    torch.bool, torch.float16, torch.float32, torch.float64, torch.complex64, torch.complex128, torch.int8, torch.int16,
    torch.int32, torch.int64, torch.uint8, torch.uint16, torch.uint32, torch.uint64,
}  # fmt: skip


def numpy_has(dtype: torch.dtype) -> torch.dtype:
    """Return the dtype that NumPy has for the numbers of another: float32 for bfloat16, without loss."""
    if dtype in _NUMPY_HAS:
        return dtype
    return torch.complex64 if dtype.is_complex else torch.float32


def numpy_dtype(kind: ValueType) -> numpy.dtype[Any]:
    """Return the type that values have as an array of NumPy's."""
    if kind.kind == "tensor":
        return torch.empty(0, dtype=numpy_has(dtype_named(kind.dtype)), device="cpu").numpy().dtype
    return numpy.dtype("bool" if kind.kind == "bool" else NUMBERS[kind.kind])


_OF_NUMBERS = {kind: ValueType(kind.__name__) for kind in (bool, int, float, complex)}
_TEXT, _NESTED = ValueType("str"), ValueType("nested")


def type_of(value: Any, shard: Shard | None = None) -> ValueType:
    """Return how a value is stored."""
    kind = type(value)
    if kind is Tensor:
        return _type_of_tensors(value.dtype, value.shape, shard)
    if kind in _OF_NUMBERS and (kind is not int or -(2**63) <= value < 2**63):
        return _OF_NUMBERS[kind]
    if shard is not None:
        return ValueType("nested", shard=shard)
    return _TEXT if kind is str else _NESTED


@lru_cache(maxsize=1024)
def _type_of_tensors(dtype: torch.dtype, shape: torch.Size, shard: Shard | None) -> ValueType:
    return ValueType("tensor", dtype_name(dtype), tuple(shape), None, shard)


def buffers_of(kind: ValueType, values: Sequence[Any] | Tensor) -> list[Any]:
    """Return the bytes of values of one type, in order; where their sizes differ, first a table of these."""
    if kind.kind == "tensor":
        several = [values] if type(values) is Tensor else values
        plain = dtype_named(kind.dtype) in _NUMPY_HAS and kind.bytes
        return [one.numpy().data.cast("B") if plain and one.is_contiguous() else bytes_of(one) for one in several]
    if kind.bytes is not None:
        return [numpy.array(values, NUMBERS[kind.kind]).tobytes()]
    texts = [value.encode("utf-8", "surrogatepass") if kind.kind == "str" else nested(value) for value in values]
    return [numpy.array([*map(len, texts)], _EACH).tobytes(), b"".join(texts)]


def nested(value: Any) -> bytes:
    """Return a nested value as bytes: the length of its JSON, that, and the bytes of its tensors."""
    text, tensors = encoded(value)
    words = text.encode()
    return b"".join([len(words).to_bytes(8, "little"), words, *(bytes_of(one).tobytes() for one in tensors)])


def json_of(raw: NDArray[numpy.uint8]) -> bytes:
    """Return the JSON in the bytes of a nested value."""
    words = int(raw[:8].view(_EACH)[0]) if raw.size >= 8 else -1
    if not 0 <= words <= raw.size - 8:
        raise RecordingError("the text of a nested value is longer than the value")
    return raw[8 : 8 + words].tobytes()
