"""What do Python's containers hold, and how is one of their items written?"""

from __future__ import annotations

import gc
from collections import OrderedDict, defaultdict, deque
from typing import Any

from byname.naming.children.attributes import held_by_instance
from byname.naming.children.step import ATOMS, Held, Step, item, literal, same, suffix
from byname.reading.objects import plain, reads_plainly, snapshot

__all__ = ["held_by_dict", "held_by_mapping", "held_by_sequence", "held_by_set"]


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


def _entry(found: tuple[object, int, bool]) -> Step:
    """The step to a dict's value: by its key where that can be written down, else by its position."""
    key, position, evaluates = found
    if literal(key):
        return item(key, evaluates=evaluates)
    return Step("item", lambda before: f"[*{before}.values()][{position}]", evaluates, wild=suffix("[*]"))


def _key(found: tuple[int, bool]) -> Step:
    position, evaluates = found
    return Step("item", lambda before: f"[*{before}][{position}]", evaluates, wild=suffix("[*]"))


def held_by_sequence(obj: Any) -> Held:
    """The items of a list, tuple or deque of any class, then its attributes."""
    family = next(family for family in (list, tuple, deque) if issubclass(type(obj), family))
    make = item if type(obj) is family or plain(type(obj), family, "__getitem__") else _indirect_item
    for position, value in enumerate(family.__iter__(obj) if family is not deque else _steady(obj)):
        if type(value) not in ATOMS:
            yield make, position, value
    if type(obj) is not family and family is not tuple:
        yield from held_by_instance(obj)


def _indirect_item(position: int) -> Step:
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
    step = Step("item", lambda before: f"(one of {before})", evaluates=False)
    for value in gc.get_referents(obj):
        if type(value) not in ATOMS and not issubclass(type(value), type):
            yield same, step, value
