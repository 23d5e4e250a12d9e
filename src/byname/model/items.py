"""Items: reads and replaces the items and attributes of a value, and describes which of them it lacks.

Reading never runs the user's code: attributes come from ``__dict__`` and slots, items from Python's own containers.
"""

from __future__ import annotations

import copy
import types
from collections import deque, namedtuple
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields, is_dataclass
from itertools import chain, islice
from typing import Any

import torch
from torch import nn

from byname.place import ANY, ANY_ITEM, Item, NameSegment, Segment, Segments, Slice, after_a_name, fits, is_wild
from byname.reading.objects import attributes_of, found_in, parents_of, snapshot
from byname.reading.tensor import is_tensor
from byname.table import closest
from byname.text import printable

_DEEPEST = 20


def items_in(value: Any, pattern: Sequence[Segment], without: Sequence[Segments] = ()) -> list[tuple[Segments, Any]]:
    """Return the items of a value that match a pattern and none of `without`, each with its own segments.

    An index from the end stays in the segments: ``[-1]`` is the last item of a list of any length.

    >>> [one for _, one in items_in({"h": [1, 2]}, (Item("h"), Item(-1)))]
    [2]
    """
    found: dict[Segments, tuple[Segments, Any]] = {}
    for segments, counted, one in _items(value, tuple(pattern), (), ()):
        found.setdefault(counted, (segments, one))
    for other in without:
        for _, counted, _ in _items(value, tuple(other), (), ()):
            found.pop(counted, None)
    return list(found.values())


def _items(value: Any, pattern: Segments, at: Segments, counted: Segments) -> Iterator[tuple[Segments, Segments, Any]]:
    """Yield the items, each with its segments as the pattern wrote them and counted from the beginning."""
    if not pattern:
        yield at, counted, value
        return
    first, rest = pattern[0], pattern[1:]
    if first is ANY:
        yield from _items(value, rest, at, counted)
        if len(at) < _DEEPEST:
            for segment, inner in inside(value):
                yield from _items(inner, pattern, (*at, segment), (*counted, segment))
        return
    wanted = _from_the_beginning(first, value)
    fields_of = [*_fields(value)] if isinstance(first, Item) or first is ANY_ITEM else []
    named = _named(value, first) if isinstance(first, NameSegment) and not first.wild else fields_of or inside(value)
    for segment, inner in named:
        if fits(wanted, segment):
            written = segment if wanted is first or isinstance(first, Slice) else first
            if isinstance(segment, Item) and fields_of:  # `['x']` and `.x` are one field
                segment = NameSegment.of(str(segment.key))
            yield from _items(inner, rest, (*at, written), (*counted, segment))


def _from_the_beginning(segment: Segment, value: Any) -> Segment:
    """Return an index from the end of a list, tuple or deque, or a slice of it, as counted from its beginning."""
    for family in (list, tuple, deque) if isinstance(segment, Item | Slice) else ():
        if issubclass(type(value), family):
            return segment.counted(family.__len__(value))  # type: ignore[union-attr]
    return segment


def _named(value: Any, name: NameSegment) -> Iterator[tuple[Segment, Any]]:
    held = _attribute(value, name.plain)
    if held is not _NOTHING:
        yield name, held


def inside(value: Any) -> Iterator[tuple[Segment, Any]]:
    """Yield the items and attributes of a value, each with its segment; nothing for a tensor."""
    if not is_tensor(value):
        yield from _contents(value)
        yield from ((NameSegment.of(name), one) for name, one in _attributes(value))


def _contents(value: Any) -> Iterable[tuple[Segment, Any]]:
    """Return the items of a dict, list, tuple or deque, each with its segment; nothing of another value."""
    kind = type(value)
    if issubclass(kind, dict):
        return ((Item(key), one) for key, one in snapshot(value))
    family = next((one for one in (list, tuple, deque) if issubclass(kind, one)), None)
    return () if family is None else ((Item(number), one) for number, one in enumerate(family.__iter__(value)))


