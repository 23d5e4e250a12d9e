"""Plain values: which are, which types stand for others, and how subclasses and unusual tensors are read as them.

Nearly every tensor is plain: nothing but numbers in the CPU's memory. A copy of it costs little more than PyTorch's
own; what is not plain goes the long way.
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy
import torch

from byname.codec import READABLE_DTYPES
from byname.reading.objects import attributes_of, found_in, namespace_of, parents_of, snapshot
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import PLAIN, fact, parts_of
from byname.recording.distributed.dtensor import is_distributed, local_part

bare: Callable[[Any], torch.Tensor] = torch._C.TensorBase.data.__get__  # type: ignore[attr-defined]
"""The tensor without history, neither for backward nor, which ``detach`` would keep, for forward mode."""

function_mode_count: Callable[[], int] = torch._C._len_torch_function_stack
"""How many function modes are on; under `DisableTorchFunction` they observe nothing."""

_operators_listen: Callable[[], int] = torch._C._len_torch_dispatch_stack
_transform: Callable[[], object] = torch._C._functorch.peek_interpreter_stack  # type: ignore[attr-defined, unused-ignore]


def no_dispatch_modes() -> bool:
    """Return whether no dispatch mode is on, and no transform such as ``vmap`` is at work."""
    return not _operators_listen() and _transform() is None


def _keyset(*names: str) -> torch._C.DispatchKeySet:
    keys = (torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, name)) for name in names)
    return functools.reduce(operator.or_, keys)


_keys: Callable[[torch.Tensor], torch._C.DispatchKeySet] = torch._C._dispatch_keys
_ORDINARY = frozenset(
    one.raw_repr()
    for one in (_keyset("CPU", "AutogradCPU", "AutocastCPU", "ADInplaceOrView"), _keyset("CPU", "AutocastCPU"))
)
"""What a dense tensor on the CPU has, and one made under ``inference_mode``.

By its keys PyTorch decides how an operator treats a tensor: they tell device, layout, lazy conjugation and wrappers all
at once.
"""


def is_ordinary(tensor: Any) -> bool:
    """Return whether a value is a tensor of PyTorch's own class, and dense, whole and on the CPU."""
    return type(tensor) in PLAIN and _keys(tensor).raw_repr() in _ORDINARY


_LISTENERS = _keyset("Python", "PythonTLSSnapshot", "FuncTorchDynamicLayerFrontMode", "FuncTorchDynamicLayerBackMode")


@contextmanager
def without_dispatch_modes() -> Iterator[None]:
    """Context in which operators work on tensors themselves: no mode, no subclass and no transform sees them."""
    with DisableTorchFunction(), torch._C._ExcludeDispatchKeyGuard(_LISTENERS):
        yield


def quick_copy(value: Any, *, quiet: bool = False) -> torch.Tensor | None:
    """Return a contiguous copy of an ordinary tensor while nothing but function modes listens; None of other values.

    To ask `clone` for its layout would take as long again as cloning a small tensor does.
    """
    if type(value) not in PLAIN or _keys(value).raw_repr() not in _ORDINARY:
        return None
    if _operators_listen() or _transform() is not None or _inference():
        return None
    if function_mode_count() and not quiet:
        with DisableTorchFunction():
            return quick_copy(value, quiet=True)
    numbers = bare(value)
    if numbers.dtype not in READABLE_DTYPES:
        return None
    return numbers.clone() if numbers.is_contiguous() else numbers.contiguous()


_inference: Callable[[], bool] = torch.is_inference_mode_enabled

ATOMS = frozenset((bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device))
"""Types whose values are recorded as they are: none of them can change."""


class Refused(Exception):
    """A value that no recording can hold; says what it is and what to do, after the words "cannot be recorded".

    Attributes:
        steps: how to get to it from the outermost value, the last step first.
    """

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.steps: list[str] = []


def recorded_class(value: object) -> type:
    """Return the class as which a value is recorded; its own where there is none."""
    kind = type(value)
    if kind in _KNOWN:
        return kind
    if issubclass(kind, numpy.generic):  # before float: numpy.float64 is a subclass of it
        return numpy.generic
    if issubclass(kind, numpy.ndarray):
        return numpy.ndarray
    parents = parents_of(kind)
    family = next((one for one in (torch.Tensor, *_FAMILIES) if one in parents), None)
    if family is None and type(found_in(kind, "__dataclass_fields__")) is dict and not issubclass(kind, type):
        return dict
    return family or kind


