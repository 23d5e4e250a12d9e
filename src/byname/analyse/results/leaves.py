"""Where does a figure stand in results? At a place, under classes where there are some, and under its own name."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from byname.errors import BadPathError
from byname.place import Item, Name, Segment, join, parse

__all__ = ["Leaf", "keys_of", "leaves_of", "levels_of", "named", "path_of"]

_GROUPS = ("class", "rest")
"""The keys of `ClassVersusRest`: the samples of a class, and all others."""


class Leaf(NamedTuple):
    """One figure of one place.

    Attributes:
        path: the place.
        labels: the class that it is of, and the group of samples (the class or the rest), where there are such.
        figure: its name.
        value: a number, a tensor, or a dict where it has one for each of several things.
    """

    path: str
    labels: tuple[Any, ...]
    figure: str
    value: Any


def leaves_of(figures: Mapping[str, Mapping[Any, Any]]) -> Iterator[Leaf]:
    """The figures in order: place by place, and class by class."""
    for path, of_place in figures.items():
        yield from _below(path, (), of_place)


def _below(path: str, labels: tuple[Any, ...], found: Mapping[Any, Any]) -> Iterator[Leaf]:
    for key, value in found.items():
        if isinstance(value, Mapping) and (isinstance(key, int) or key in _GROUPS):
            yield from _below(path, (*labels, key), value)
        else:
            yield Leaf(path, labels, str(key), value)


def levels_of(labels: tuple[Any, ...]) -> list[str]:
    """What the labels are called: ``class``, ``group`` for "class" and "rest", and ``class_2`` for classes in it."""
    names = ["group" if label in _GROUPS else "class" for label in labels]
    before: Counter[str] = Counter()
    numbered = []
    for name in names:
        before[name] += 1
        numbered.append(name if before[name] == 1 else f"{name}_{before[name]}")
    return numbered


def named(figure: str, taken: Container[str]) -> str:
    """The name of a column or variable for a figure, where some names are taken by what tells the place."""
    return f"figure.{figure}" if figure in taken else figure


def keys_of(leaves: Iterable[Leaf], places: Iterable[str]) -> list[Any]:
    """The keys of figures that are dicts: those that are places in the order of the model, then the others."""
    found = dict.fromkeys(key for leaf in leaves if isinstance(leaf.value, Mapping) for key in leaf.value)
    first = [place for place in places if place in found]
    return [*first, *(key for key in found if key not in {*first})]


def path_of(leaf: Leaf, name: str) -> Iterator[tuple[str, Any]]:
    """A path for the figure that the path language reads, with its value; one for each entry of a dict.

    Args:
        leaf: the figure.
        name: what stands between the place and the figure.

    >>> dict(path_of(Leaf("fc1", (3,), "dead", 5), "PerClass"))
    {'fc1.PerClass.3.dead': 5}
    >>> dict(path_of(Leaf("fc1", (), "cka", {"layers.2": 0.5}), "Similarity"))
    {"fc1.Similarity.cka['layers.2']": 0.5}
    """
    words = (name, *leaf.labels, leaf.figure)
    segments = [*_segments(leaf.path), *(Name.of(str(word)) for word in words)]
    if isinstance(leaf.value, Mapping):
        for key, value in leaf.value.items():
            yield join([*segments, Item(key if isinstance(key, int) else str(key))]), value
    else:
        yield join(segments), leaf.value


def _segments(path: str) -> tuple[Segment, ...]:
    try:
        return parse(path).segments
    except BadPathError:  # an analyser may call its places as it likes
        return (Name.of(path),)
