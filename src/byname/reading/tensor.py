"""Tensor facts: shape, dtype, device and storage of one tensor, with a weak reference to the tensor."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from types import NoneType
from typing import Any, NamedTuple

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

from byname.errors import DeadTensorError, NotATensorError
from byname.reading.quiet import DisableTorchFunction, modes_disabled
from byname.text import shape_text


class Card(NamedTuple):
    """Facts about one tensor at the moment it was read. A card does not keep the tensor alive.

    Two cards are equal if they have equal facts about one tensor object; the tensors' values are not compared. A tuple
    is cheap to make for 100,000 tensors.

    Attributes:
        shape: the sizes; empty for a scalar, None for a nested tensor, which has none.
        dtype, device: PyTorch's own objects.
        bytes: size of this tensor's elements; a view counts its own elements only.
        storage_bytes: size of the whole storage; 0 if it has no memory (meta and fake tensors).
        storage: a key that is equal for tensors of one storage. Compare it within one result, not between two.
        offset: index in the storage of the tensor's first element.
        strides: steps between neighbours, in elements; None for a layout without strides.
        version: number of in-place changes so far; None for a tensor that counts none (an inference tensor).
        requires_grad: the tensor's attribute of this name.
        reference: the weak reference from which `tensor` is read.

    >>> card = card_of(torch.zeros(2, 3))
    >>> card.shape, card.bytes
    ((2, 3), 24)
    >>> card.tensor is None        # nobody else held it
    True
    """

    shape: tuple[int, ...] | None
    dtype: torch.dtype
    device: torch.device
    bytes: int
    storage_bytes: int
    storage: int | None
    offset: int
    strides: tuple[int, ...] | None
    version: int | None
    requires_grad: bool
    reference: Callable[[], torch.Tensor | None]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the facts alone, because a file or another process does not have the tensor."""
        return Card, (*self[:-1], NoneType)  # which returns None

    def __eq__(self, other: object) -> bool:
        if type(other) is not Card:
            return NotImplemented
        return self.reference is other.reference and self[:-1] == other[:-1]

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((id(self.reference), self.dtype, self.device, self.storage))

    @property
    def tensor(self) -> torch.Tensor | None:
        """The tensor, or None once the program has released it."""
        return self.reference()

    def alive(self) -> torch.Tensor:
        """Return the tensor.

        Raises:
            DeadTensorError: the program has released the tensor.
        """
        tensor = self.reference()
        if tensor is None:
            raise DeadTensorError(
                f"the {self} that this row describes is no longer alive: byname never keeps a tensor alive. "
                "Keep a reference to the tensor while you need it, or ask byname again."
            )
        return tensor

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')} {shape_text(self.shape) or '?'}"

    def same_value(self, other: Card) -> bool:
        """Return whether both cards describe the same elements of one storage, with equal shape, strides and dtype."""
        return (
            self.storage is not None
            and (self.storage, self.offset, self.shape, self.strides, self.dtype)
            == (other.storage, other.offset, other.shape, other.strides, other.dtype)
        )  # fmt: skip


class Carded:
    """A row about a tensor, with columns read from its card; each is None if there is no card."""

    __slots__ = ()
    card: Card | None

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The sizes; empty for a scalar, None for a nested tensor, which has none."""
        return None if self.card is None else self.card.shape

    @property
    def dtype(self) -> torch.dtype | None:
        """The tensor's dtype, such as ``torch.float32``."""
        return None if self.card is None else self.card.dtype

    @property
    def device(self) -> torch.device | None:
        """The tensor's device, such as ``cuda:0``."""
        return None if self.card is None else self.card.device

    @property
    def bytes(self) -> int:
        """The memory of the tensor's own elements in bytes; 0 without a card."""
        return 0 if self.card is None else self.card.bytes

    @property
    def tensor(self) -> torch.Tensor | None:
        """The tensor itself, or None once the program has dropped it."""
        return None if self.card is None else self.card.tensor


def is_tensor(thing: object) -> bool:
    """Return whether an object is a tensor, judged by its class; ``isinstance`` would ask its ``__class__``."""
    return issubclass(type(thing), torch.Tensor)


def fact(tensor: torch.Tensor, name: str) -> Any:
    """Return one attribute of a tensor, past any property of its class. Callers hold `DisableTorchFunction`.

    Properties of PyTorch's own classes are used: a ``FakeTensor`` knows its device, and its base class does not. One of
    several views that a function made at once (`split`, `unbind`) refuses to give its graph after its base was changed
    in place; such a view counts as no leaf and as without a node.
    """
    try:
        if type(tensor) in PLAIN or str(_MODULE.__get__(type(tensor)).get("__module__")).partition(".")[0] == "torch":
            return getattr(tensor, name)
        return vars(torch._C.TensorBase)[name].__get__(tensor)
    except RuntimeError:
        if name not in _REFUSED:
            raise
        return _REFUSED[name]


_REFUSED = {"grad_fn": None, "is_leaf": False, "retains_grad": False}

_MODULE: Any = type.__dict__["__dict__"]


def card_of(tensor: torch.Tensor) -> Card:
    """Return the facts of a tensor, read without touching its values, its attributes or its subclass's methods."""
    if not is_tensor(tensor):
        raise NotATensorError(f"expected a tensor, but got {type(tensor).__name__}")
    with DisableTorchFunction():
        return read_card(tensor)


