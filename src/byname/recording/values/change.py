"""Change: whether the value of a place has changed since it was last stored."""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import torch

from byname.errors import NotStorableError
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import PLAIN, is_tensor
from byname.recording.values.copy import plain_copy
from byname.recording.values.plain import (
    ATOMS,
    bare,
    function_mode_count,
    is_ordinary,
    no_dispatch_modes,
    without_dispatch_modes,
)

NOTHING: Any = object()
"""Stands where there is no copy."""


class ChangeDetector:
    """The value that was stored last at a place, and whether another value differs from it.

    A tensor has changed when it lies in other memory than the one stored last, is seen in another way (another part,
    other strides), or was written to since, as its version counter tells. Where none of this is so, its content is
    compared bit by bit with the copy that was stored: ``x.data`` and some of PyTorch's kernels (batch norm's running
    mean) write without counting. Numbers, strings and containers are compared by content: NaN equals NaN, ``0.0`` is
    not ``-0.0``, and ``1``, ``1.0`` and ``True`` are three values.

    The program's tensor is held weakly, and the copy as long as its memory is alive.

    Args:
        convert: a function of a value whose result is copied and compared instead.
        by_content: whether new memory with the old content is no change. This costs about as much as another copy.

    Attributes:
        copies: the copy that was stored last, by the weak reference to the memory that it is a copy of; empty where
            whatever comes next has changed.
        doubtful: whether the latest ``True`` of `changed` only means that the content of a tensor on a GPU would tell.
            `same_bits` tells it once the copies are there: whoever stores the value keeps `copy` until then.
    """

    __slots__ = ("__weakref__", "_by_content", "_convert", "_drop_copy", "_memory", "_state", "copies", "doubtful")

    def __init__(self, convert: Callable[[Any], Any] | None = None, *, by_content: bool = False) -> None:
        self.doubtful = False
        self._convert = convert
        self._by_content = by_content
        self.copies: dict[Any, Any] = {}
        self._drop_copy = None if by_content else self.copies.__delitem__
        self._memory: weakref.ref[Any] | None = None
        self._state: tuple[Any, ...] | None = None

    def changed(self, value: Any, given: Any = NOTHING) -> bool:
        """Return whether a value, of which callbacks made `given`, is another than the one stored last, if any was."""
        self.doubtful = False
        memory = self._memory
        copy = self.copies.get(memory, NOTHING)
        if copy is NOTHING:
            return True
        given = value if given is NOTHING else given
        if self._by_content or memory is None:
            return self._differs(given, copy)
        if type(value) not in PLAIN and not is_tensor(value):
            return True
        last = memory()
        if last is None:
            return True
        found, state = _memory_of(value)
        if found is not last or state != self._state:
            return True
        return self._differs(given, copy)

    def stored(self, value: Any, copy: Any) -> None:
        """Note a value that has been stored, and the copy that was made of it."""
        memory, state = _memory_of(value) if type(value) in PLAIN or is_tensor(value) else (None, None)
        self._memory, self._state = None, state
        self.copies.clear()  # after the other reference to its key, see `forget`
        # When the memory is gone whatever comes next has changed. What lets go of the copy then must not be
        # written in Python: an interrupt that comes in a callback of a weak reference is lost (CPython).
        self._memory = None if memory is None else weakref.ref(memory, self._drop_copy)
        self.copies[self._memory] = copy

    @property
    def copy(self) -> Any:
        """The copy that was stored last; `NOTHING` where there is none, or none that is still of use."""
        return self.copies.get(self._memory, NOTHING)

    def forget(self) -> None:
        self._memory = self._state = None
        self.copies.clear()  # with the last reference to its key: what calls back then finds its copy, or never calls

    def _differs(self, value: Any, copy: Any) -> bool:
        """Return whether the content differs, or may differ and lies where nobody should wait for it."""
        try:
            return not same_bits(value if self._convert is None else self._convert(value), copy)
        except _Elsewhere:
            self.doubtful = True
            return True
        except NotStorableError:  # the copy raises it again, with the path
            return True


