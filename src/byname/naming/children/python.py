"""Children of Python's own objects: containers, arrays, errors, frames, futures, and the referents of C objects.

Objects of C code have neither attributes nor slots to read, so the garbage collector lists their referents; a few
classes have a reader of their own. ``asyncio`` is read only if the program has loaded it.
"""

from __future__ import annotations

import contextvars
import functools
import gc
import itertools
import sys
import threading
import types
import weakref
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy
import torch

from byname.naming.children.reference import (
    ATOMS,
    Held,
    Reference,
    attribute,
    held_by_instance,
    in_dict,
    in_slots,
    instance_attribute,
    item,
    literal,
    same,
    slots_of,
    suffix,
)
from byname.reading.frames import is_module_body, locals_of, running_frame_ids
from byname.reading.objects import attributes_of, found_in, namespace_of, plain, reads_plainly, snapshot, steady
from byname.source.location import is_torch

CACHE: Any = type(functools.lru_cache(abs))


def held_by_cache(obj: Any) -> Held:
    """Yield the results that ``functools.lru_cache`` keeps, the arguments they belong to, and the function itself."""
    attributes = attributes_of(obj)
    held = [one for one in gc.get_referents(obj) if one is not attributes]
    cache: Any = [one for one in held if type(one) is dict][-1]  # in a bounded cache the results come first
    keys = {id(key): key for key, _ in snapshot(cache)}
    held = [*(one for one in held if one is not cache), *(value for _, value in snapshot(cache))]
    other = {id(value) for _, value in snapshot(attributes)} | keys.keys()
    for value in held:
        if id(value) not in other and leads_on(value):
            yield same, _RESULT, value
    for key in keys.values():
        for part in key if type(key) is tuple else ():
            if leads_on(part):
                yield same, _ARGUMENT, part
    yield from in_dict(attributes, functools.partial(instance_attribute, type(obj)))


_RESULT = Reference("cache", suffix(" (cached result)"), evaluates=False)
_ARGUMENT = Reference("cache", suffix(" (cached argument)"), evaluates=False)


def leads_on(value: object) -> bool:
    """Return whether an object is worth following: not a number or another atom, a class, or a bare ``object()``."""
    return type(value) not in ATOMS and type(value) is not object and not issubclass(type(value), type)


def held_by_context(obj: contextvars.Context) -> Held:
    for variable, value in obj.items():
        if leads_on(value):
            yield same, _inside(f"({variable.name!r} in ", ")"), value


def _inside(start: str, end: str) -> Reference:
    return Reference("held", lambda before: f"{start}{before}{end}", evaluates=False)


def held_by_variable(obj: contextvars.ContextVar[Any]) -> Held:
    """Yield the value that a context variable has in this context, which no object leads to, or its default."""
    value = obj.get(_UNSET)
    for one in gc.get_referents(obj) if value is _UNSET else [value]:
        if leads_on(one):
            yield same, Reference("held", suffix(".get()")), one


def held_by_threads(obj: Any) -> Held:
    """Yield the values that every thread has in a ``threading.local``, each in a dict that only its thread reads."""
    dicts = [values for held in gc.get_referents(obj) if type(held) is dict for _, values in snapshot(held)]
    for values in dicts:
        for name, value in snapshot(values) if type(values) is dict else ():
            if type(name) is str and leads_on(value):
                yield same, _inside("(", f".{name} of some thread)"), value


_UNSET = object()


def held_by_builtin(obj: Any) -> Held:
    """Yield the referents of an object that has neither attributes nor slots."""
    kind = type(obj)
    if kind in _SILENT:
        return
    queues: Any = sys.modules.get("_queue")
    # A SimpleQueue keeps its items in one list up to Python 3.12; since 3.13 it refers to them directly.
    flat = sys.version_info < (3, 13) and queues is not None and kind is queues.SimpleQueue
    for one in gc.get_referents(obj):
        for value in one if flat and type(one) is list else (one,):
            if leads_on(value):
                yield same, _HELD, value


_SILENT = frozenset({weakref.ref, weakref.ProxyType, weakref.CallableProxyType, types.GenericAlias, object})
"""Types whose referents are not worth following: callbacks and classes."""


_HELD = _inside("(held by ", ")")
"""The step to an object that the holder refers to in an unknown way."""


def held_by_dict(obj: Any) -> Held:
    """Yield the values and keys of a dict of any class, then its attributes."""
    kind = type(obj)
    base = OrderedDict if issubclass(kind, OrderedDict) else defaultdict if issubclass(kind, defaultdict) else dict
    direct = plain(kind, base, "__getitem__", "values", "__iter__") and reads_plainly(kind)
    for position, (key, value) in enumerate(snapshot(obj)):
        if type(value) not in ATOMS:
            yield _entry, (key, position, direct), value
        if type(key) not in ATOMS and not issubclass(type(key), type):
            yield _key, (position, direct), key
    if kind not in (dict, OrderedDict, defaultdict):
        yield from held_by_instance(obj)


