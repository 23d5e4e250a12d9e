"""Which attributes does an object have, in its ``__dict__`` and its slots, and how are they written?"""

from __future__ import annotations

import gc
import types
from collections.abc import Callable

from byname.naming.children.step import ATOMS, Held, Step, attribute, same
from byname.reading.objects import attributes_of, found_in, namespace_of, parents_of, reads_plainly, snapshot

__all__ = [
    "held_by_attributes",
    "held_by_instance",
    "has_attributes",
    "held_in_slots",
    "instance_attribute",
    "own_attribute",
]


def held_by_instance(obj: object) -> Held:
    """The attributes of an object of any class, from its ``__dict__`` and its slots."""
    if any(type(held) not in ATOMS and not issubclass(type(held), type) for held in gc.get_referents(obj)):
        yield from held_by_attributes(obj)


def held_by_attributes(obj: object) -> Held:
    """The same without a first look at whether there is anything to read."""
    kind = type(obj)
    for name, value in snapshot(attributes_of(obj)):
        if type(name) is str and type(value) not in ATOMS:
            yield own_attribute, (kind, name), value
    yield from held_in_slots(obj)


def has_attributes(kind: type) -> bool:
    """Whether objects of a class can have a ``__dict__`` or slots; those of types written in C often have neither."""
    return _dict_offset(kind) != 0 or any("__slots__" in namespace_of(parent) for parent in parents_of(kind))


_dict_offset: Callable[[type], int] = type.__dict__["__dictoffset__"].__get__


def own_attribute(found: tuple[type, str]) -> Step:
    """The same from one argument, as `Held` wants it."""
    return instance_attribute(*found)


def instance_attribute(kind: type, name: str) -> Step:
    """The step ``.name`` where that reads the instance's attribute; ``.__dict__['name']`` where a class hides it."""
    plain = reads_plainly(kind)
    hidden = found_in(kind, name)
    if hidden is not None and any(hasattr(type(hidden), method) for method in ("__set__", "__delete__")):
        return Step("attribute", lambda before: f"{before}.__dict__[{name!r}]", plain)
    return attribute(name, plain)


def held_in_slots(obj: object) -> Held:
    """What an object holds in the slots of its classes."""
    kind = type(obj)
    plain = reads_plainly(kind)
    for parent in parents_of(kind):
        if "__slots__" not in namespace_of(parent):
            continue
        for name, descriptor in list(namespace_of(parent).items()):
            if type(descriptor) is not types.MemberDescriptorType:
                continue
            try:
                value = descriptor.__get__(obj)
            except AttributeError:
                continue
            if type(value) not in ATOMS and name != "__dict__":
                yield same, attribute(name, plain and found_in(kind, name) is descriptor), value
