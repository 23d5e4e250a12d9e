"""Callbacks: those of a recording. A result that does not fit is refused, and none can damage the recording."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from torch import Tensor

from byname.errors import BadArgumentError, BynameError
from byname.model.items import tensors_in
from byname.reading.quiet import DisableTorchFunction
from byname.reading.tensor import fact, is_tensor
from byname.recording.export import NUMBERS, plain_type
from byname.recording.series import Series, value_shape
from byname.recording.series_records import cropped, one_each
from byname.recording.values.reduce import reduction_name
from byname.table import listed
from byname.text import note_on


def stack(path: str, series: Series) -> Series:
    """Return the series with all values as one tensor, the record first. A callback for `byname.record`.

    Plain numbers become a tensor of bool, int64, float64 or complex128. What is stacked already, and strings, None and
    containers, are kept as they are.

    Raises:
        BynameError: the values differ in shape or type.

    >>> ones = [torch.ones(2, 3), torch.ones(2, 3)]
    >>> series = Series("fc1", ones, [0, 1], [0, 0], [0, 0], ["train"] * 2, [(2, 3)] * 2)
    >>> stack("fc1", series).values.shape
    torch.Size([2, 2, 3])
    """
    values = _tensors(path, series)
    if values is None:
        return series
    if len(shapes := _distinct(tuple(value.shape) for value in values)) > 1:
        known = listed(shapes, 4)
        raise BynameError(f"the values of {path} have different shapes ({known}): use stack_padded instead of stack")
    return series.replace(values=torch.stack(values))


def stack_padded(path: str, series: Series) -> Series:
    """Do the same for values of different sizes: zeros follow at the end of each dimension, up to the largest size.

    ``.shapes`` keeps the sizes from before.

    Raises:
        BynameError: the values differ in type or in their number of dimensions.

    >>> series = Series("h", [torch.ones(2), torch.ones(3)], [0, 1], [0, 0], [0, 0], ["train"] * 2, [(2,), (3,)])
    >>> padded = stack_padded("h", series)
    >>> padded.values.tolist(), padded.shapes
    ([[1.0, 1.0, 0.0], [1.0, 1.0, 1.0]], [(2,), (3,)])
    """
    values = _tensors(path, series)
    if values is None:
        return series
    values = [cropped(value, shape) for value, shape in zip(values, series.shapes, strict=True)]
    shapes = [tuple(value.shape) for value in values]
    if len({*map(len, shapes)}) > 1:
        known = listed(_distinct(shapes), 4)
        raise BynameError(
            f"the values of {path} differ in their number of dimensions ({known}): padding cannot stack them"
        )
    whole = values[0].new_zeros((len(values), *(max(sizes) for sizes in zip(*shapes, strict=True))))
    for row, value in zip(whole, values, strict=True):
        row[tuple(map(slice, value.shape))] = value
    return series.replace(values=whole)


def _distinct(items: Iterable[Any]) -> list[str]:
    return [*map(str, dict.fromkeys(items))]


def _tensors(path: str, series: Series) -> list[Tensor] | None:
    """Return the values as tensors of one type, without their graph; None where there is nothing to stack."""
    if issubclass(type(series.values), Tensor) or not len(series):
        return None
    values = list(series.values)
    numeric = [issubclass(type(value), Tensor) or type(value) in NUMBERS for value in values]
    if not any(numeric):
        return None
    types = _distinct(map(_type, values))
    if types == ["a plain number"]:
        dtype = plain_type(values)
        if dtype is None:
            names = ", ".join(sorted({type(value).__name__ for value in values}))
            raise BynameError(f"no dtype holds the numbers of {path} exactly: they are of type {names}, or too large")
        return [*torch.tensor(values, dtype=getattr(torch, dtype.name), device="cpu")]
    if len(types) > 1 or not all(numeric):
        raise BynameError(
            f"the values of {path} are of different types ({listed(types, 4)}), which one tensor cannot hold; "
            "record with dtype= to get tensors of one dtype, or return the series as it is"
        )
    return [value.detach() for value in values]


def _type(value: Any) -> str:
    if issubclass(type(value), Tensor):
        return str(value.dtype)
    return "a plain number" if type(value) in NUMBERS else type(value).__name__


_Callback: TypeAlias = Callable[..., Any]
Callbacks: TypeAlias = _Callback | Sequence[_Callback] | None

_DEPTH = 16
"""Levels of nested containers that are looked into; a deeper value, or one that contains itself, is passed on."""


def callables(callbacks: Callbacks, moment: str) -> tuple[_Callback, ...]:
    """Return the callbacks in order; refuse what cannot be called."""
    every = () if callbacks is None else (callbacks,) if callable(callbacks) else callbacks
    if not issubclass(type(every), list | tuple):
        raise BadArgumentError(f"{moment}= takes a function or a list of functions, not {type(callbacks).__name__}")
    for one in every:
        if not callable(one):
            raise BadArgumentError(f"{moment}= takes functions; one item is of type {type(one).__name__}")
    return tuple(every)


def applied(callbacks: Callbacks, path: str, series: Series, moment: str) -> Series:
    """Return what the callbacks make of a series, each of what the one before it returned.

    None as a result keeps the series, a `Series` of the same place replaces it, and any other value stands for all its
    records. A series without records is not shown; the one given, and its lists, are not changed.
    """
    kept = _versions(series.values)
    for callback in callables(callbacks, moment):
        if not len(series):
            break
        with _noted(callback, moment, path):
            result = callback(path, _own(series))
            _unchanged(kept, "return series.with_values(...) with new tensors instead")
            series = _taken(result, path, series)
    return series


def values_called(callbacks: Callbacks, path: str, value: Any, iteration: int) -> Any:
    """Return what the callbacks ``on_value`` make of one value; None as a result keeps it.

    They see tensors without their graph, and copies of containers of Python's own types; they may change none in place.
    """
    every = callables(callbacks, "on_value")
    if not every:
        return value
    kept = _versions(value)
    shown = given = _alias(value)
    replaced = False
    with torch.no_grad():
        for callback in every:
            with _noted(callback, "on_value", path):
                result = callback(path, shown, iteration)
                _unchanged(kept, "it belongs to the running program; return a new tensor instead")
            if result is not None and not (result is given and is_tensor(given)):
                shown, replaced = result, True
    return shown if replaced else value


@contextmanager
def _noted(callback: _Callback, moment: str, path: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        note_on(error, f"byname: in {moment} callback `{reduction_name(callback)}` at `{path}`")
        raise


def _own(series: Series) -> Series:
    """Return the series with a list of its own; refuse one that has lost or got values."""
    return series.replace(values=one_each(series.values, len(series), series.path))


def _taken(result: Any, path: str, series: Series) -> Series:
    if result is None:
        return series
    if not issubclass(type(result), Series):
        return _standing_for_all(result, series)
    if result.path != path:
        raise BynameError(f"the callback returned a series of {result.path}; return one of {path}")
    return _own(result)


def _standing_for_all(value: Any, series: Series) -> Series:
    rank = series.ranks[-1] if len(set(series.ranks)) == 1 else -1
    moments = [series.iterations[-1]], [rank], [0], [series.modes[-1]]
    return Series(series.path, [value], *moments, [value_shape(value)], sampling=series.sampling)


def _alias(value: Any, depth: int = 0) -> Any:
    """Return the value for others to look at: tensors without graph, containers of Python's own types copied."""
    if is_tensor(value):
        with DisableTorchFunction():
            return torch._C.TensorBase.detach(value)
    if depth == _DEPTH:
        return value
    if type(value) is dict:
        return {key: _alias(inner, depth + 1) for key, inner in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_alias(inner, depth + 1) for inner in value)
    return value


def _versions(values: Any) -> list[tuple[Tensor, int]]:
    """Return the tensors in a value, and how often each has been changed so far."""
    with DisableTorchFunction():
        # Tensors made in inference mode count no changes.
        found = [one for _, one in tensors_in(values) if not torch._C.TensorBase.is_inference(one)]
        return [(one, fact(one, "_version")) for one in found]


def _unchanged(kept: list[tuple[Tensor, int]], instead: str) -> None:
    with DisableTorchFunction():
        if any(fact(tensor, "_version") != version for tensor, version in kept):
            raise BynameError(f"the callback changed a value in place: {instead}")
