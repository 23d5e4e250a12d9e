"""How is an object read without running anything of the user's? Past its class, its metaclass and its overrides."""

from __future__ import annotations

import types
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any

__all__ = ["attributes_of", "found_in", "namespace_of", "parents_of", "plain", "reads_plainly", "snapshot"]


def plain(kind: type, family: type, *methods: str) -> bool:
    """Whether a class reads its items as its builtin family does."""
    return all(found_in(kind, method) is found_in(family, method) for method in methods)


def found_in(kind: type, name: str) -> object:
    """What a class defines under a name, without asking its metaclass."""
    return next((space[name] for parent in parents_of(kind) if name in (space := namespace_of(parent))), None)


def namespace_of(kind: type) -> Mapping[str, Any]:
    """What a class itself defines; nothing for a type of C that nobody has made ready, which has no namespace yet."""
    return _namespace(kind) or _NOTHING


def parents_of(kind: type) -> tuple[type, ...]:
    """A class and those it stems from, in the order of lookup; none for a type that nobody has made ready."""
    return _parents(kind) or ()


_namespace: Callable[[type], Mapping[str, Any] | None] = type.__dict__["__dict__"].__get__
_parents: Callable[[type], tuple[type, ...] | None] = type.__dict__["__mro__"].__get__
_NOTHING: Mapping[str, Any] = types.MappingProxyType({})


def snapshot(mapping: Any) -> list[tuple[Any, Any]]:
    """The items of a dict that other threads may be changing."""
    for _ in range(5):
        try:
            return list((OrderedDict if issubclass(type(mapping), OrderedDict) else dict).items(mapping))
        except RuntimeError:
            continue
    return []


def attributes_of(obj: object) -> dict[str, Any]:
    """An object's ``__dict__``, read past any ``__getattribute__`` or property of its class."""
    for parent in parents_of(type(obj)):
        descriptor: Any = namespace_of(parent).get("__dict__")
        if type(descriptor) in (types.GetSetDescriptorType, types.MemberDescriptorType):
            found = descriptor.__get__(obj)
            return found if issubclass(type(found), dict) else {}
    return {}


def reads_plainly(kind: type) -> bool:
    """Whether the class reads attributes as Python does, not by a ``__getattribute__`` that somebody wrote."""
    return type(found_in(kind, "__getattribute__")) is types.WrapperDescriptorType
