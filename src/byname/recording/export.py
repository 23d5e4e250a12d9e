"""Export: a series as numpy arrays, as pandas tables, as text and as a plot."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from byname.axes import CURVE, GREY, LINES, axes_of_size, colours, legend, style_axes
from byname.errors import BynameError
from byname.extras import needs
from byname.recording.series_records import MODES, SeriesRecords, Values, cropped, read, tail_of
from byname.recording.value_type import numpy_has
from byname.table import Row, counted, listed
from byname.text import printable, shape_text, shortened

if TYPE_CHECKING:
    import pandas
    from matplotlib.axes import Axes

AnyArray: TypeAlias = NDArray[Any]

NUMBERS: tuple[type, ...] = (bool, int, float, complex)
"""The plain numbers."""


def numpy_of(tensor: Tensor) -> AnyArray:
    """Return the tensor as numpy has it, on its own memory where that is possible.

    bfloat16 and float8 become float32 and complex32 becomes complex64, which hold each of their values exactly.
    """
    with torch.no_grad():
        plain = tensor.detach().cpu().resolve_conj().resolve_neg()
        array: AnyArray = plain.to(numpy_has(plain.dtype)).numpy()
    return array


def to_numpy(values: Values, shapes: Sequence[tuple[int, ...]]) -> AnyArray:
    """Return all values as one array, the record first; of objects where shapes or types have nothing in common."""
    if isinstance(values, Tensor):
        return numpy_of(values).copy()
    if len(values) == 0:
        return np.zeros(0)
    if len({*map(tuple, shapes)}) == 1 and tail_of(values) is not None:
        return read(values, np.arange(len(values)))
    return array_from(list(values))


def array_from(values: Sequence[Any]) -> AnyArray:
    """Return one array of these, an own copy; of objects where they differ in shape or in kind."""
    if (
        all(issubclass(type(value), Tensor) for value in values)
        and len({(one.dtype, one.shape) for one in values}) == 1
    ):
        with torch.no_grad():
            return numpy_of(torch.stack(list(values)))
    elements = [numpy_of(value) if issubclass(type(value), Tensor) else value for value in values]
    tensors = [type(element) is np.ndarray for element in elements]
    if all(tensors):
        dtype = exact_dtype(element.dtype for element in elements)
        if dtype is not None and len({element.shape for element in elements}) == 1:
            return np.stack(elements).astype(dtype, copy=False)
    elif not any(tensors):
        dtype = plain_type(values)
        if dtype is not None:
            return np.array(values, dtype)
    return objects(element.copy()[()] if type(element) is np.ndarray else element for element in elements)


def exact_dtype(dtypes: Iterable[np.dtype[Any]]) -> np.dtype[Any] | None:
    """Return the type that holds each of these exactly; there is one within floats, within signed integers ..."""
    found = set(dtypes)
    return np.result_type(*found) if len({dtype.kind for dtype in found}) == 1 else None


def plain_type(values: Sequence[Any]) -> np.dtype[Any] | None:
    """Return the type of an array that holds these plain numbers exactly; None if there is none."""
    kinds = {type(value) for value in values}
    if kinds == {bool}:
        return np.dtype(bool)
    if not kinds <= {int, float, complex}:
        return None
    if kinds == {int}:
        return np.dtype(np.int64) if all(-(2**63) <= value < 2**63 for value in values) else None
    if any(type(value) is int and abs(value) > 2**53 for value in values):
        return None  # a float would round it
    return np.dtype(np.complex128 if complex in kinds else np.float64)


def objects(values: Iterable[Any]) -> AnyArray:
    """Return an array of objects with one dimension, whatever they are: numpy would split arrays of equal shapes."""
    every = list(values)
    array = np.empty(len(every), dtype=object)
    for number, value in enumerate(every):
        array[number] = value
    return array


def to_pandas(series: SeriesRecords) -> pandas.DataFrame:
    """Return the columns of a series, and its values in one more."""
    with needs("to_pandas()", "pandas"):
        import pandas
    values = _column(series)
    # Said to be objects: pandas 3 would otherwise turn strings into its own type, and None into NaN.
    column = pandas.Series(values, dtype=object if values.dtype == object else None)
    return pandas.DataFrame(
        {
            "iteration": series.records["iteration"],
            "mode": series.modes,
            "rank": series.records["rank"].astype(np.int64),
            "call": series.records["call"].astype(np.int64),
            "value": column,
        }
    )


def _column(series: SeriesRecords) -> AnyArray:
    """Return numbers where every value is one; else tensors with dimensions as arrays, one a cell."""
    values = [cropped(value, shape) for value, shape in zip(series.values, series.shapes, strict=True)]
    if all(torch.Size(shape).numel() == 1 for shape in {*series.shapes}):
        return array_from([value.reshape(()) if issubclass(type(value), Tensor) else value for value in values])
    return objects(numpy_of(value).copy()[()] if issubclass(type(value), Tensor) else value for value in values)


SPARE = ("mode", "rank", "call", "mean", "type", "shape")
"""The columns that a narrow terminal may do without."""

SHOWN = 20
"""Records of a long series that are shown: half of them the first ones, half the last. No other value is read."""


def record_row(series: SeriesRecords, number: int, value: Any) -> Row:
    """Return one record as plain values. A tensor of one element is its number; of a larger one, the range."""
    iteration, rank, call, evaluation, kind = series.records[number].item()
    shape = series.kinds[kind].shape
    when = {"iteration": iteration, "mode": MODES[evaluation], "rank": rank, "call": call}
    return {**when, "shape": shape, **_facts(cropped(value, shape))}


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


def shown(series: SeriesRecords, most: int = SHOWN) -> tuple[list[Row], list[str]]:
    """Return the rows that a table has room for, and a note about the others."""
    size = len(series)
    last = most // 2
    numbers = range(size) if size <= most else [*range(most - last), *range(size - last, size)]
    rows = [_shortened(record_row(series, number, series.values[number])) for number in numbers]
    between = size - len(rows)
    notes = [
        f"{counted(between, 'record')} between the first {most - last} and the last {last} not shown; .rows() has them"
    ]
    return rows, notes if between else []


def _shortened(whole: Row) -> Row:
    short = {key: _brief(value) if key in ("value", "mean", "min", "max") else value for key, value in whole.items()}
    return short if type(whole["value"]) in _WITH_SHAPE and whole["type"] != "NoneType" else short | {"shape": None}


_WITH_SHAPE = (type(None), *NUMBERS)
"""Values in a row that have a shape: numbers, and tensors (shown by their range, with the value None)."""


def _brief(value: Any) -> Any:
    if type(value) is float and math.isfinite(value):
        return float(f"{value:.6g}")
    return value if value is None or type(value) in (bool, int, float) else _texts.repr(value)


class _Texts(reprlib.Repr):
    """Short texts of values, also of containers with tensors in them."""

    maxstring = maxother = 60

    def repr_Tensor(self, tensor: Tensor, level: int) -> str:
        return f"{str(tensor.dtype).removeprefix('torch.')} {shape_text(tensor.shape)}"


_texts = _Texts()


def title(series: SeriesRecords) -> str:
    """Return one line: how many records, from when to when, of what."""
    size = len(series)
    if not size:
        return f"{series.path}: no records"
    first, last = series.records["iteration"].min(), series.records["iteration"].max()
    when = f"iteration {first}" if first == last else f"iterations {first} to {last}"
    ranks = np.unique(series.records["rank"])
    among = f", {len(ranks)} ranks" if len(ranks) > 1 else ""
    modes = " and ".join(np.unique(series.mode_names))
    how = f"; {series.sampling}" if series.sampling is not None and str(series.sampling) else ""
    return f"{series.path}: {counted(size, 'record')}, {when}, {modes}{among}{how}"


def as_float(number: complex) -> float:
    """Return a number of Python as a float, of a complex one its size; infinite beyond the largest float."""
    try:
        return abs(number) if type(number) is complex else float(number)  # type: ignore[arg-type]
    except OverflowError:
        return math.inf if type(number) is complex or number > 0 else -math.inf  # type: ignore[operator]


_WITH_RANGES = (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.uint8)
"""Types whose range PyTorch computes without a copy as float64."""


class NumberRange:
    """The range of all numbers that were added; NaN is only counted, complex numbers count by their size."""

    def __init__(self) -> None:
        self.smallest, self.largest = math.inf, -math.inf
        self.total, self.count, self.nan = 0.0, 0, 0

    def add(self, value: Any) -> None:
        """Add a tensor or a number; other values are ignored."""
        if type(value) in (bool, int, float, complex):
            value = _number(value)
        if type(value) is not Tensor or not value.numel():
            return
        numbers = value.reshape(-1)
        if numbers.is_complex():
            numbers = numbers.to(torch.complex128).abs()
        elif numbers.dtype not in _WITH_RANGES:
            numbers = numbers.to(torch.float64)
        low, high = (one.item() for one in torch.aminmax(numbers))
        if math.isnan(low):
            of_all = numbers.numel()
            numbers = numbers[~numbers.isnan()]
            self.nan += of_all - numbers.numel()
            if not numbers.numel():
                return
            low, high = (one.item() for one in torch.aminmax(numbers))
        self.smallest, self.largest = min(self.smallest, low), max(self.largest, high)
        self.total += numbers.sum(dtype=torch.float64).item()
        self.count += numbers.numel()

    def row(self) -> Row:
        """Return the figures as columns of a table; None where there was no number."""
        nan = {"nan": self.nan} if self.nan else {}
        if not self.count:
            return {"min": None, "max": None, "mean": None, **nan}
        figures = {"min": self.smallest, "max": self.largest, "mean": self.total / self.count}
        return {name: float(f"{figure:.6g}") for name, figure in figures.items()} | nan


_QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_MOST = 100_000
"""Numbers of a value that quantiles are computed from; every n-th of a larger one."""


def plotted(series: Mapping[str, SeriesRecords], axes: Axes | None) -> Axes:
    """Return the axes, with each series drawn in them; every value is read, one after the other."""
    lines = {printable(path): line for path, one in series.items() if len(line := _line(one))}
    if not lines:
        raise BynameError(f"no numbers to draw: {listed(list(map(printable, series)), 4) or 'no place was recorded'}")
    axes = axes_of_size(axes, 7.2, 3.6)
    found = [CURVE] if len(lines) == 1 else colours(len(lines))
    for (path, line), colour in zip(lines.items(), found, strict=True):
        _draw(axes, line, colour, shortened(path))
    axes.set_xlabel("iteration", color=GREY)
    style_axes(axes)
    axes.grid(color=LINES, linewidth=0.6)
    axes.set_axisbelow(True)
    if len(lines) == 1:
        axes.set_title(shortened(next(iter(lines))), loc="left")
    else:
        legend(axes, len(lines))
    return axes


def _draw(axes: Axes, line: np.ndarray[Any, Any], colour: Any, label: str) -> None:
    """Draw the median, and where values have more than one number the bands that hold 50 and 90 % of them."""
    iterations, low, lower, middle, upper, high = line.T
    axes.plot(iterations, middle, color=colour, linewidth=1.3, marker="o" if len(line) < 2 else None, label=label)
    if (high > low).any():
        axes.fill_between(iterations, lower, upper, color=colour, alpha=0.25, linewidth=0)
        axes.fill_between(iterations, low, high, color=colour, alpha=0.12, linewidth=0)


def _line(series: SeriesRecords) -> np.ndarray[Any, Any]:
    """Return the iteration and the quantiles of each value that has numbers; values are finite, NaN are left out."""
    found = [
        (iteration, *_quantiles(value))
        for iteration, value in zip(series.iterations, series.values, strict=True)
        if isinstance(value, Tensor | int | float) and not isinstance(value, bool)
    ]
    return np.array([one for one in found if not math.isnan(one[1])]).reshape(-1, 1 + len(_QUANTILES))


def _number(value: Any) -> Tensor:
    return torch.tensor(as_float(value), dtype=torch.float64, device="cpu")


def _quantiles(value: Any) -> list[float]:
    numbers = value.detach() if isinstance(value, Tensor) else _number(value)
    numbers = (numbers.abs() if numbers.is_complex() else numbers).reshape(-1)
    numbers = numbers[:: max(1, numbers.numel() // _MOST)].double()
    numbers = numbers[numbers.isfinite()]
    if not numbers.numel():
        return [math.nan] * len(_QUANTILES)
    return torch.quantile(numbers, numbers.new_tensor(_QUANTILES)).tolist()
