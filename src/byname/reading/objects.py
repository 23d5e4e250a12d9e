"""Objects: any object, read without running the user's code, past its class, its metaclass and its overrides."""

from __future__ import annotations

import gc
import types
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from itertools import chain, compress, repeat
from operator import call, is_not
from typing import Any, TypeVar

from byname.reading.quiet import collection_paused

T = TypeVar("T")


def heap() -> list[Any]:
    """Return the objects that the garbage collector lists, except plain tuples, which are found by their holders."""
    return _listed(lambda kinds: map(is_not, kinds, repeat(tuple)))


def living(*families: type) -> list[Any]:
    """Return the objects of some classes, or of classes derived from them, that the garbage collector lists."""
    return _listed(lambda kinds: map(issubclass, kinds, repeat(families)))  # asks only the metaclass of the families


def _listed(choose: Callable[[Iterable[type]], Iterable[bool]]) -> list[Any]:
    """Return the objects that the collector lists and whose class is chosen; plain tuples never are.

    The collector also lists tuples that other threads are still building, and ``tuple(...)`` raises a SystemError while
    another reference to its tuple exists (CPython issue 59313). So all other objects are dropped before another thread
    can run: the three steps are one unpacking of C iterators.
    """
    listed: list[Any] = []
    chosen = compress(listed, choose(map(type, listed)))
    steps: Any = map(listed.extend, map(gc.get_objects, [None])), map(list, [chosen]), map(call, [listed.clear])
    with collection_paused():
        _, kept, _ = chain.from_iterable(steps)
    found: list[Any] = kept
    return found


def plain(kind: type, family: type, *methods: str) -> bool:
    """Return whether a class has these methods unchanged from a builtin family such as ``dict``."""
    return all(found_in(kind, method) is found_in(family, method) for method in methods)


def found_in(kind: type, name: str) -> object:
    """Return the attribute that a class defines or inherits, without asking its metaclass; None if it has none."""
    for parent in parents_of(kind):
        space = namespace_of(parent)
        if name in space:
            return space[name]
    return None


def namespace_of(kind: type) -> Mapping[str, Any]:
    """Return the attributes that a class itself defines.

    A C type that was never made ready (``PyType_Ready``) has no namespace yet, and so defines nothing.
    """
    return _namespace(kind) or _NOTHING


name_of_class: Callable[[type], str] = type.__dict__["__name__"].__get__
"""Returns the name of a class, without calling a method of its metaclass."""


def parents_of(kind: type) -> tuple[type, ...]:
    """Return a class and its base classes in lookup order; an empty tuple for a C type that was never made ready."""
    return _parents(kind) or ()


_namespace: Callable[[type], Mapping[str, Any] | None] = type.__dict__["__dict__"].__get__
_parents: Callable[[type], tuple[type, ...] | None] = type.__dict__["__mro__"].__get__
_NOTHING: Mapping[str, Any] = types.MappingProxyType({})


def snapshot(mapping: Any) -> list[tuple[Any, Any]]:
    """Return the items of a dict that other threads may be changing; an empty list if it changes too fast."""
    kind = type(mapping)
    return steady(OrderedDict.items if kind is not dict and issubclass(kind, OrderedDict) else dict.items, mapping)


def steady(read: Callable[[Any], Iterable[T]], changing: Any) -> list[T]:
    """Return the items of a container that other threads may be changing; an empty list if it changes too fast."""
    for _ in range(5):
        try:
            return list(read(changing))
        except RuntimeError:
            continue
    return []


def attributes_of(obj: object) -> dict[str, Any]:
    """Return an object's ``__dict__``, past any ``__getattribute__`` or property of its class; empty if it has none."""
    read = dict_of(type(obj))
    found: Any = None if read is None else read(obj)
    return found if issubclass(type(found), dict) else {}


def dict_of(kind: type) -> Callable[[Any], Any] | None:
    """Return a function that reads the ``__dict__`` of instances of a class; None if they have none."""
    for parent in parents_of(kind):
        descriptor: Any = namespace_of(parent).get("__dict__")
        if type(descriptor) in (types.GetSetDescriptorType, types.MemberDescriptorType):
            return descriptor.__get__  # type: ignore[no-any-return]
    return None


def reads_plainly(kind: type) -> bool:
    """Return whether a class reads attributes as Python does, and has no ``__getattribute__`` written in Python."""
    return type(found_in(kind, "__getattribute__")) is types.WrapperDescriptorType
