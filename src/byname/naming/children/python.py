"""Children of Python's own objects: containers, arrays, errors, frames, futures, and what C code holds.

Objects of C code have neither attributes nor slots to read; the collector says what they refer to, and a few of them
say more. Nothing of ``asyncio`` is read before the program has loaded it.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import sys
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from typing import Any

from byname.naming.children.reference import (
    ATOMS,
    Held,
    Reference,
    attribute,
    held_by_attributes,
    held_by_instance,
    item,
    literal,
    own_attribute,
    same,
    suffix,
)
from byname.reading.frames import in_a_module, locals_of, stacks
from byname.reading.objects import attributes_of, found_in, namespace_of, parents_of, plain, reads_plainly, snapshot
from byname.source.location import is_torch

__all__ = [
    "ARRAYS",
    "CACHE",
    "VIEWS",
    "futures",
    "held_by_array",
    "held_by_builtin",
    "held_by_cache",
    "held_by_context",
    "held_by_dict",
    "held_by_error",
    "held_by_frame",
    "held_by_future",
    "held_by_mapping",
    "held_by_sequence",
    "held_by_set",
    "held_by_threads",
    "held_by_traceback",
    "held_by_variable",
    "held_by_view",
    "held_inside",
    "leads_on",
    "values_in",
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
_RESULT = Reference("cache", suffix(" (cached result)"), evaluates=False)
_ARGUMENT = Reference("cache", suffix(" (cached argument)"), evaluates=False)


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


def _value_in_context(name: str) -> Reference:
    return Reference("held", lambda before: f"({name!r} in {before})", evaluates=False)


def held_by_variable(obj: contextvars.ContextVar[Any]) -> Held:
    """The value that a context variable has at the moment, or by default."""
    value = obj.get(_UNSET)
    for one in gc.get_referents(obj) if value is _UNSET else [value]:
        if leads_on(one):
            yield same, Reference("held", suffix(".get()")), one


_UNSET = object()


def held_by_threads(obj: Any) -> Held:
    """What every thread has in a ``threading.local``: its own dict, which only that thread reads as attributes."""
    dicts = [values for held in gc.get_referents(obj) if type(held) is dict for _, values in snapshot(held)]
    for values in dicts:
        for name, value in snapshot(values) if type(values) is dict else ():
            if type(name) is str and leads_on(value):
                yield _of_a_thread, name, value


def _of_a_thread(name: str) -> Reference:
    return Reference("held", lambda before: f"({before}.{name} of some thread)", evaluates=False)


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


_HELD = Reference("held", lambda before: f"(held by {before})", evaluates=False)


def held_by_dict(obj: Any) -> Held:
    """The values of a dict of any class, then its attributes."""
    kind = type(obj)
    base = OrderedDict if issubclass(kind, OrderedDict) else defaultdict if issubclass(kind, defaultdict) else dict
    yield from held_by_mapping(obj, plain(kind, base, "__getitem__", "values", "__iter__") and reads_plainly(kind))
    if kind not in (dict, OrderedDict, defaultdict):
        yield from held_by_instance(obj)


def held_by_mapping(mapping: Any, direct: bool) -> Held:
    """The values of a dict, and its keys; `direct` where the holder's own ``[key]`` reads that dict."""
    for position, (key, value) in enumerate(snapshot(mapping)):
        if type(value) not in ATOMS:
            yield _entry, (key, position, direct), value
        if type(key) not in ATOMS and not issubclass(type(key), type):
            yield _key, (position, direct), key


def values_in(mapping: dict[Any, Any]) -> list[object]:
    """The objects alone that `held_by_mapping` gives, in its order."""
    found: list[object] = []
    for key, value in snapshot(mapping):
        if type(value) not in ATOMS:
            found.append(value)
        if type(key) is not str and type(key) not in ATOMS and not issubclass(type(key), type):
            found.append(key)
    return found


def _entry(found: tuple[object, int, bool]) -> Reference:
    """The step to a dict's value: by its key where that can be written down, else by its position."""
    key, position, evaluates = found
    if literal(key):
        return item(key, evaluates=evaluates)
    return Reference("item", lambda before: f"[*{before}.values()][{position}]", evaluates, wild=suffix("[*]"))


