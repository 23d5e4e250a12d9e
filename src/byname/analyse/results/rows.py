"""How do figures become rows of a table? Numbers stand as they are, a tensor as what it ranges over."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from byname.analyse.results.leaves import Leaf, keys_of, leaves_of, levels_of, named
from byname.table import Row

__all__ = ["long_rows", "plain", "rows_of", "shown_rows", "single", "spare_columns"]

Figures = Mapping[str, Mapping[Any, Any]]
Cells = Callable[[str, Any], Row]
AMOUNTS = (".samples", ".nans", ".dimension")
"""The ends of figures that say how much data an analyser was given: of several at one place nearly the same."""
FEW = 3
"""More columns than these of one figure are numbered."""


def rows_of(figures: Figures) -> list[Row]:
    """One row of plain values a place, and a class where there are classes.

    A figure that is a tensor has the columns ``mean.min``, ``mean.mean`` and ``mean.max``, without NaN; one that is a
    dict has a column for each key, ``cka[fc2]``.
    """
    return _rows(figures, _exact, {})


def shown_rows(figures: Figures) -> list[Row]:
    """The same for a reader: four digits, and of a tensor its shape, smallest value, mean and largest.

    Where a dict has numbers for many of the places its columns bear their numbers instead of their names.
    """
    numbers = {path: f"#{number}" for number, path in enumerate(figures)}
    short = {
        f"{figure}[{key}]": f"{figure} {numbers[key]}"
        for figure, keys in _matrices(figures).items()
        if len(keys) > FEW and set(keys) <= numbers.keys()
        for key in keys
    }
    rows = _rows(figures, _shown, short)
    return [{"#": numbers[row["path"]], **row} for row in rows] if short else rows


def spare_columns(rows: Sequence[Row], figures: Figures) -> list[str]:
    """What a narrow table can do without, the last first: the keys of dicts, which may be many; how much data each of
    several analysers was given; tensors; and then all figures but the first.
    """
    columns = [*dict.fromkeys(name for row in rows for name in row)][::-1]
    starts = tuple(f"{figure}{mark}" for figure in _matrices(figures) for mark in ("[", " #"))
    keys = [name for name in columns if starts and name.startswith(starts)]
    leaves = [*leaves_of(figures)]
    tensors = {leaf.figure for leaf in leaves if isinstance(leaf.value, Tensor) and leaf.value.ndim}
    told = {leaf.figure for leaf in leaves}
    amounts = [name for name in columns if name in told and name.endswith(AMOUNTS)]
    others = [name for name in columns if name in told][:-1]
    return [*dict.fromkeys([*keys, *amounts, *(name for name in columns if name in tensors), *others])]


def _matrices(figures: Figures) -> dict[str, list[Any]]:
    """The figures that are dicts, with their keys in the order of the model."""
    found: dict[str, list[Leaf]] = {}
    for leaf in leaves_of(figures):
        if isinstance(leaf.value, Mapping):
            found.setdefault(leaf.figure, []).append(leaf)
    return {figure: keys_of(leaves, figures) for figure, leaves in found.items()}


def long_rows(figures: Figures) -> Iterator[Row]:
    """One row a place, class, figure and element, every number as it is; ``index`` is None where there is only one."""
    for leaf in leaves_of(figures):
        labels = dict(zip(levels_of(leaf.labels), leaf.labels, strict=True))
        for index, value in _elements(leaf.value):
            yield {"path": leaf.path, **labels, "figure": leaf.figure, "index": index, "value": value}


def single(value: Any) -> bool:
    """Whether a figure is one number, which a tensor without dimensions is, too."""
    return isinstance(value, bool | int | float) or (isinstance(value, Tensor) and not value.ndim)


def plain(value: Any) -> Any:
    """A tensor of one number as that number; anything else as it is."""
    return value.item() if isinstance(value, Tensor) and not value.ndim else value


def _by_place(figures: Figures) -> list[tuple[Row, list[Leaf]]]:
    """The figures that stand in one row, after what names the row."""
    found: dict[tuple[str, tuple[Any, ...]], list[Leaf]] = {
        (path, ()): [] for path, of_place in figures.items() if not of_place
    }
    for leaf in leaves_of(figures):
        found.setdefault((leaf.path, leaf.labels), []).append(leaf)
    return [
        ({"path": path, **dict(zip(levels_of(labels), labels, strict=True))}, leaves)
        for (path, labels), leaves in found.items()
    ]


def _rows(figures: Figures, cells: Cells, short: Mapping[str, str]) -> list[Row]:
    """The rows, with a column for each key of a dict in each of them, so that the columns are in order."""
    keys = _matrices(figures)
    return [_row(place, leaves, cells, short, keys) for place, leaves in _by_place(figures)]


def _row(
    place: Row, leaves: Iterable[Leaf], cells: Cells, short: Mapping[str, str], keys: Mapping[str, list[Any]]
) -> Row:
    row = dict(place)
    for leaf in leaves:
        if isinstance(leaf.value, Mapping):
            for key in keys[leaf.figure]:
                name = f"{leaf.figure}[{key}]"
                row.update(cells(short.get(name, name), leaf.value.get(key)))
        else:
            row.update(cells(named(leaf.figure, place), leaf.value))
    return row


def _exact(name: str, value: Any) -> Row:
    if not isinstance(value, Tensor) or not value.ndim:
        return {name: plain(value)}
    low, mean, high, _ = _range(value)
    return {f"{name}.min": low, f"{name}.mean": mean, f"{name}.max": high}


def _shown(name: str, value: Any) -> Row:
    if not isinstance(value, Tensor) or not value.ndim:
        return {name: _digits(plain(value))}
    low, mean, high, nans = _range(value)
    of = "×".join(map(str, value.shape))
    if low is None:
        return {name: f"{of}: {'nothing' if not nans else 'NaN'}"}
    apart = "" if low == high else f" … {_digits(mean)} … {_digits(high)}"
    return {name: f"{of}: {_digits(low)}{apart}{f', {nans} NaN' if nans else ''}"}


def _range(tensor: Tensor) -> tuple[Any, Any, Any, int]:
    """The smallest number, the mean and the largest, each None if there is none; and how many are none."""
    numbers = tensor.detach()
    numbers = numbers.abs() if numbers.is_complex() else numbers
    known = numbers[~numbers.isnan()]
    nans = numbers.numel() - known.numel()
    if not known.numel():
        return None, None, None, nans
    low, high = known.min().item(), known.max().item()
    return low, known.to(torch.float64).mean().item(), high, nans


def _digits(value: Any) -> Any:
    """A number with four digits; of a large one all before the point."""
    if type(value) is not float or not math.isfinite(value):
        return value
    if 1000 <= abs(value) < 1e15:
        return round(value)
    return float(f"{value:.4g}") + 0.0  # and no -0.0


def _elements(value: Any) -> Iterator[tuple[Any, Any]]:
    """The numbers of a figure, and where each stands in it: a whole number, several, or a key."""
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
        yield None, plain(value)
