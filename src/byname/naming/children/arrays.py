"""What does a NumPy array hold? The tensor or array whose memory it shares, and the objects it is made of."""

from __future__ import annotations

import sys
from typing import Any

from byname.naming.children.attributes import held_by_attributes
from byname.naming.children.step import ATOMS, Held, Step, attribute, same, suffix
from byname.reading.objects import found_in, plain

__all__ = ["ARRAYS", "held_by_array"]

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


def _item(found: tuple[int, bool, bool]) -> Step:
    position, flat, evaluates = found
    return Step("item", suffix(f"[{position}]" if flat else f".flat[{position}]"), evaluates, wild=suffix("[*]"))
