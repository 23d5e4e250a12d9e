"""Tables: the figures of results, one after the other, and as the rows of a table."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from byname.errors import BadPathError
from byname.place import Item, NameSegment, Segment, join, parse
from byname.table import Row
from byname.text import numbered

_GROUPS = ("class", "rest")
"""The keys of `ClassVersusRest`: the samples of a class, and all others."""


class ResultLeaf(NamedTuple):
    """One figure of one place: a number, a tensor, or a dict where it has one for each of several things.

    The labels are the class that it is of, and the group of samples (the class or the rest), where there are such.
    """

    path: str
    labels: tuple[Any, ...]
    figure: str
    value: Any


def result_leaves(figures: Mapping[str, Mapping[Any, Any]]) -> Iterator[ResultLeaf]:
    """Yield the figures in order: place by place, and class by class."""
    for path, of_place in figures.items():
        yield from _below(path, (), of_place)


def _below(path: str, labels: tuple[Any, ...], found: Mapping[Any, Any]) -> Iterator[ResultLeaf]:
    for key, value in found.items():
        if isinstance(value, Mapping) and (isinstance(key, int) or key in _GROUPS):
            yield from _below(path, (*labels, key), value)
        else:
            yield ResultLeaf(path, labels, str(key), value)


def levels_of(labels: tuple[Any, ...]) -> list[str]:
    """Return the names of label levels: ``class``, ``group`` for "class" and "rest", ``class_2`` for nested classes."""
    return numbered("group" if label in _GROUPS else "class" for label in labels)


def column_name(figure: str, taken: Container[str]) -> str:
    """Return the name of a column or variable for a figure, if the columns of the place take some names."""
    return f"figure.{figure}" if figure in taken else figure


def keys_of(leaves: Iterable[ResultLeaf], places: Iterable[str]) -> list[Any]:
    """Return the keys of figures that are dicts: those that are places in the order of the model, then the others."""
    found = dict.fromkeys(key for leaf in leaves if isinstance(leaf.value, Mapping) for key in leaf.value)
    first = [place for place in places if place in found]
    return [*first, *(key for key in found if key not in {*first})]


def path_of(leaf: ResultLeaf, name: str) -> Iterator[tuple[str, Any]]:
    """Yield a path for the figure that the path language reads, with its value; one for each entry of a dict.

    >>> dict(path_of(ResultLeaf("fc1", (3,), "dead", 5), "PerClass"))
    {'fc1.PerClass.3.dead': 5}
    >>> dict(path_of(ResultLeaf("fc1", (), "cka", {"layers.2": 0.5}), "Similarity"))
    {"fc1.Similarity.cka['layers.2']": 0.5}
    """
    words = (name, *leaf.labels, leaf.figure)
    segments = [*_segments(leaf.path), *(NameSegment.of(str(word)) for word in words)]
    if isinstance(leaf.value, Mapping):
        for key, value in leaf.value.items():
            yield join([*segments, Item(key if isinstance(key, int) else str(key))]), value
    else:
        yield join(segments), leaf.value


def _segments(path: str) -> tuple[Segment, ...]:
    try:
        return parse(path).segments
    except BadPathError:  # an analyser may call its places as it likes
        return (NameSegment.of(path),)


Figures = Mapping[str, Mapping[Any, Any]]
Cells = Callable[[str, Any], Row]
AMOUNTS = (".samples", ".nans", ".dimension")
"""The ends of figures that say how much data an analyser was given: of several at one place nearly the same."""
FEW = 3
"""More columns than these of one figure are numbered."""


def table_rows(figures: Figures, cells: Cells | None = None, short: Mapping[str, str] | None = None) -> list[Row]:
    """Return one row of plain values a place, and a class where there are classes.

    A figure that is a tensor has the columns ``mean.min``, ``mean.mean`` and ``mean.max``, without NaN; one that is a
    dict has a column for each key in each row, ``cka[fc2]``, so that the columns are in order.
    """
    cells, short, keys = cells or _exact, short or {}, _matrices(figures)
    rows = _by_place(figures)
    for row, leaves in rows:
        place = {*row}
        for leaf in leaves:
            if isinstance(leaf.value, Mapping):
                for key in keys[leaf.figure]:
                    name = f"{leaf.figure}[{key}]"
                    row.update(cells(short.get(name, name), leaf.value.get(key)))
            else:
                row.update(cells(column_name(leaf.figure, place), leaf.value))
    return [row for row, _ in rows]


def shown_rows(figures: Figures) -> list[Row]:
    """Return the rows to print: four digits, and of a tensor its shape, smallest value, mean and largest.

    If a dict has numbers for many places, its columns have the numbers of the places instead of their names.
    """
    numbers = {path: f"#{number}" for number, path in enumerate(figures)}
    short = {
        f"{figure}[{key}]": f"{figure} {numbers[key]}"
        for figure, keys in _matrices(figures).items()
        if len(keys) > FEW and set(keys) <= numbers.keys()
        for key in keys
    }
    rows = table_rows(figures, _shown, short)
    return [{"#": numbers[row["path"]], **row} for row in rows] if short else rows


def spare_columns(rows: Sequence[Row], figures: Figures) -> list[str]:
    """Return the columns that a narrow table may leave out, first the keys of dicts, which may be many; then amounts of
    data; then tensors; then all figures but the first.
    """
    columns = [*dict.fromkeys(name for row in rows for name in row)][::-1]
    starts = tuple(f"{figure}{mark}" for figure in _matrices(figures) for mark in ("[", " #"))
    keys = [name for name in columns if starts and name.startswith(starts)]
    leaves = [*result_leaves(figures)]
    tensors = {leaf.figure for leaf in leaves if isinstance(leaf.value, Tensor) and leaf.value.ndim}
    known = {leaf.figure for leaf in leaves}
    amounts = [name for name in columns if name in known and name.endswith(AMOUNTS)]
    others = [name for name in columns if name in known][:-1]
    return [*dict.fromkeys([*keys, *amounts, *(name for name in columns if name in tensors), *others])]


def _matrices(figures: Figures) -> dict[str, list[Any]]:
    """Return the figures that are dicts, with their keys in the order of the model."""
    found: dict[str, list[ResultLeaf]] = {}
    for leaf in result_leaves(figures):
        if isinstance(leaf.value, Mapping):
            found.setdefault(leaf.figure, []).append(leaf)
    return {figure: keys_of(leaves, figures) for figure, leaves in found.items()}


def long_rows(figures: Figures) -> Iterator[Row]:
    """Yield one row for each place, class, figure and element; ``index`` is None if there is only one."""
    for leaf in result_leaves(figures):
        for index, value in _elements(leaf.value):
            yield {"path": leaf.path, **_levels(leaf.labels), "figure": leaf.figure, "index": index, "value": value}


def _levels(labels: tuple[Any, ...]) -> Row:
    return dict(zip(levels_of(labels), labels, strict=True))


def single(value: Any) -> bool:
    """Return whether a figure is one number, which a tensor without dimensions is, too."""
    return isinstance(value, bool | int | float) or (isinstance(value, Tensor) and not value.ndim)


def plain_number(value: Any) -> Any:
    """Return a tensor of one number as that number; anything else as it is."""
    return value.item() if isinstance(value, Tensor) and not value.ndim else value


def _by_place(figures: Figures) -> list[tuple[Row, list[ResultLeaf]]]:
    """Return the figures that stand in one row, after what names the row."""
    found: dict[tuple[str, tuple[Any, ...]], list[ResultLeaf]] = {
        (path, ()): [] for path in figures if not figures[path]
    }
    for leaf in result_leaves(figures):
        found.setdefault((leaf.path, leaf.labels), []).append(leaf)
    return [({"path": path, **_levels(labels)}, leaves) for (path, labels), leaves in found.items()]


def _exact(name: str, value: Any) -> Row:
    if not isinstance(value, Tensor) or not value.ndim:
        return {name: plain_number(value)}
    low, mean, high, _ = _range(value)
    return {f"{name}.min": low, f"{name}.mean": mean, f"{name}.max": high}


def _shown(name: str, value: Any) -> Row:
    if not isinstance(value, Tensor) or not value.ndim:
        return {name: _digits(plain_number(value))}
    low, mean, high, nans = _range(value)
    of = "×".join(map(str, value.shape))
    if low is None:
        return {name: f"{of}: {'nothing' if not nans else 'NaN'}"}
    span = "" if low == high else f" … {_digits(mean)} … {_digits(high)}"
    return {name: f"{of}: {_digits(low)}{span}{f', {nans} NaN' if nans else ''}"}


def _range(tensor: Tensor) -> tuple[Any, Any, Any, int]:
    """Return the smallest number, the mean and the largest, None if there is none, and the number of NaN."""
    numbers = tensor.detach()
    numbers = numbers.abs() if numbers.is_complex() else numbers
    known = numbers[~numbers.isnan()]
    nans = numbers.numel() - known.numel()
    if not known.numel():
        return None, None, None, nans
    low, high = known.min().item(), known.max().item()
    return low, known.to(torch.float64).mean().item(), high, nans


def _digits(value: Any) -> Any:
    """Return a number with four digits; of a large one all digits before the point."""
    if type(value) is not float or not math.isfinite(value):
        return value
    if 1000 <= abs(value) < 1e15:
        return round(value)
    return float(f"{value:.4g}") + 0.0  # and no -0.0


def _elements(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield the numbers of a figure, and where each stands in it: a whole number, several, or a key."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            for index, one in _elements(inner):
                yield key if index is None else (key, *(index if isinstance(index, tuple) else (index,))), one
    elif isinstance(value, Tensor) and value.ndim:
        flat = value.detach().reshape(-1).tolist()
        indices = torch.cartesian_prod(*map(torch.arange, value.shape)).tolist() if value.ndim > 1 else range(len(flat))
        for index, one in zip(indices, flat, strict=True):
            yield tuple(index) if isinstance(index, list) else index, one
    else:
        yield None, plain_number(value)
