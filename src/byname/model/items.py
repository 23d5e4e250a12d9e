"""Which items of a value does a path mean, and how is another put in the place of one?

Reading runs nobody's code: attributes come from ``__dict__`` and slots, items from Python's own containers.
"""

from __future__ import annotations

import types
from collections import deque, namedtuple
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import torch
from torch import nn

from byname.place import Any as AnyDepth
from byname.place import Item, Name, Segment, fits
from byname.reading.objects import attributes_of, found_in, snapshot
from byname.reading.tensor import is_tensor

__all__ = ["Segments", "attribute", "inside", "items_in", "put", "tensors_in"]

Segments: TypeAlias = tuple[Segment, ...]

_DEEPEST = 20


def items_in(value: Any, pattern: Sequence[Segment], without: Sequence[Segments] = ()) -> list[tuple[Segments, Any]]:
    """The items of a value that a pattern means, each with its own segments.

    An index from the end stays one in the segments: the last item is the last, however many there are.

    Args:
        value: a container or an object.
        pattern: segments such as those of ``['k'][0]``, ``[-1]`` or ``.cache.*``.
        without: patterns of items that are left out.
    """
    found: dict[Segments, tuple[Segments, Any]] = {}
    for segments, counted, one in _items(value, tuple(pattern), (), ()):
        found.setdefault(counted, (segments, one))
    for other in without:
        for _, counted, _ in _items(value, tuple(other), (), ()):
            found.pop(counted, None)
    return list(found.values())


def _items(value: Any, pattern: Segments, at: Segments, counted: Segments) -> Iterator[tuple[Segments, Segments, Any]]:
    """The items, each also with its segments counted from the beginning."""
    if not pattern:
        yield at, counted, value
        return
    first, rest = pattern[0], pattern[1:]
    if isinstance(first, AnyDepth):
        yield from _items(value, rest, at, counted)
        if len(at) < _DEEPEST:
            for segment, inner in inside(value):
                yield from _items(inner, pattern, (*at, segment), (*counted, segment))
        return
    wanted = _from_the_beginning(first, value)
    for segment, inner in _named(value, first) if isinstance(first, Name) and not first.wild else inside(value):
        if fits(wanted, segment):
            yield from _items(inner, rest, (*at, segment if wanted is first else first), (*counted, segment))


def _from_the_beginning(segment: Segment, value: Any) -> Segment:
    """An index from the end of a list or tuple as one from its beginning."""
    for family in (list, tuple, deque) if isinstance(segment, Item) else ():
        if issubclass(type(value), family):
            return segment.counted(family.__len__(value))  # type: ignore[union-attr]
    return segment


def _named(value: Any, name: Name) -> Iterator[tuple[Segment, Any]]:
    held = attribute(value, name.plain)
    if held is not _NOTHING:
        yield name, held


def inside(value: Any) -> Iterator[tuple[Segment, Any]]:
    """All that a value holds, by item and by attribute."""
    kind = type(value)
    if is_tensor(value):
        return
    if issubclass(kind, dict):
        yield from ((Item(key), one) for key, one in snapshot(value))
    elif issubclass(kind, list | tuple | deque):
        family = next(one for one in (list, tuple, deque) if issubclass(kind, one))
        yield from ((Item(number), one) for number, one in enumerate(family.__iter__(value)))
    for name, one in _attributes(value):
        yield Name.of(name), one


def _attributes(value: Any) -> list[tuple[str, Any]]:
    held = dict(snapshot(attributes_of(value)))
    if issubclass(type(value), nn.Module):
        held = {name: one for registry in _REGISTRIES for name, one in snapshot(held.get(registry) or {})} | {
            name: one for name, one in held.items() if not name.startswith("_")
        }
    return [(name, one) for name, one in held.items() if type(name) is str]


_REGISTRIES = ("_parameters", "_buffers", "_modules")
_NOTHING = object()


def attribute(value: Any, name: str) -> Any:
    """What an object has under a name in its ``__dict__``, registries, slots or fields; a mark if there is nothing."""
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
        except AttributeError:  # a slot that nothing was put in
            return _NOTHING
    return _NOTHING


_FIELD = type(namedtuple("_", "field").field)  # type: ignore[attr-defined]
"""The class of a named tuple's fields."""


def put(value: Any, segments: Sequence[Segment], new: Any) -> Any:
    """Puts something in the place of an item; the value with it, which is another object where it is a tuple.

    Args:
        value: what `items_in` looked into.
        segments: the segments of the item, from `items_in`.
        new: what is put there.
    """
    if not segments:
        return new
    first, rest = segments[0], segments[1:]
    if isinstance(first, Name):
        held = attribute(value, first.plain)
        changed = put(held, rest, new)
        if changed is not held:
            _set_attribute(value, first.plain, changed)
        return value
    assert isinstance(first, Item)
    held = value[first.key]
    changed = put(held, rest, new)
    if changed is held:
        return value
    if isinstance(value, tuple):
        return _tuple_with(value, first.key, changed)  # type: ignore[arg-type]
    value[first.key] = changed
    return value


def _set_attribute(value: Any, name: str, new: Any) -> None:
    if isinstance(value, nn.Module):
        for registry in _REGISTRIES:
            if name in value.__dict__[registry]:
                value.__dict__[registry][name] = new
                return
    setattr(value, name, new)


def _tuple_with(value: tuple[Any, ...], at: int, new: Any) -> tuple[Any, ...]:
    items = [*value]
    items[at] = new
    kind = type(value)
    return kind._make(items) if hasattr(kind, "_make") else kind(items)


def tensors_in(value: Any) -> list[tuple[Segments, torch.Tensor]]:
    """The tensors in a value: itself, or those in its containers, at any depth."""
    found: list[tuple[Segments, torch.Tensor]] = []
    _collect(value, (), found)
    return found


def _collect(value: Any, at: Segments, found: list[tuple[Segments, torch.Tensor]]) -> None:
    if is_tensor(value):
        found.append((at, value))
    elif len(at) < _DEEPEST and issubclass(type(value), dict | list | tuple | deque):
        for segment, inner in inside(value):
            if isinstance(segment, Item):
                _collect(inner, (*at, segment), found)
