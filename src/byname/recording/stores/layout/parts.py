"""Which values lie together in one array of a file? Those of one form; the values of a place may have several.

Nearly always all values of a place have one form: tensors of one dtype and shape, or numbers of one kind. A value of
another form goes to a further part of the place, and `order` says in which order the records of all parts came.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from byname.recording.processes.shard import Shard
from byname.recording.series import Series
from byname.recording.values.nested import dtype_name

__all__ = ["SHAPES", "Batch", "Form", "batches"]

SHAPES = 8
"""Shapes of one dtype at one place that have arrays of their own; others lie one after another in a flat array."""
DIMENSIONS = 31
"""Of a tensor that has rows in an array: HDF5 knows of 32, and one is that of the records."""


@dataclass(frozen=True, slots=True)
class Form:
    """What the values of one part have in common.

    Attributes:
        layout: ``"rows"`` for an array with a row a record, ``"flat"`` for tensors of different shapes one after
            another, ``"nested"`` for text in JSON.
        kind: ``"tensor"``, ``"int"``, ``"float"``, ``"bool"``, ``"complex"``, ``"str"`` or ``"nested"``.
        dtype: torch's name of it, ``""`` where the values are no tensors.
        shape: of one value; for a flat part, as many zeros as the tensors have dimensions.
        shard: the part of a distributed tensor that each is, or None.
        padded: whether the shapes before padding are kept beside them.
    """

    layout: str
    kind: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    shard: Shard | None = None
    padded: bool = False


@dataclass(slots=True)
class Batch:
    """Records of one form, to be written together.

    Attributes:
        form: of the values.
        values: one a record, or one tensor whose first dimension is the record.
        iterations: and the other facts of the records.
        order: of each record, its number among all of the place.
    """

    form: Form
    values: Sequence[Any] | Tensor
    iterations: Sequence[int]
    ranks: Sequence[int]
    calls: Sequence[int]
    modes: Sequence[str]
    shapes: Sequence[tuple[int, ...]]
    order: Sequence[int]

    def __len__(self) -> int:
        return len(self.iterations)


def batches(series: Series, start: int, settled: Callable[[Form], Form]) -> list[Batch]:
    """The records of a place by form, in the order in which the forms first came.

    Args:
        series: the records.
        start: how many the place had before.
        settled: gives for the form of a value the form in which it is stored.
    """
    count = len(series)
    order = range(start, start + count)
    forms = _forms(series)
    if all(form is forms[0] for form in forms):
        return [_picked(series, settled(forms[0]), slice(None), order)]
    chosen: dict[Form, list[int]] = {}
    for position, form in enumerate(forms):
        chosen.setdefault(settled(form), []).append(position)
    return [_picked(series, form, at, order) for form, at in chosen.items()]


def _forms(series: Series) -> list[Form]:
    shards = series.shards or itertools.repeat(None)
    values: Any = series.values
    if type(values) is Tensor:
        own = tuple(values.shape[1:])
        name = dtype_name(values.dtype)
        padded = any(tuple(shape) != own for shape in series.shapes)
        return [
            _form_of_tensor(name, own, shard, padded=padded)
            for _, shard in zip(series.iterations, shards, strict=False)
        ]
    forms: list[Form] = []
    last_key: object = None
    for value, shard in zip(values, shards, strict=False):
        key = (value.dtype, value.shape, shard) if type(value) is Tensor else None
        forms.append(forms[-1] if key is not None and key == last_key else form_of(value, shard))
        last_key = key
    return forms


_NUMBERS = {kind: Form("rows", kind.__name__) for kind in (bool, int, float, complex)}
_TEXT = Form("rows", "str")
_NESTED = Form("nested", "nested")


def form_of(value: Any, shard: Shard | None = None) -> Form:
    """How a single value is stored."""
    kind = type(value)
    if kind is Tensor:
        return _form_of_tensor(dtype_name(value.dtype), tuple(value.shape), shard)
    if kind in _NUMBERS and (kind is not int or -(2**63) <= value < 2**63):
        return _NUMBERS[kind]
    return _TEXT if _is_utf8(value) else _NESTED


def _form_of_tensor(dtype: str, shape: tuple[int, ...], shard: Shard | None, *, padded: bool = False) -> Form:
    if len(shape) > DIMENSIONS:
        return Form("flat", "tensor", dtype, (0,) * len(shape), shard)
    return Form("rows", "tensor", dtype, shape, shard, padded)


def _is_utf8(value: Any) -> bool:
    """Whether a value is text that HDF5 can hold: it ends text at a zero, and has no half characters."""
    if type(value) is not str or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _picked(series: Series, form: Form, at: list[int] | slice, order: range) -> Batch:
    def pick(column: Sequence[Any]) -> Sequence[Any]:
        return column[at] if isinstance(at, slice) else [column[one] for one in at]

    values: Any = series.values
    if type(values) is Tensor and not isinstance(at, slice):
        values = values[torch.tensor(at)]
    elif type(values) is not Tensor:
        values = pick(values)
    columns = [pick(one) for one in (series.iterations, series.ranks, series.calls, series.modes, series.shapes, order)]
    return Batch(form, values, *columns)
