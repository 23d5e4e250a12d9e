"""Reach: the modules of a model that the beginning of a path leads to, and what is left of the path there."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable, Iterator
from typing import Any, TypeAlias

from torch import nn

from byname.model.module_tree import (
    inside_of,
)
from byname.place import ANY, AnyItem, Item, NameSegment, Segment, Slice, begun, fits, join
from byname.reading.objects import attributes_of

Segments: TypeAlias = tuple[Segment, ...]
Reached: TypeAlias = tuple[str, nn.Module, list[Segments]]
"""A module that the beginning of a pattern leads to: its path, the module, and what is left of the pattern there."""


def modules_reached(model: nn.Module, pattern: Segments) -> Iterator[Reached]:
    """Yield the modules that the beginning of a pattern leads to, in order of registration, and what is left of it."""
    yield from _inside(model, (), begun(pattern, {0}), pattern, ())


def _inside(
    module: nn.Module, at: Segments, reached: set[int], pattern: Segments, around: tuple[int, ...]
) -> Iterator[Reached]:
    yield join(at), module, [pattern[position:] for position in sorted(reached)]
    if id(module) in around:  # a module that holds itself
        return
    for name, child, keys in _children(module, reached, pattern):
        if not isinstance(child, nn.Module):
            continue
        segment = NameSegment.of(name)
        following = begun(pattern, follow(pattern, reached, segment, keys))
        child, wrappers = inside_of(child)
        for wrapper in wrappers:  # which may be in the path as `named_modules()` gives it
            passed = {one + 1 for one in following if one < len(pattern) and pattern[one] == NameSegment.of(wrapper)}
            following = begun(pattern, following | passed)
        if following:
            yield from _inside(child, (*at, segment), following, pattern, (*around, id(module)))


def _children(
    module: nn.Module, reached: set[int], pattern: Segments
) -> Iterator[tuple[str, Any, Collection[Hashable]]]:
    """The children that the pattern may mean next, with the keys of each.

    Where it says a name, that one alone, however many there are.
    """
    children: dict[str, nn.Module | None] = attributes_of(module).get("_modules") or {}
    following = [pattern[position] for position in reached if position < len(pattern)]
    if len(following) == 1 and isinstance(following[0], NameSegment) and not following[0].wild:
        name = following[0].plain
        if name in children:
            yield name, children[name], ()
    elif len(following) == 1 and (name := _at_index(module, children, following[0])):
        yield name, children[name], (following[0].key,)  # type: ignore[union-attr]
    elif following:
        keys = keys_of(module, children)
        for name, child in tuple(children.items()):
            yield name, child, keys.get(name, ())


def _at_index(module: nn.Module, children: Iterable[str], segment: Segment) -> str:
    """The name of the child that an index means in a module that is a list; empty where it means none."""
    if not isinstance(segment, Item) or type(segment.key) is not int:
        return ""
    names = [*children] if isinstance(module, nn.Sequential | nn.ModuleList) else []
    return names[segment.key] if -len(names) <= segment.key < len(names) else ""


def follow(pattern: Segments, reached: set[int], child: NameSegment, keys: Collection[Hashable] = ()) -> set[int]:
    """Return the positions in a pattern that are reached when a child is entered, from the positions before it."""
    following = set()
    for position in reached:
        if position == len(pattern):
            continue
        one = pattern[position]
        if one == ANY:
            following.add(position)
        elif fits(one, child) or is_key(one, keys):
            following.add(position + 1)
    return following


def is_key(item: Segment, keys: Collection[Hashable]) -> bool:
    """Return whether an item of a pattern means one of the keys of a child."""
    if isinstance(item, Slice):  # a child of a list has its position among its keys, counted from both ends
        whole = sorted(key for key in keys if type(key) is int)
        return len(whole) == 2 and whole[1] in item.positions(whole[1] - whole[0])
    return bool(keys) and (isinstance(item, AnyItem) or (isinstance(item, Item) and item.key in keys))


def keys_of(module: nn.Module, held: Iterable[str]) -> dict[str, frozenset[Hashable]]:
    """The keys under which ``module[key]`` gives each of what it holds: an index, also one from the end, or the name.

    Args:
        module: any module.
        held: the names of its children, or of its parameters.
    """
    if isinstance(module, nn.ModuleDict | nn.ParameterDict):
        return {name: frozenset([name, int(name)] if name.isdecimal() else [name]) for name in held}
    if isinstance(module, nn.ParameterList):  # which may hold other things than parameters, too
        size = attributes_of(module).get("_size", 0)
        return {name: frozenset([name, int(name), int(name) - size]) for name in held if name.isdecimal()}
    if isinstance(module, nn.Sequential | nn.ModuleList):
        names = [*held]
        return {name: frozenset([name, at, at - len(names)]) for at, name in enumerate(names)}
    return {}