def _attributes(value: Any) -> list[tuple[str, Any]]:
    held = dict(snapshot(attributes_of(value)))
    if issubclass(type(value), nn.Module):
        held = {name: one for registry in _REGISTRIES for name, one in snapshot(held.get(registry) or {})} | {
            name: one for name, one in held.items() if not name.startswith("_")
        }
    return [(name, one) for name, one in held.items() if type(name) is str]


_REGISTRIES = ("_parameters", "_buffers", "_modules")
_NOTHING = object()


def _attribute(value: Any, name: str) -> Any:
    """Return an attribute from an object's ``__dict__``, registries, slots or fields; `_NOTHING` if there is none."""
    held = attributes_of(value)
    if name in held:
        return held[name]
    if issubclass(type(value), nn.Module):
        for registry in _REGISTRIES:
            if name in (held.get(registry) or {}):
                return held[registry][name]
    in_class = found_in(type(value), name)
    if isinstance(in_class, types.MemberDescriptorType | _FIELD):
        try:
            return in_class.__get__(value)
        except AttributeError:  # an empty slot
            return _NOTHING
    return _NOTHING


_FIELD = type(namedtuple("_", "field").field)  # type: ignore[attr-defined]
"""The class of a named tuple's fields."""


def replace_item(value: Any, segments: Sequence[Segment], new: Any) -> Any:
    """Return `value` with one item replaced: in place for lists, dicts and objects; a new one for what is frozen.

    >>> replace_item({"h": (1, 2)}, (Item("h"), Item(0)), 5)
    {'h': (5, 2)}
    """
    if not segments:
        return new
    first, rest = segments[0], segments[1:]
    if isinstance(first, NameSegment) or _has_fields(type(value)):
        name = first.plain if isinstance(first, NameSegment) else str(first.key)  # type: ignore[union-attr]
        held = _attribute(value, name)
        changed = replace_item(held, rest, new)
        return value if changed is held else _with_attribute(value, name, changed)
    assert isinstance(first, Item)
    held = value[first.key]
    changed = replace_item(held, rest, new)
    if changed is held:
        return value
    if isinstance(value, tuple):
        return _tuple_with(value, first.key, changed)  # type: ignore[arg-type]
    value[first.key] = changed
    return value


def _with_attribute(value: Any, name: str, new: Any) -> Any:
    if isinstance(value, nn.Module):
        for registry in _REGISTRIES:
            if name in value.__dict__[registry]:
                value.__dict__[registry][name] = new
                return value
    if isinstance(value, tuple) and name in (names := getattr(type(value), "_fields", ())):
        return _tuple_with(value, names.index(name), new)
    if getattr(getattr(type(value), "__dataclass_params__", None), "frozen", False):
        value = copy.copy(value)
        object.__setattr__(value, name, new)
    else:
        setattr(value, name, new)
    return value


def _tuple_with(value: tuple[Any, ...], at: int, new: Any) -> tuple[Any, ...]:
    items = [*value]
    items[at] = new
    kind = type(value)
    return kind._make(items) if hasattr(kind, "_make") else kind(items)


def tensors_in(value: Any) -> list[tuple[Segments, torch.Tensor]]:
    """Return the tensors in a value, with their segments: the value itself, or those in its containers at any depth."""
    found: list[tuple[Segments, torch.Tensor]] = []
    _collect(value, (), found)
    return found


def _collect(value: Any, at: Segments, found: list[tuple[Segments, torch.Tensor]]) -> None:
    if is_tensor(value):
        found.append((at, value))
    elif len(at) < _DEEPEST:
        for segment, inner in _contents(value) or _fields(value):
            _collect(inner, (*at, segment), found)


def _fields(value: Any) -> Iterator[tuple[Item, Any]]:
    """Yield the fields of a dataclass that is no other container, by their names as keys."""
    names = [one.name for one in fields(type(value))] if _has_fields(type(value)) else []
    held = ((Item(name), _attribute(value, name)) for name in names)
    return (one for one in held if one[1] is not _NOTHING)