_FAMILIES = (dict, list, tuple, int, float, complex, str, bytes)
_KNOWN = frozenset((*ATOMS, torch.Tensor, dict, list, tuple))


def plain_atom(value: Any, kind: type) -> Any:
    """Return the plain form of a value of this kind that is neither a tensor nor a dict, list or tuple."""
    if type(value) in ATOMS:
        return value
    if kind is numpy.ndarray:
        return _from_array(value)
    if kind is numpy.generic:
        return _from_scalar(value)
    if kind in _BASES:
        return _BASES[kind](value)
    raise Refused(f"is of type {_named(type(value))}. {_ADVICE.get(type(value), _ANYTHING)}")


_BASES: dict[type, Callable[[Any], Any]] = {
    int: int.__int__,
    float: float.__float__,
    complex: complex.__complex__,
    str: str.__str__,
    bytes: lambda value: b"".join((value,)),
}
"""How the base class reads a child of it."""

_ANYTHING = (
    "Recordings hold tensors, numbers, strings, None, and dicts, lists and tuples of these: record a part of it by the "
    "part's path, or let `on_value` return one of these types"
)
_ADVICE: dict[type, str] = {
    set: "It has no order: let `on_value` return `sorted(value)`",
    frozenset: "It has no order: let `on_value` return `sorted(value)`",
    bytearray: "Let `on_value` return `bytes(value)`",
}


def _named(kind: type) -> str:
    module = namespace_of(kind).get("__module__")
    name = type.__dict__["__qualname__"].__get__(kind)
    return f"{module}.{name}" if type(module) is str and module != "builtins" else str(name)


def plain_key(key: Any) -> Any:
    """Return the plain form of a dict's key."""
    kind = recorded_class(key)
    if kind is tuple:
        return tuple(plain_key(one) for one in tuple.__iter__(key))
    if kind is numpy.generic or kind in (bool, int, float, str, type(None)):
        return plain_atom(key, kind)
    raise Refused(
        f"has a key of type {_named(type(key))}. Keys are strings, numbers, None or tuples of these: let `on_value` "
        "return a dict with such keys"
    )


def plain_items(value: Any) -> list[tuple[Any, Any]]:
    """Return the items of a dict of any class, or the fields of a dataclass."""
    return _entries(value) if dict in parents_of(type(value)) else _fields(value)


def _entries(value: Any) -> list[tuple[Any, Any]]:
    found = snapshot(value)
    if not found and dict.__len__(value):
        raise Refused("keeps being changed by another thread. Let `on_value` return the part you need")
    return found


def _fields(value: Any) -> list[tuple[str, Any]]:
    known: Any = found_in(type(value), "__dataclass_fields__")
    attributes = attributes_of(value)
    return [
        (name, attributes[name] if name in attributes else _slot(value, name))
        for name, field in known.items()
        if field._field_type is dataclasses._FIELD  # type: ignore[attr-defined]  # no class variable
    ]


def _slot(value: Any, name: str) -> Any:
    descriptor: Any = found_in(type(value), name)
    if type(descriptor) is not types.MemberDescriptorType:
        raise Refused(
            f"is a {_named(type(value))} whose field {name!r} is not a plain attribute: reading it would run code. "
            "Let `on_value` return a dict of the fields"
        )
    try:
        return descriptor.__get__(value)
    except AttributeError:  # nothing was assigned to it yet
        raise Refused(f"is a {_named(type(value))} whose field {name!r} has no value yet") from None


def _from_array(array: Any) -> torch.Tensor:
    """Return a tensor of the array's numbers, in memory of its own."""
    if issubclass(type(array), numpy.ma.MaskedArray):
        raise Refused("is a masked array, and a tensor would lose its mask. Let `on_value` return `value.filled(...)`")
    plain = numpy.array(array, copy=True, order="C", subok=False)
    if not plain.dtype.isnative:
        plain = plain.astype(plain.dtype.newbyteorder("="))
    try:
        return torch.from_numpy(plain).clone()  # PyTorch's own memory, as everywhere else
    except TypeError:  # PyTorch's answer for strings, dates, records and objects
        raise Refused(
            f"is a numpy array of dtype {plain.dtype}, which tensors do not have. Let `on_value` return a list"
        ) from None


def _from_scalar(scalar: Any) -> Any:
    plain = numpy.generic.item(scalar)
    if type(plain) not in ATOMS:
        raise Refused(
            f"is a {_named(type(scalar))}, which Python has no number for. Let `on_value` return a number or a string"
        )
    return plain


