"""Reference: one reference from an object to an object that it holds, and its source text."""

from __future__ import annotations

import gc
import keyword
import math
import types
import unicodedata
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import torch

from byname.reading.objects import dict_of, found_in, namespace_of, parents_of, reads_plainly, snapshot


class Reference(NamedTuple):
    """One reference on the path to a tensor.

    Attributes:
        kind: ``attribute``, ``item``, ``parameter``, ``buffer``, ``module``, ``closure``, ``state``, ...
        write, evaluates: a function from the holder's source to the held object's, and whether that evaluates to it.
        label, note: for a variable whose source would be hard to read: its name, and a function from the words for the
            holder to words for the place of the variable. A path through it is shown as the label, the further steps
            and the note.
        enters_wrapper: whether the step enters a wrapper (DDP, compile) that names leave out.
        reads_registry: whether the step reads a private registry such as ``_parameters`` or one of hooks. Directly
            after a step that is left out it would read the wrapper's registry, so such a path is not exact.
        wild: a function that writes the step as the pattern that all similar entries share.
        parameter, key: for a step into an optimizer's state: the id of the parameter whose state it is, and the key.
    """

    kind: str
    write: Callable[[str], str]
    evaluates: bool = True
    label: str = ""
    note: Callable[[str], str] = str
    enters_wrapper: bool = False
    reads_registry: bool = False
    parameter: int | None = None
    key: object = None
    wild: Callable[[str], str] | None = None


_Maker: TypeAlias = Callable[[Any], Reference]

Held: TypeAlias = Iterable[tuple[_Maker, Any, object]]
"""Held objects, each after a function that makes the step to it and the argument of that function. Few steps are ever
made.
"""

ATOMS: frozenset[type] = frozenset(
    {
        *(int, float, complex, bool, str, bytes, bytearray, range, slice, memoryview, type(None), type(...)),
        *(types.ModuleType, types.CodeType),
        *(types.MethodDescriptorType, types.WrapperDescriptorType, types.GetSetDescriptorType),
        *(types.MemberDescriptorType, types.ClassMethodDescriptorType, property, type(NotImplemented)),
        *(torch.dtype, torch.device, torch.Size, torch.layout, torch.memory_format, torch.Generator),
    }
)
"""Types that hold no tensor, or lead out of the user's objects into the whole interpreter."""


def same(step: Reference) -> Reference:
    """Return the step unchanged; the step maker in `Held` for a step that exists already."""
    return step


def remembered(make: _Maker) -> _Maker:
    """Return a step maker that makes the step for each argument once."""
    known: dict[Any, Reference] = {}

    def step(found: Any) -> Reference:
        made = known.get(found)
        if made is None:
            made = known[found] = make(found)
        return made

    return step


def attribute(name: str, evaluates: bool = True, kind: str = "attribute") -> Reference:
    """Return the step ``.name``, or ``getattr`` if the name cannot be written after a dot."""
    if writable(name):
        return Reference(kind, lambda before: f"{before}.{name}", evaluates)
    return Reference(kind, lambda before: f"getattr({before}, {name!r})", evaluates)


def writable(name: str) -> bool:
    """Return whether a name can be written in source as it is: Python normalizes identifiers to NFKC."""
    return name.isidentifier() and not keyword.iskeyword(name) and unicodedata.normalize("NFKC", name) == name


def item(key: object, kind: str = "item", evaluates: bool = True) -> Reference:
    """Return the step ``[key]`` for a key that has a literal form."""
    written = repr(key)
    wild: Callable[[str], str] | None = _ANY_ENTRY if kind == "item" and type(key) is not str else None
    if wild is None and "[*]" in written:  # in a pattern, such a key must differ from an open position
        wild = suffix(f"[{written.replace('[*]', '[' + _STAR + ']')}]")
    return Reference(kind, lambda before: f"{before}[{written}]", evaluates, wild=wild)


_STAR = r"\x2a"


def literal(key: object, depth: int = 8) -> bool:
    """Return whether the source of a key finds the same entry; not for long and deeply nested keys."""
    if type(key) in (str, bytes):
        return len(key) <= 500  # type: ignore[arg-type]
    if type(key) is int:
        return key.bit_length() <= 500
    if type(key) is float:
        return math.isfinite(key)
    if type(key) is tuple:
        return depth > 0 and len(key) <= 16 and all(literal(one, depth - 1) for one in key)
    return type(key) in (bool, type(None))


def suffix(text: str) -> Callable[[str], str]:
    """Return a function that appends a text to the source before it."""
    return lambda before: f"{before}{text}"


_ANY_ENTRY = suffix("[*]")


def held_by_instance(obj: object) -> Held:
    """Return the attributes of an object of any class, from its ``__dict__`` and its slots."""
    return instance_reader(type(obj))(obj)


def instance_reader(kind: type) -> Callable[[Any], Held]:
    """Return the function that lists the attributes of instances of this class; the class is inspected only once."""
    fields, slots, own = dict_of(kind), slots_of(kind), remembered(partial(instance_attribute, kind))

    def held(obj: object) -> Held:
        for one in gc.get_referents(obj):  # reading its __dict__ would create one
            if type(one) not in ATOMS and not issubclass(type(one), type):
                found = in_dict({} if fields is None else fields(obj), own)
                return [*found, *in_slots(slots, obj)] if slots else found
        return ()

    return held


def in_dict(attributes: Any, own: _Maker) -> list[tuple[_Maker, Any, object]]:
    """Return the objects in a ``__dict__``, each after `own`, which makes the step, and its name."""
    return [
        (own, name, value)
        for name, value in (snapshot(attributes) if issubclass(type(attributes), dict) else ())
        if type(value) not in ATOMS and type(name) is str
    ]


def has_attributes(kind: type) -> bool:
    """Return whether objects of a class can have a ``__dict__`` or slots; many types written in C have neither."""
    return _dict_offset(kind) != 0 or any("__slots__" in namespace_of(parent) for parent in parents_of(kind))


_dict_offset: Callable[[type], int] = type.__dict__["__dictoffset__"].__get__


def instance_attribute(kind: type, name: str) -> Reference:
    """Return the step ``.name`` if it reads the instance's attribute, or ``.__dict__['name']`` if a class hides it."""
    plain = reads_plainly(kind)
    hidden = found_in(kind, name)
    if hidden is not None and any(hasattr(type(hidden), method) for method in ("__set__", "__delete__")):
        return Reference("attribute", lambda before: f"{before}.__dict__[{name!r}]", plain)
    return attribute(name, plain)


_Slot: TypeAlias = tuple[Callable[[Any], object], str, bool]
"""A function that reads a slot, the slot's name, and whether ``.name`` reads it too."""


def slots_of(kind: type, *, of_c: bool = False) -> list[_Slot]:
    """Return the slots of a class and its base classes; with `of_c` also the fields of classes written in C."""
    plain = reads_plainly(kind)
    return [
        (descriptor.__get__, name, plain and found_in(kind, name) is descriptor)
        for parent in parents_of(kind)
        if of_c or "__slots__" in namespace_of(parent)
        for name, descriptor in list(namespace_of(parent).items())
        if type(descriptor) is types.MemberDescriptorType and name != "__dict__"
    ]


def in_slots(slots: list[_Slot], obj: object) -> Held:
    for read, name, evaluates in slots:
        try:
            value = read(obj)
        except AttributeError:
            continue
        if type(value) not in ATOMS:
            yield _slot, (name, evaluates), value


def _slot(found: tuple[str, bool]) -> Reference:
    return attribute(*found)
