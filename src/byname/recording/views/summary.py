"""What does one value look like in a table? Its type, its shape, and its range, or the value itself."""

from __future__ import annotations

import math
import reprlib
from typing import Any

import numpy as np
from torch import Tensor

from byname.recording.views.arrays import NUMBERS, AnyArray, numpy_of
from byname.recording.views.frames import Records
from byname.recording.views.reading import cropped
from byname.table import Row, counted

__all__ = ["SHOWN", "SPARE", "row", "shown", "title"]

SPARE = ("mode", "rank", "call", "mean", "type")
"""The columns that a narrow terminal may do without."""

SHOWN = 20
"""Records of a long series that are shown: half of them the first ones, half the last. No other value is read."""


def row(series: Records, number: int, value: Any) -> Row:
    """One record as plain values. A tensor of one element is its number; of a larger one the range is told."""
    shape = tuple(series.shapes[number])
    return {
        "iteration": series.iterations[number],
        "mode": series.modes[number],
        "rank": series.ranks[number],
        "call": series.calls[number],
        "shape": shape,
        **_facts(cropped(value, shape)),
    }


def _facts(value: Any) -> Row:
    none: Row = {"value": None, "mean": None, "min": None, "max": None}
    if not issubclass(type(value), Tensor):
        return {"type": type(value).__name__, **none, "value": value}
    name = str(value.dtype).removeprefix("torch.")
    if value.numel() == 1:
        return {"type": name, **none, "value": numpy_of(value).item()}
    return {"type": name, **none, **(_range(numpy_of(value)) if value.numel() else {})}


def _range(array: AnyArray) -> Row:
    with np.errstate(all="ignore"):
        if array.dtype.kind == "c":
            return {"mean": array.mean(dtype=np.complex128).item()}
        return {"mean": array.mean(dtype=np.float64).item(), "min": array.min().item(), "max": array.max().item()}


def shown(series: Records, most: int = SHOWN) -> tuple[list[Row], list[str]]:
    """The rows that a table has room for, and what it does not show, in words."""
    size = len(series.iterations)
    last = most // 2
    numbers = range(size) if size <= most else [*range(most - last), *range(size - last, size)]
    rows = [_shortened(row(series, number, series.values[number])) for number in numbers]
    between = size - len(rows)
    notes = [
        f"{counted(between, 'record')} between the first {most - last} and the last {last} not shown; .rows() has them"
    ]
    return rows, notes if between else []


def _shortened(whole: Row) -> Row:
    short = {key: _brief(value) if key in ("value", "mean", "min", "max") else value for key, value in whole.items()}
    return short if type(whole["value"]) in _WITH_SHAPE and whole["type"] != "NoneType" else short | {"shape": None}


_WITH_SHAPE = (type(None), *NUMBERS)
"""Values in a row that have a shape: numbers, and tensors, of which only the range is told."""


def _brief(value: Any) -> Any:
    if type(value) is float and math.isfinite(value):
        return float(f"{value:.6g}")
    return value if value is None or type(value) in (bool, int, float) else _texts.repr(value)


class _Texts(reprlib.Repr):
    """Short texts of values, also of containers with tensors in them."""

    maxstring = maxother = 60

    def repr_Tensor(self, tensor: Tensor, level: int) -> str:
        return f"{str(tensor.dtype).removeprefix('torch.')} {'×'.join(map(str, tensor.shape)) or 'scalar'}"


_texts = _Texts()


def title(series: Records) -> str:
    """One line: how many records, from when to when, of what."""
    size = len(series.iterations)
    if not size:
        return f"{series.path}: no records"
    first, last = min(series.iterations), max(series.iterations)
    when = f"iteration {first}" if first == last else f"iterations {first} to {last}"
    ranks = sorted(set(series.ranks))
    among = f", {len(ranks)} ranks" if len(ranks) > 1 else ""
    how = f"; {series.sampling}" if series.sampling is not None and str(series.sampling) else ""
    return f"{series.path}: {counted(size, 'record')}, {when}, {' and '.join(sorted(set(series.modes)))}{among}{how}"
