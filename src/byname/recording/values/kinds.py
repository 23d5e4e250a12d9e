"""As what is a value recorded? Each type is read as the plain one that it is built on, past all its own code."""

from __future__ import annotations

import dataclasses
import types
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy
import torch

from byname.reading.objects import attributes_of, found_in, namespace_of, parents_of

__all__ = ["ATOMS", "Refused", "kind_of", "plain_atom", "plain_items", "plain_key"]

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


def kind_of(value: object) -> type:
    """The class as which a value is recorded; its own where there is none."""
    kind = type(value)
    if kind in _KNOWN:
        return kind
    if issubclass(kind, numpy.generic):  # before float, of which numpy.float64 is a kind
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
    """The plain form of a value of this kind that is neither a tensor nor a dict, list or tuple."""
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
    "Recordings hold tensors, numbers, strings, None, and dicts, lists and tuples of these: record a part of it by its "
    "own path, or let `on_value` return something of these types"
)
_ADVICE: dict[type, str] = {
    set: "It has no order: let `on_value` return `sorted(value)`",
    frozenset: "It has no order: let `on_value` return `sorted(value)`",
    bytearray: "Let `on_value` return `bytes(value)`",
}


def _named(kind: type) -> str:
    """A class with its module, without asking its metaclass."""
    module = namespace_of(kind).get("__module__")
    name = type.__dict__["__qualname__"].__get__(kind)
    return f"{module}.{name}" if type(module) is str and module != "builtins" else str(name)


def plain_key(key: Any) -> Any:
    """The plain form of a dict's key."""
    kind = kind_of(key)
    if kind is tuple:
        return tuple(plain_key(one) for one in tuple.__iter__(key))
    if kind is numpy.generic or kind in (bool, int, float, str, type(None)):
        return plain_atom(key, kind)
    raise Refused(
        f"has a key of type {_named(type(key))}. Keys are strings, numbers, None or tuples of these: let `on_value` "
        "return a dict with such keys"
    )


def plain_items(value: Any) -> list[tuple[Any, Any]]:
    """The items of a dict of any class, or the fields of a dataclass."""
    return _entries(value) if dict in parents_of(type(value)) else _fields(value)


def _entries(value: Any) -> list[tuple[Any, Any]]:
    read: Any = OrderedDict.items if OrderedDict in parents_of(type(value)) else dict.items
    for _ in range(5):
        try:
            return list(read(value))
        except RuntimeError:  # another thread has put something in meanwhile
            continue
    raise Refused("is being changed by another thread all the time. Let `on_value` return what is wanted of it")


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
            f"is a {_named(type(value))} whose field {name!r} is no plain attribute: to read it would run code. Let "
            "`on_value` return a dict of the fields"
        )
    try:
        return descriptor.__get__(value)
    except AttributeError:  # nothing was assigned to it yet
        raise Refused(f"is a {_named(type(value))} whose field {name!r} has no value yet") from None


def _from_array(array: Any) -> torch.Tensor:
    """A tensor of the array's numbers, in memory of its own."""
    if issubclass(type(array), numpy.ma.MaskedArray):
        raise Refused(
            "is a masked array, of which a tensor would lose the mask. Let `on_value` return `value.filled(...)`"
        )
    plain = numpy.array(array, copy=True, order="C", subok=False)
    if not plain.dtype.isnative:
        plain = plain.astype(plain.dtype.newbyteorder("="))
    try:
        return torch.from_numpy(plain).clone()  # PyTorch's own memory, as everywhere else
    except TypeError:  # PyTorch's answer for strings, dates, records and objects
        raise Refused(
            f"is a numpy array of dtype {plain.dtype}, for which there are no tensors. Let `on_value` return a list"
        ) from None


def _from_scalar(scalar: Any) -> Any:
    plain = numpy.generic.item(scalar)
    if type(plain) not in ATOMS:
        raise Refused(
            f"is a {_named(type(scalar))}, for which Python has no number. Let `on_value` return a number or a string"
        )
    return plain