def values_in(mapping: dict[Any, Any]) -> list[object]:
    """Return only the objects that `held_by_dict` yields of a plain dict, in its order."""
    found: list[object] = []
    for key, value in snapshot(mapping):
        if type(value) not in ATOMS:
            found.append(value)
        if type(key) is not str and type(key) not in ATOMS and not issubclass(type(key), type):
            found.append(key)
    return found


def _entry(found: tuple[object, int, bool]) -> Reference:
    """Return the step to a dict's value: by its key if that has a literal form, else by its position."""
    key, position, evaluates = found
    if literal(key):
        return item(key, evaluates=evaluates)
    return Reference("item", lambda before: f"[*{before}.values()][{position}]", evaluates, wild=suffix("[*]"))


def _key(found: tuple[int, bool]) -> Reference:
    position, evaluates = found
    return Reference("item", lambda before: f"[*{before}][{position}]", evaluates, wild=suffix("[*]"))


def held_by_sequence(obj: Any) -> Held:
    """Yield the items of a list, tuple or deque of any class, then its attributes."""
    family = next(family for family in (list, tuple, deque) if issubclass(type(obj), family))
    evaluates = type(obj) is family or plain(type(obj), family, "__getitem__")
    make = _at if evaluates else functools.partial(item, evaluates=False)
    for position, value in enumerate(family.__iter__(obj) if family is not deque else steady(deque.__iter__, obj)):
        if type(value) not in ATOMS:
            yield make, position, value
    if type(obj) is not family and family is not tuple:
        yield from held_by_instance(obj)


_at = functools.lru_cache(maxsize=4096)(item)  # every list has the same positions


def held_by_set(obj: Any) -> Held:
    """Yield the members of a set; the step to one names no position, because a set has none."""
    step = Reference("item", lambda before: f"(one of {before})", evaluates=False)
    for value in gc.get_referents(obj):
        if type(value) not in ATOMS and not issubclass(type(value), type):
            yield same, step, value


def held_by_array(obj: Any) -> Held:
    """Yield the owner of an array's memory, the items of an object array, and the attributes of a subclass instance."""
    array: Any = numpy.ndarray
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
        yield from held_by_instance(obj)


_MOST = 10_000
"""The most items that are read from one object array."""


def _item(found: tuple[int, bool, bool]) -> Reference:
    position, flat, evaluates = found
    return Reference("item", suffix(f"[{position}]" if flat else f".flat[{position}]"), evaluates, wild=suffix("[*]"))


def held_by_table(obj: Any) -> Held:
    """Yield the cells of columns of objects in a pandas table or column, and its attributes.

    pandas keeps such columns in arrays that only Cython code leads to: ``_mgr.blocks[0].values``.
    """
    for block in getattr(attributes_of(obj).get("_mgr"), "blocks", ()):
        values = block.values
        if type(values) is numpy.ndarray and values.dtype.kind == "O":
            columns = [*block.mgr_locs] if values.ndim == 2 else [None]
            cells = zip(itertools.product(columns, range(values.shape[-1])), values.flat, strict=True)
            for place, value in itertools.islice(cells, _MOST):
                if type(value) not in ATOMS:
                    yield _cell, place, value
    yield from held_by_instance(obj)


def _cell(place: tuple[int | None, int]) -> Reference:
    column, row = place
    if column is None:
        return Reference("item", suffix(f".iat[{row}]"), wild=suffix("[*]"))
    return Reference("item", suffix(f".iat[{row}, {column}]"), wild=suffix(f".iloc[:, {column}][*]"))


def held_by_error(obj: Any) -> Held:
    """Yield the variables along an error's traceback, its arguments and fields, related errors, and its attributes."""
    kind = type(obj)
    own = reads_plainly(kind)
    traceback: types.TracebackType | None = _TRACEBACK.__get__(obj)
    if traceback is not None:
        evaluates = own and found_in(kind, "__traceback__") is _TRACEBACK
        yield from _variables_along(traceback, ".__traceback__", "the traceback of ", evaluates)
    for name in ("args", "__cause__", "__context__"):
        descriptor: Any = namespace_of(BaseException)[name]
        value = descriptor.__get__(obj)
        if type(value) not in ATOMS:
            yield same, attribute(name, own and found_in(kind, name) is descriptor), value
    yield from in_slots(slots_of(kind, of_c=True), obj)
    if any(type(held) is dict for held in gc.get_referents(obj)):  # reading its __dict__ would create one
        yield from in_dict(attributes_of(obj), functools.partial(instance_attribute, kind))