def _has_fields(kind: type) -> bool:
    return is_dataclass(kind) and _CONTAINERS.isdisjoint(parents_of(kind))


_CONTAINERS = frozenset({dict, list, tuple, deque})


def describe_missing(value: Any, pattern: Sequence[Segment], path: str) -> str:
    """Return a sentence about a value in which nothing matches a pattern: the missing part, and the items there.

    >>> describe_missing({"h": {"relu": 1, "w": 2}}, (Item("h"), Item("nope")), "forward.cache")
    "`forward.cache['h']` holds a dict without 'nope'; it has 'relu', 'w'"
    """
    at, held, rest = _deepest(value, tuple(pattern))
    where = path + after_a_name(at)
    return f"`{printable(where)}` holds {_without(held, rest, where)}"


_MOST = 1000
"""The number of items that a message looks at."""
_SHOWN = 8


def _deepest(value: Any, pattern: Segments) -> tuple[Segments, Any, Segments]:
    """Return the item that the longest matching start of a pattern leads to, and what is left of the pattern."""
    for length in range(len(pattern) - 1, 0, -1):
        if pattern[length - 1] is ANY:
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
    word = printable(wanted.plain) if isinstance(wanted, NameSegment) else ""
    if is_tensor(value):
        return f"{called}, which has no {f'`{word}`' if word else 'items in a path'}"
    if word and (how := _how_computed(value, word)):
        return f"{called}, whose `{word}` is {how}: byname runs no code in order to look"
    has = _has(value, word)
    if _CONTAINERS.isdisjoint(parents_of(kind)) and (word or not is_dataclass(kind)):
        return f"{called}{f' without `{word}`' if word else ', which has no items in a path'}; {has}"
    if wanted is ANY_ITEM or isinstance(wanted, Slice):
        return f"{called} with no {'such ' if isinstance(wanted, Slice) else ''}items; {has}"
    return f"{called} without {f'attributes `{word}`' if word else _key(wanted)}; {has}{_as_item(value, rest, where)}"


def _has(value: Any, word: str) -> str:
    held = [segment for segment, _ in islice(inside(value) if word else chain(_fields(value), inside(value)), _MOST)]
    items = [one for one in held if isinstance(one, Item)]
    if not items and word:
        near = closest(word, [str(one) for one in held])
        return f"it has {near}" if near else "it has none"
    shown = [_key(one) for one in (items or held)]
    return "it has " + (", ".join(shown[:_SHOWN]) + ", ..." * (len(shown) > _SHOWN) or "none")


def _as_item(value: Any, rest: Segments, where: str) -> str:
    """Return a hint at the path of an item, if the pattern asked for an attribute or for the key ``*``; else empty."""
    wanted = rest[0]
    if isinstance(wanted, NameSegment) and (is_wild(wanted) or items_in(value, (Item(wanted.plain),))):
        item = "*" if is_wild(wanted) else repr(wanted.plain)
    elif isinstance(wanted, Item) and isinstance(wanted.key, str) and is_wild(NameSegment(wanted.key)):
        item = "*"
    else:
        return ""
    return f"; its items are `{printable(f'{where}[{item}]{after_a_name(rest[1:])}')}`"


def _how_computed(value: Any, name: str) -> str:
    """Return how a missing attribute may be computed (a property, ``__getattr__``); empty if it cannot be."""
    kind = type(value)
    if issubclass(kind, nn.Module):
        return ""
    if isinstance(found_in(kind, name), property):
        return "computed by a property"
    return "computed, if at all, by `__getattr__`" if found_in(kind, "__getattr__") is not None else ""


def _key(segment: Segment) -> str:
    """Return the text of a key or attribute name; a key of a foreign class is described by its class."""
    if not isinstance(segment, Item):
        return printable(str(segment))
    if type(segment.key) in (str, int, bool, float, bytes, type(None)):
        return printable(repr(segment.key)[:40])
    return f"a {printable(type(segment.key).__name__)}"