def _key(found: tuple[int, bool]) -> Reference:
    position, evaluates = found
    return Reference("item", lambda before: f"[*{before}][{position}]", evaluates, wild=suffix("[*]"))


def held_by_sequence(obj: Any) -> Held:
    """The items of a list, tuple or deque of any class, then its attributes."""
    family = next(family for family in (list, tuple, deque) if issubclass(type(obj), family))
    make = item if type(obj) is family or plain(type(obj), family, "__getitem__") else _indirect_item
    for position, value in enumerate(family.__iter__(obj) if family is not deque else _steady(obj)):
        if type(value) not in ATOMS:
            yield make, position, value
    if type(obj) is not family and family is not tuple:
        yield from held_by_instance(obj)


def _indirect_item(position: int) -> Reference:
    return item(position, evaluates=False)


def _steady(obj: deque[Any]) -> list[Any]:
    for _ in range(5):
        try:
            return list(deque.__iter__(obj))
        except RuntimeError:
            continue
    return []


def held_by_set(obj: Any) -> Held:
    """The members of a set, which have no place in it."""
    step = Reference("item", lambda before: f"(one of {before})", evaluates=False)
    for value in gc.get_referents(obj):
        if type(value) not in ATOMS and not issubclass(type(value), type):
            yield same, step, value


_numpy: Any = sys.modules.get("numpy")  # PyTorch has loaded it, where it is there at all
ARRAYS: tuple[Any, ...] = () if _numpy is None else (_numpy.ndarray,)


def held_by_array(obj: Any) -> Held:
    """The owner of an array's memory, the items of an array of objects, and what the program wrote on the array."""
    array = _numpy.ndarray
    base = array.base.__get__(obj)
    if base is not None and type(base) not in ATOMS:
        yield same, attribute("base", found_in(type(obj), "base") is array.base), base
    if array.dtype.__get__(obj).kind == "O":
        evaluates = plain(type(obj), array, "flat", "__getattribute__")
        for position in range(min(array.size.__get__(obj), _MOST)):
            value = array.item(obj, position)
            if type(value) not in ATOMS:
                yield _item, (position, array.ndim.__get__(obj) == 1, evaluates), value
    if type(obj) is not array:
        yield from held_by_attributes(obj)


_MOST = 10_000
"""How many objects of one array are looked at."""


def _item(found: tuple[int, bool, bool]) -> Reference:
    position, flat, evaluates = found
    return Reference("item", suffix(f"[{position}]" if flat else f".flat[{position}]"), evaluates, wild=suffix("[*]"))


def held_by_error(obj: Any) -> Held:
    """The variables along an error's traceback, its arguments and fields, other errors, and its attributes."""
    kind = type(obj)
    own = reads_plainly(kind)
    traceback = _traceback_of(obj)
    if traceback is not None:
        evaluates = own and found_in(kind, "__traceback__") is _TRACEBACK
        yield from _variables_along(traceback, ".__traceback__", "the traceback of ", evaluates)
    for name in ("args", "__cause__", "__context__"):
        descriptor: Any = namespace_of(BaseException)[name]
        value = descriptor.__get__(obj)
        if type(value) not in ATOMS:
            yield same, attribute(name, own and found_in(kind, name) is descriptor), value
    for parent in parents_of(kind):
        for name, field in list(namespace_of(parent).items()):
            if type(field) is types.MemberDescriptorType:
                yield from _field(obj, name, field, own and found_in(kind, name) is field)
    if any(type(held) is dict for held in gc.get_referents(obj)):  # asking for the dict would make one
        for name, value in snapshot(attributes_of(obj)):
            if type(name) is str and type(value) not in ATOMS:
                yield own_attribute, (kind, name), value


_TRACEBACK: Any = namespace_of(BaseException)["__traceback__"]


def _traceback_of(error: Any) -> types.TracebackType | None:
    found: types.TracebackType | None = _TRACEBACK.__get__(error)
    return found