_TRACEBACK: Any = namespace_of(BaseException)["__traceback__"]


def held_by_frame(obj: types.FrameType) -> Held:
    """Yield the variables of a function that has returned, and its outer frame; running frames are roots instead."""
    running = running_frame_ids()
    if id(obj) in running:
        return
    for name, value in _variables_of(obj, running):
        yield _kept, ("", name, obj.f_code.co_name, "", True), value
    above = obj.f_back
    if above is not None and id(above) not in running:
        yield same, attribute("f_back"), above


def _variables_along(traceback: types.TracebackType, start: str, owner: str, evaluates: bool) -> Held:
    running = running_frame_ids()
    here: types.TracebackType | None = traceback
    depth = 0
    while here is not None:
        frame, source = here.tb_frame, f"{start}{'.tb_next' * depth}.tb_frame"
        for name, value in _variables_of(frame, running):
            yield _kept, (source, name, frame.f_code.co_name, owner, evaluates and depth < _WRITABLE), value
        here, depth = here.tb_next, depth + 1


def _variables_of(frame: types.FrameType, running: frozenset[int]) -> list[tuple[str, Any]]:
    """Return the variables of a frame that is not running; none of PyTorch's own functions or of a module's body."""
    if id(frame) in running or is_torch(frame.f_code.co_filename) or is_module_body(frame):
        return []
    return [(name, value) for name, value in locals_of(frame) if type(value) not in ATOMS]


def _kept(found: tuple[str, str, str, str, bool]) -> Reference:
    frame, name, function, owner, evaluates = found
    return Reference(
        "traceback",
        suffix(f"{frame}.f_locals[{name!r}]"),
        evaluates,
        label=name,
        note=lambda before: f"local of {function}, kept by {owner}{before}",
    )


_WRITABLE = 500
"""The longest chain of ``.tb_next`` that is written as source; Python's parser accepts not many more."""


def futures() -> tuple[Any, ...]:
    """Return the classes of tasks and futures that ``asyncio`` has in C; none before it is loaded."""
    module: Any = sys.modules.get("_asyncio")
    return () if module is None else (module.Future, module.Task)


def held_by_future(obj: Any) -> Held:
    """Yield a task's coroutine, a future's result or error, and its waiters; not the loop, which holds every task."""
    loop = vars(sys.modules["_asyncio"].Future)["_loop"].__get__(obj)
    for one in gc.get_referents(obj):
        if one is not loop and leads_on(one):
            yield same, _IN_TASK, one


_IN_TASK = Reference("task", lambda before: f"(held by {before})", evaluates=False)


def held_by_torch_future(obj: Any) -> Held:
    """Yield the result of a ``torch.futures.Future`` that is done, and its attributes.

    A failed one raises its error, whose traceback is then restored. While another error is being handled no result is
    read, because Python would make that one the context of the error.
    """
    if sys.exception() is None and torch._C.Future.done(obj):
        try:
            value = torch._C.Future.value(obj)
        except Exception as error:  # noqa: BLE001 - any that the future holds
            entry = error.__traceback__
            while entry is not None and is_torch(entry.tb_frame.f_code.co_filename):
                entry = entry.tb_next
            error.__traceback__ = entry
        else:
            yield same, Reference("task", suffix(".value()")), value
    yield from held_by_instance(obj)


OF_PYTHON: tuple[tuple[tuple[type, ...], Callable[[Any], Held]], ...] = (
    ((dict,), held_by_dict),
    ((list, tuple, deque), held_by_sequence),
    ((set, frozenset), held_by_set),
    ((BaseException,), held_by_error),
    ((types.TracebackType,), lambda obj: _variables_along(obj, "", "", True)),
    ((types.FrameType,), held_by_frame),
    ((CACHE,), held_by_cache),
    ((contextvars.Context,), held_by_context),
    ((contextvars.ContextVar,), held_by_variable),
    ((threading.local,), held_by_threads),
    ((numpy.ndarray,), held_by_array),
    ((torch._C.Future,), held_by_torch_future),
)
"""Classes, and the function that lists the children of their instances."""


def of_loaded_libraries() -> Iterator[tuple[tuple[type, ...], Callable[[Any], Held]]]:
    """Yield classes of libraries that the program may have loaded only now, each with the function that reads them."""
    yield futures(), held_by_future
    pandas: Any = sys.modules.get("pandas.core.generic")
    yield () if pandas is None else (pandas.NDFrame,), held_by_table
