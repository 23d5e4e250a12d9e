"""What do the objects hold that Python and its libraries write in C: caches, queues, contexts, futures, iterators?

They have neither attributes nor slots to read; the collector says what they refer to, and a few of them say more.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import sys
import types
import weakref
from collections import OrderedDict, defaultdict
from typing import Any

from byname.naming.children.attributes import own_attribute
from byname.naming.children.containers import held_by_mapping
from byname.naming.children.step import ATOMS, Held, Step, attribute, same, suffix
from byname.reading.objects import attributes_of, snapshot

__all__ = [
    "CACHE",
    "VIEWS",
    "held_by_builtin",
    "held_by_cache",
    "held_by_context",
    "held_by_threads",
    "held_by_variable",
    "held_by_view",
    "held_inside",
    "leads_on",
]

CACHE: Any = type(functools.lru_cache(abs))
VIEWS: Any = (types.MappingProxyType, type({}.keys()), type({}.values()), type({}.items()))


def held_by_cache(obj: Any) -> Held:
    """The results that ``functools.lru_cache`` keeps, the arguments they belong to, and the function itself."""
    attributes = attributes_of(obj)
    held = [one for one in gc.get_referents(obj) if one is not attributes]
    cache: Any = [one for one in held if type(one) is dict][-1]  # the results of a bounded cache stand before it
    keys = {id(key): key for key, _ in snapshot(cache)}
    held = [*(one for one in held if one is not cache), *(value for _, value in snapshot(cache))]
    other = {id(value) for _, value in snapshot(attributes)} | keys.keys()
    for value in held:
        if id(value) not in other and type(value) is not _LINK and leads_on(value):
            yield same, _RESULT, value
    for key in keys.values():
        for part in key if type(key) is tuple else ():
            if leads_on(part):
                yield same, _ARGUMENT, part
    for name, value in snapshot(attributes):
        if type(name) is str and type(value) not in ATOMS:
            yield own_attribute, (type(obj), name), value


def _type_of_links() -> type:
    """The type of what a bounded cache has in its dict instead of the results."""
    bounded = functools.lru_cache(maxsize=1)(abs)
    bounded(1)
    cache: Any = next(one for one in gc.get_referents(bounded) if type(one) is dict)
    return type(cache[1])


_LINK = _type_of_links()
_RESULT = Step("cache", suffix(" (cached result)"), evaluates=False)
_ARGUMENT = Step("cache", suffix(" (cached argument)"), evaluates=False)


def leads_on(value: object) -> bool:
    """Whether an object is worth a step: no number, no class, nothing without any content."""
    return type(value) not in ATOMS and type(value) is not object and not issubclass(type(value), type)


def held_by_view(obj: Any) -> Held:
    """The dict that a view of it, or a proxy for it, keeps alive."""
    proxy = type(obj) is types.MappingProxyType
    for mapping in gc.get_referents(obj):
        if type(mapping) not in (dict, OrderedDict, defaultdict):
            yield from held_inside(mapping)
        elif proxy:
            yield from held_by_mapping(mapping, direct=True)
        else:
            yield same, attribute("mapping"), mapping


def held_by_context(obj: contextvars.Context) -> Held:
    """The values of a context's variables."""
    for variable, value in obj.items():
        if leads_on(value):
            yield _value_in_context, variable.name, value


def _value_in_context(name: str) -> Step:
    return Step("held", lambda before: f"({name!r} in {before})", evaluates=False)


def held_by_variable(obj: contextvars.ContextVar[Any]) -> Held:
    """The value that a context variable has at the moment, or by default."""
    value = obj.get(_UNSET)
    for one in gc.get_referents(obj) if value is _UNSET else [value]:
        if leads_on(one):
            yield same, Step("held", suffix(".get()")), one


_UNSET = object()


def held_by_threads(obj: Any) -> Held:
    """What every thread has in a ``threading.local``: its own dict, which only that thread reads as attributes."""
    dicts = [values for held in gc.get_referents(obj) if type(held) is dict for _, values in snapshot(held)]
    for values in dicts:
        for name, value in snapshot(values) if type(values) is dict else ():
            if type(name) is str and leads_on(value):
                yield _of_a_thread, name, value


def _of_a_thread(name: str) -> Step:
    return Step("held", lambda before: f"({before}.{name} of some thread)", evaluates=False)


def held_by_builtin(obj: Any) -> Held:
    """What an object without attributes and slots refers to."""
    kind = type(obj)
    if kind in _SILENT:
        return
    queues: Any = sys.modules.get("_queue")
    # It keeps its items in one list until Python 3.12, and has them itself since 3.13.
    flat = sys.version_info < (3, 13) and queues is not None and kind is queues.SimpleQueue
    for one in gc.get_referents(obj):
        for value in one if flat and type(one) is list else (one,):
            yield from held_inside(value)


_SILENT = frozenset({weakref.ref, weakref.ProxyType, weakref.CallableProxyType, types.GenericAlias, object})
"""Types that hold nothing worth a step: what they refer to is a callback, or a class."""


def held_inside(value: object) -> Held:
    """The step to something of which no more is known than that it is held."""
    if leads_on(value):
        yield same, _HELD, value


_HELD = Step("held", lambda before: f"(held by {before})", evaluates=False)
