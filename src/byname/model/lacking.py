"""What to say where a value has no item of the kind that a path asks for: what it is, and what it holds."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from itertools import islice
from typing import Any

from torch import nn

from byname.model.items import Segments, inside, items_in
from byname.place import Any as AnyDepth
from byname.place import AnyItem, Item, Name, Segment, is_wild, join
from byname.reading.objects import found_in, parents_of
from byname.reading.tensor import is_tensor
from byname.table import closest, printable

__all__ = ["lacking"]


def lacking(value: Any, pattern: Sequence[Segment], path: str) -> str:
    """What a value holds that has none of the items that a pattern means, in a sentence.

    >>> lacking({"h": {"relu": 1, "w": 2}}, (Item("h"), Item("nope")), "forward.cache")
    "`forward.cache['h']` holds a dict without 'nope'; it has 'relu', 'w'"

    Args:
        value: the value.
        pattern: as for `items_in`; nothing of the value fits it.
        path: of the value.
    """
    at, held, rest = _deepest(value, tuple(pattern))
    where = path + _joined(at)
    return f"`{printable(where)}` holds {_without(held, rest, where)}"


_MOST = 1000
"""Items that are looked at."""
_SHOWN = 8


def _deepest(value: Any, pattern: Segments) -> tuple[Segments, Any, Segments]:
    """The item to which the longest beginning of a pattern leads, and what is left of the pattern there."""
    for length in range(len(pattern) - 1, 0, -1):
        if isinstance(pattern[length - 1], AnyDepth):
            continue
        found = items_in(value, pattern[:length])
        if found:
            at, held = found[0]
            return at, held, pattern[length:]
    return (), value, pattern


def _without(value: Any, rest: Segments, where: str) -> str:
    if value is None:
        return "None"
    kind, wanted = type(value), rest[0]
    called = f"{'an' if kind.__name__[:1].lower() in 'aeiou' else 'a'} {printable(kind.__name__)}"
    word = printable(wanted.plain) if isinstance(wanted, Name) else ""
    if is_tensor(value):
        return f"{called}, which has no {f'`{word}`' if word else 'items in a path'}"
    if word and (how := _how_computed(value, word)):
        return f"{called}, whose `{word}` is {how}: byname runs no code in order to look"
    has = _has(value, word)
    if not {dict, list, tuple, deque}.intersection(parents_of(kind)):
        return f"{called} without {f'`{word}`' if word else _key(wanted)}; {has}"
    if isinstance(wanted, AnyItem):
        return f"{called} with no items; {has}"
    return f"{called} without {f'attributes `{word}`' if word else _key(wanted)}; {has}{_as_item(wanted, rest, where)}"


def _has(value: Any, word: str) -> str:
    held = [segment for segment, _ in islice(inside(value), _MOST)]
    items = [one for one in held if isinstance(one, Item)]
    if not items and word:
        near = closest(word, [str(one) for one in held])
        return f"it has {near}" if near else "it has none"
    shown = [_key(one) for one in (items or held)]
    return "it has " + (", ".join(shown[:_SHOWN]) + ", ..." * (len(shown) > _SHOWN) or "none")


def _as_item(wanted: Segment, rest: Segments, where: str) -> str:
    """How an item is asked for, where a path has asked for an attribute or for the key ``*``."""
    if isinstance(wanted, Name):
        item = "*" if is_wild(wanted) else repr(wanted.plain)
    elif isinstance(wanted, Item) and isinstance(wanted.key, str) and is_wild(Name(wanted.key)):
        item = "*"
    else:
        return ""
    return f"; its items are `{printable(f'{where}[{item}]{_joined(rest[1:])}')}`"


def _how_computed(value: Any, name: str) -> str:
    """How an attribute may come about that is not there as a value; empty where it cannot."""
    kind = type(value)
    if issubclass(kind, nn.Module):
        return ""
    if isinstance(found_in(kind, name), property):
        return "computed by a property"
    return "computed, if at all, by `__getattr__`" if found_in(kind, "__getattr__") is not None else ""


def _key(segment: Segment) -> str:
    """An item's key or an attribute's name, for messages; a key of a class of somebody else's is told by its class."""
    if not isinstance(segment, Item):
        return printable(str(segment))
    if type(segment.key) in (str, int, bool, float, bytes, type(None)):
        return printable(repr(segment.key)[:40])
    return f"a {printable(type(segment.key).__name__)}"


def _joined(segments: Segments) -> str:
    text = join(segments)
    return f".{text}" if text and not text.startswith("[") else text