def _memory_of(tensor: torch.Tensor, *, quiet: bool = False) -> tuple[Any, tuple[Any, ...] | None]:
    """Return a tensor's storage, and how and in which version it is seen; None where it has none (sparse, wrapped)."""
    # the context takes as long as all that is read
    if not quiet and (type(tensor) not in PLAIN or function_mode_count()):
        with DisableTorchFunction():
            return _memory_of(tensor, quiet=True)
    try:
        version = None if _is_inference(tensor) else _version_of(tensor)
        return _storage_of(tensor), (version, _offset_of(tensor), _strides_of(tensor))
    except (RuntimeError, NotImplementedError):  # what sparse, nested and wrapper tensors answer
        return None, None


_storage_of: Callable[[torch.Tensor], torch.UntypedStorage] = torch._C.TensorBase.untyped_storage
_offset_of: Callable[[torch.Tensor], Any] = torch._C.TensorBase.storage_offset
_strides_of: Callable[[torch.Tensor], Any] = torch._C.TensorBase.stride
_is_inference: Callable[[torch.Tensor], bool] = torch._C.TensorBase.is_inference
_version_of: Callable[[torch.Tensor], int] = torch._C.TensorBase._version.__get__  # type: ignore[attr-defined]


class _Elsewhere(Exception):
    """The content of a tensor is not on the CPU."""


def same_bits(value: Any, copy: Any) -> bool:
    """Return whether a value on the CPU has the content of a copy, bit by bit, the order of a dict's keys included."""
    if not _is_plain(value):
        value = plain_copy(value, path="the value", fetch=_refuse_to_wait)
    if type(value) in PLAIN:
        return type(copy) is torch.Tensor and _same_numbers(value, copy)
    if type(value) is not type(copy):
        return False
    if type(value) is dict:
        return _same_items(list(value.items()), list(copy.items()))
    return _same_items(value, copy) if type(value) in _CONTAINERS else _same_atom(value, copy)


def _is_plain(value: Any) -> bool:
    if type(value) in PLAIN:
        if is_ordinary(value):
            return True
        with DisableTorchFunction():
            if value.device.type != "cpu":
                raise _Elsewhere
        return False
    return type(value) in ATOMS or type(value) in _CONTAINERS


_CONTAINERS = frozenset((dict, list, tuple))


def _refuse_to_wait(tensor: torch.Tensor) -> torch.Tensor:
    raise _Elsewhere


def _same_items(items: Sequence[Any], copies: Sequence[Any]) -> bool:
    return len(items) == len(copies) and all(map(same_bits, items, copies))


def _same_atom(value: Any, copy: Any) -> bool:
    if type(value) is float:
        return _BITS.pack(value) == _BITS.pack(copy)
    if type(value) is complex:
        return _same_atom(value.real, copy.real) and _same_atom(value.imag, copy.imag)
    return bool(value == copy)


_BITS = struct.Struct("d")


def _same_numbers(value: torch.Tensor, copy: torch.Tensor) -> bool:
    """Return whether two dense tensors have the same bits; no memory is taken for it."""
    with DisableTorchFunction() if no_dispatch_modes() else without_dispatch_modes():
        if value.dtype != copy.dtype or value.shape != copy.shape:
            return False
        return torch.equal(*_bits(bare(value), copy))


def _bits(value: torch.Tensor, copy: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both as whole numbers, where possible of eight bytes: that is two to eight times as fast."""
    size, begin = value.nbytes, value.storage_offset() * value.element_size()
    if size % 8 == 0 and begin % 8 == 0 and value.is_contiguous():
        return value.view(-1).view(torch.int64), copy.view(-1).view(torch.int64)
    if value.is_complex():
        value, copy = torch.view_as_real(value), torch.view_as_real(copy)
    whole = _WHOLE[value.element_size()]
    return value.view(whole), copy.view(whole)


_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