def _field(obj: Any, name: str, field: types.MemberDescriptorType, evaluates: bool) -> Held:
    """What an error has in a field of its class: the value of a StopIteration, the errors of a group, a slot."""
    try:
        value = field.__get__(obj)
    except AttributeError:
        return
    if type(value) not in ATOMS and type(value) is not dict:
        yield same, attribute(name, evaluates), value


def held_by_traceback(obj: types.TracebackType) -> Held:
    """The variables of the functions that a traceback tells of."""
    return _variables_along(obj, "", "", True)


def held_by_frame(obj: types.FrameType) -> Held:
    """The variables of a function that has returned, and of those above it that have; running ones are roots."""
    running = stacks()
    if id(obj) in running:
        return
    for name, value in _variables_of(obj, running):
        yield _kept_by_frame, (name, obj.f_code.co_name), value
    above = obj.f_back
    if above is not None and id(above) not in running:
        yield same, attribute("f_back"), above


def _variables_along(traceback: types.TracebackType, start: str, owner: str, evaluates: bool) -> Held:
    running = stacks()
    here: types.TracebackType | None = traceback
    depth = 0
    while here is not None:
        frame = here.tb_frame
        for name, value in _variables_of(frame, running):
            yield _kept_by_traceback, (name, frame.f_code.co_name, depth, start, owner, evaluates), value
        here, depth = here.tb_next, depth + 1


def _variables_of(frame: types.FrameType, running: frozenset[int]) -> list[tuple[str, Any]]:
    """The variables of a frame at rest; none of PyTorch's own functions."""
    if id(frame) in running or is_torch(frame.f_code.co_filename) or in_a_module(frame):
        return []
    return [(name, value) for name, value in locals_of(frame) if type(value) not in ATOMS]


def _kept_by_traceback(found: tuple[str, str, int, str, str, bool]) -> Reference:
    name, function, depth, start, owner, evaluates = found
    source = f"{start}{'.tb_next' * depth}.tb_frame.f_locals[{name!r}]"
    return Reference(
        "traceback",
        suffix(source),
        evaluates and depth < _WRITABLE,
        label=name,
        note=lambda before: f"local of {function}, kept by {owner}{before}",
    )


_WRITABLE = 500
"""How many ``.tb_next`` Python's parser takes in a row, and more than anybody reads."""


def _kept_by_frame(found: tuple[str, str]) -> Reference:
    name, function = found
    source = suffix(f".f_locals[{name!r}]")
    return Reference("traceback", source, label=name, note=lambda before: f"local of {function}, kept by {before}")


def futures() -> tuple[Any, ...]:
    """The classes of tasks and futures, as ``asyncio`` has them in C; none before it is loaded."""
    module: Any = sys.modules.get("_asyncio")
    return () if module is None else (module.Future, module.Task)


def held_by_future(obj: Any) -> Held:
    """A task's coroutine, a future's result or error, and who waits for it; not the loop, which holds every task."""
    tasks: Any = sys.modules["_asyncio"]
    known = [_private(obj, tasks.Future, "_loop")]
    if issubclass(type(obj), tasks.Task):
        coroutine = _private(obj, tasks.Task, "_coro")
        known.append(coroutine)
        if leads_on(coroutine):
            yield same, Reference("task", suffix(".get_coro()"), _reads(obj, "get_coro")), coroutine
    for name in ("_result", "_exception"):
        value = _private(obj, tasks.Future, name)
        known.append(value)
        if leads_on(value):
            yield same, attribute(name, _reads(obj, name)), value
    for one in gc.get_referents(obj):
        if not any(one is value for value in known):
            yield from held_inside(one)


def _reads(obj: object, name: str) -> bool:
    """Whether an attribute of a future is the one that its class in C has."""
    kind = type(obj)
    own = next(parent for parent in parents_of(kind) if any(parent is future for future in futures()))
    return reads_plainly(kind) and found_in(kind, name) is found_in(own, name)


def _private(obj: object, kind: type, name: str) -> Any:
    """One of a future's own fields, which asking for its result would mark as read; None before it has been set up."""
    try:
        return vars(kind)[name].__get__(obj)
    except RuntimeError:
        return None