def read_card(tensor: torch.Tensor) -> Card:
    """Return the facts of a tensor. Callers hold `DisableTorchFunction`."""
    if type(tensor) not in PLAIN or tensor.is_meta:
        return _guarded_card(tensor)
    try:
        storage = tensor.untyped_storage()
        return Card(
            tuple(tensor.shape),
            tensor.dtype,
            tensor.device,
            tensor.nbytes,
            storage.nbytes(),
            storage._cdata,
            tensor.storage_offset(),  # type: ignore[arg-type]  # no plain tensor has a symbolic one
            tensor.stride(),
            tensor._version,
            tensor.requires_grad,
            weakref.ref(tensor),
        )
    except Exception:  # noqa: BLE001 - sparse, nested, inference and wrapper tensors each refuse another of these reads
        return _guarded_card(tensor)


def storage_of(tensor: torch.Tensor) -> int | None:
    """Return the key of a tensor's storage, the same as in its facts. Callers hold `DisableTorchFunction`."""
    if type(tensor) not in PLAIN:
        return read_card(tensor).storage
    memory = memory_of(tensor)
    return None if memory is tensor else memory._cdata


PLAIN = (torch.Tensor, torch.nn.Parameter)
"""The classes whose tensors are read directly, because no subclass's code runs."""


def storage_address(storage: torch.UntypedStorage) -> int:
    """Return the address of a storage; 0 if it has no memory, as for meta, fake and wrapper tensors."""
    try:
        return 0 if storage.device.type == "meta" else storage.data_ptr()
    except RuntimeError:  # PyTorch's answer for a wrapper
        return 0


def memory_of(tensor: torch.Tensor) -> Any:
    """Return the storage of a tensor, or the tensor itself if it has none."""
    try:
        return tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):
        return tensor


def is_one_memory(target: Any, source: Any = None) -> bool:
    """Return whether two tensors are the same numbers at the same place."""
    with DisableTorchFunction():
        if type(source) not in PLAIN or memory_of(target) is not memory_of(source):
            return False
        first, second = ((one.shape, one.stride(), one.storage_offset()) for one in (target, source))
        return bool(first == second)


def version_of(value: Any) -> int | None:
    """Return how often a tensor was changed in place; None for an inference tensor, and for any other value."""
    kind = type(value)
    plain = kind is torch.Tensor or kind is torch.nn.Parameter
    if not plain and not issubclass(kind, torch.Tensor):
        return None
    try:
        if plain and not _mode_is_on():  # no user code runs for it, and the context manager would take most of the time
            return value._version  # type: ignore[no-any-return]
        with DisableTorchFunction():
            return int(value._version)
    except RuntimeError:  # an inference tensor has no version
        return None


_mode_is_on: Callable[[], bool] = torch._C._is_torch_function_mode_enabled


def storage_key(tensor: torch.Tensor) -> int:
    """Return a number that is the same for tensors of one storage, while it lives; of a tensor without one its id."""
    memory = memory_of(tensor)
    return id(tensor) if memory is tensor else int(memory._cdata)


def storages_of(tensor: torch.Tensor) -> Iterator[Any]:
    """Yield a tensor's storage, or those of the parts of a sparse one. Callers hold `DisableTorchFunction`."""
    try:
        storage = tensor.untyped_storage()
    except (NotImplementedError, RuntimeError):  # sparse: no storage of its own, as an opaque layout
        yield from (part.untyped_storage() for part in parts_of(tensor).values())
        return
    if type(tensor) in PLAIN or storage_address(storage):
        yield storage


def _guarded_card(tensor: torch.Tensor) -> Card:
    """Return the facts of a sparse, nested, inference or subclassed tensor, which lacks some of them."""
    base = torch._C.TensorBase
    with modes_disabled():
        storage = _attempt(base.untyped_storage, tensor)
    parts = parts_of(tensor).values()
    own = _attempt(fact, tensor, "nbytes") or sum(part.nbytes for part in parts)
    shape = _attempt(fact, tensor, "shape")
    if storage is None:
        whole = sum(part.untyped_storage().nbytes() for part in parts)
    else:
        whole = storage.nbytes() if storage_address(storage) else 0
    return Card(
        None if shape is None else tuple(shape),
        fact(tensor, "dtype"),
        fact(tensor, "device"),
        own,
        whole,
        None if storage is None else storage._cdata,
        _attempt(base.storage_offset, tensor) or 0,
        _attempt(base.stride, tensor),
        _attempt(fact, tensor, "_version"),
        fact(tensor, "requires_grad"),
        weakref.ref(tensor),
    )


def parts_of(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the dense tensors that hold a sparse tensor's memory, by accessor name; empty for any other tensor."""
    if type(tensor) not in PLAIN or tensor.layout not in _PARTS or tensor.is_meta:
        return {}
    with modes_disabled(), temporarily_clear_interpreter_stack(), torch.no_grad():
        return {method: getattr(tensor, method)() for method in _PARTS[tensor.layout]}


_ROWS = ("crow_indices", "col_indices", "values")
_COLUMNS = ("ccol_indices", "row_indices", "values")
_PARTS: dict[torch.layout, tuple[str, ...]] = {
    torch.sparse_coo: ("_indices", "_values"),
    **{torch.sparse_csr: _ROWS, torch.sparse_bsr: _ROWS, torch.sparse_csc: _COLUMNS, torch.sparse_bsc: _COLUMNS},
}


def _attempt(read: Any, *args: Any) -> Any:
    try:
        return read(*args)
    except Exception:  # noqa: BLE001 - this kind of tensor lacks this fact; the other facts still hold
        return None