def part_copied(tensor: torch.Tensor, fetch: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Return the copy of any tensor, or `Refused`; `fetch` brings dense ones from other devices."""
    tensor = inner(tensor)
    with DisableTorchFunction():
        layout, is_nested = fact(tensor, "layout"), fact(tensor, "is_nested")
    if is_nested:
        return [part_copied(one, fetch) for one in _nested_parts(tensor)]
    if layout is not torch.strided:
        return _sparse(tensor, layout, fetch)
    with without_dispatch_modes():
        dense = numbers(tensor)
        return dense.clone(memory_format=torch.contiguous_format) if dense.device.type == "cpu" else fetch(dense)


def inner(tensor: torch.Tensor) -> torch.Tensor:
    """Return this process's own part of a tensor, outside of the wrappers of a transform."""
    kind = type(tensor)
    if kind in PLAIN or not kind.__module__.startswith("torch.distributed."):
        return _unwrapped(tensor)
    part: Any = tensor
    if is_distributed(part):
        part = local_part(part)[0]
    if type(part).__name__ == "AsyncCollectiveTensor":  # a result on its way from the other ranks
        part = part.trigger_wait()
    local: torch.Tensor = part
    return local


def numbers(tensor: torch.Tensor) -> torch.Tensor:
    """Return a dense tensor without history, class and lazy operations; to be called in `without_dispatch_modes`."""
    _check(tensor)
    return bare(tensor).resolve_conj().resolve_neg()


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor in the wrappers of ``torch.func.grad`` and ``jvp``, which has the same values."""
    inside = torch._C._functorch
    while inside.is_functorch_wrapped_tensor(tensor):
        if inside.is_batchedtensor(tensor):
            raise Refused(
                "is a BatchedTensor inside `torch.vmap` and has no values of its own there. "
                "Record a value outside of the transformed function"
            )
        if not inside.is_gradtrackingtensor(tensor):
            raise Refused(
                "is wrapped by `torch.func.functionalize`. Record a value outside of the transformed function"
            )
        tensor = inside.get_unwrapped(tensor)
    return tensor


def _check(tensor: torch.Tensor) -> None:
    """Refuse a tensor behind which there are no numbers."""
    name = type(tensor).__name__
    if fact(tensor, "is_meta") or issubclass(type(tensor), torch._subclasses.FakeTensor):
        raise Refused(
            f"is a {'meta' if type(tensor) in PLAIN else name} tensor of shape {list(fact(tensor, 'shape'))} and has "
            "no values. Record while the model runs on a real device"
        )
    if torch._C.TensorBase.__dict__["is_quantized"].__get__(tensor):
        raise Refused("is a quantized tensor. Let `on_value` return its `int_repr()` or `dequantize()`")
    if (dtype := fact(tensor, "dtype")) not in READABLE_DTYPES:  # PyTorch knows it by name alone
        raise Refused(
            f"is a tensor of {dtype}, whose elements PyTorch cannot read. Let `on_value` return its bytes: "
            "`value.view(torch.uint8)`"
        )
    if torch._is_functional_tensor(tensor) or not _has_numbers(tensor):
        raise Refused(
            f"is of type {name}, which wraps other tensors and has no memory of its own. Let `on_value` return the "
            "tensor inside"
        )


def _has_numbers(tensor: torch.Tensor) -> bool:
    if type(tensor) in PLAIN:
        return True
    storage = torch._C.TensorBase.untyped_storage(tensor)
    try:
        return storage.nbytes() == 0 or storage.data_ptr() != 0
    except RuntimeError:  # PyTorch's answer for a wrapper
        return False


def _nested_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors of a nested one. The jagged kind is a class of PyTorch's, which has to run to give them."""
    if type(tensor) not in PLAIN and not type(tensor).__module__.startswith("torch.nested."):
        raise Refused(f"is a nested tensor of type {type(tensor).__name__}. Let `on_value` return its `unbind()`")
    with torch.no_grad():
        return list(tensor.detach().unbind())


def _sparse(tensor: torch.Tensor, layout: torch.layout, fetch: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    parts = parts_of(tensor)
    if not parts:
        raise Refused(
            f"is a {type(tensor).__name__} of layout {layout}. Let `on_value` return a dense one (`to_dense()`)"
        )
    copied = {method.lstrip("_"): part_copied(part, fetch) for method, part in parts.items()}
    return {"layout": str(layout).removeprefix("torch."), "shape": tuple(tensor.shape), **copied}
