"""Parts: values of one form, in batches, and how they become the rows of arrays.

Nearly always all values of a place have one form: tensors of one dtype and shape, or numbers of one kind. A value of
another form goes to a further part of the place, and `order` says in which order the records of all parts came.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy
import torch
from torch import Tensor

from byname.codec import bytes_of, dtype_name, dtype_named, encoded, size_of_numbers
from byname.recording.columns import Scalars, picked
from byname.recording.distributed.dtensor import Shard
from byname.recording.lazy import Positions, taken
from byname.recording.series import Series
from byname.recording.stores.arrays import GrowingArray, Settings, dimension, file_type, strings
from byname.recording.stores.coordinates import Columns, Index, columns_of

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
    return [_picked(series, form, numpy.array(at), order) for form, at in chosen.items()]


def _forms(series: Series) -> list[Form]:
    shards = series.shards or itertools.repeat(None)
    values: Any = series.values
    if isinstance(values, Scalars) and len(values):
        return [_NUMBERS[type(values[0])]] * len(values)
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


def _picked(series: Series, form: Form, at: Positions | slice, order: range) -> Batch:
    return Batch(
        form,
        taken(series.values, at),
        picked(series.iterations, at),
        picked(series.ranks, at),
        picked(series.calls, at),
        picked(series.modes, at),
        picked(series.shapes, at),
        picked(order, at),
    )


_COPIED = 64 * 1024
"""Rows of fewer bytes are put together in memory first; writing each would cost more than the copy."""
_NUMPY = {"int": "<i8", "float": "<f8", "bool": "bool", "complex": "<c16"}


class Part:
    """The arrays of a part of a place, in a file that is being written.

    Args:
        group: of the file, empty.
        form: of its values.
        settings: of the file.
        first: what will be written first, which tells how much room to make.
    """

    def __init__(self, group: Any, form: Form, settings: Settings, first: Batch) -> None:
        self.group = group
        self.form = form
        self.count = 0
        self.elements = 0
        self.first, self.last = min(first.iterations), -1
        self.ranks: set[int] = set()
        self.index: Index | None = None
        self.fresh: list[Columns] = []
        self._arrays: dict[str, GrowingArray] = {}
        self._along: list[GrowingArray] = []  # a row of each is a record
        self._settings = settings
        self._describe()
        self._make_values(first)

    def write(self, batch: Batch, *, ordered: bool) -> None:
        """Adds records at the end; ``ordered`` is whether their numbers in the place are to be kept too.

        Their iterations, ranks, calls and modes are `fresh` until the index takes them (see `write_all`).
        """
        start = self.count
        getattr(self, f"_write_{self.form.layout}")(start, batch)
        if "shapes" in self._arrays:
            self._put("shapes", start, numpy.asarray(batch.shapes, "<i8").reshape(len(batch), -1))
        if ordered:
            self._order(start, batch.order)
        self.fresh.append(columns_of(batch.iterations, batch.ranks, batch.calls, batch.modes))
        self.count = start + len(batch)
        self.first = min(self.first, min(batch.iterations))
        self.last = max(self.last, max(batch.iterations))
        self.ranks.update(batch.ranks)

    @property
    def size(self) -> int:
        """The bytes of the values in the file; of text, without the letters."""
        return sum(self._arrays[name].stored_bytes for name in ("values", "bytes") if name in self._arrays)

    def take(self, index: Index) -> None:
        """Has another index from now on."""
        before, self.index = self.index, index
        if before is not None:
            before.members.remove(self)
            for array in self._along:
                array.dataset.dims[0].detach_scale(before.scale)
            for name in index.arrays:
                if self.group[name] == before.arrays[name].dataset:
                    del self.group[name]
        index.members.append(self)
        index.link(self.group)
        for array in self._along:
            array.dataset.dims[0].attach_scale(index.scale)

    def _order(self, start: int, order: Sequence[int]) -> None:
        if "order" not in self._arrays:  # until now this was the only part, whose records came one after another
            self._add("order", numpy.dtype("<i8"), (), start + len(order))
            self._put("order", 0, numpy.arange(start, dtype="<i8"))
        self._put("order", start, numpy.asarray(order, "<i8"))

    def _describe(self) -> None:
        notes = {"kind": self.form.kind, "dtype": self.form.dtype, "layout": self.form.layout}
        for name, note in notes.items():
            self.group.attrs[name] = note
        if self.form.shard is not None:
            self.group.attrs["shard"] = json.dumps(asdict(self.form.shard))

    def _make_values(self, first: Batch) -> None:
        form = self.form
        if form.layout == "rows":
            self._make("values", len(first))
        elif form.layout == "flat":
            self._make("values", sum(map(math.prod, first.shapes)))
        else:
            self._make("values", len(first))
            self._make("bytes", max(1, sum(map(size_of_numbers, first.values))))
        if form.layout != "rows":
            self._add("offsets", numpy.dtype("<i8"), (), len(first))
        if form.layout == "flat" or form.padded:
            self._add("shapes", numpy.dtype("<i8"), (len(form.shape),), len(first), dims=("axes",))

    def _make(self, name: str, expected: int) -> GrowingArray:
        """Makes the array of the values, or of the bytes of nested ones, with room for so many rows or elements."""
        form = self.form
        if name == "bytes":
            return self._add(name, numpy.dtype("<u1"), (), expected, along="elements", filtered=True)
        if form.layout == "rows":
            array = self._add(name, _type_of(form), form.shape, expected, filtered=True)
        elif form.layout == "flat":
            array = self._add(name, _type_of(form), (), expected, along="elements", filtered=True)
        else:
            array = self._add(name, strings(), (), expected)
        array.dataset.attrs["coordinates"] = "ranks calls modes"
        return array

    def _roomy(self, name: str, count: int) -> GrowingArray:
        """The array of the numbers, before it has so many; anew in longer chunks once they take many short ones."""
        array = self._arrays[name]
        if not array.is_short_for(count):
            return array
        content, held = array.content(), array.count
        for dim in array.dataset.dims:
            for scale in dim.values():
                dim.detach_scale(scale)
        self._along = [one for one in self._along if one is not array]
        del self.group[name]
        array = self._make(name, count)
        array.put_bytes(0, held, content)
        return array

    def _add(
        self,
        name: str,
        kind: Any,
        shape: tuple[int, ...],
        expected: int,
        *,
        along: str = "iterations",
        dims: Sequence[str] = (),
        filtered: bool = False,
    ) -> GrowingArray:
        """Makes an array and names its dimensions, as netCDF does, so that xarray knows them."""
        array = GrowingArray(self.group, name, kind, shape, self._settings, expected=expected, filtered=filtered)
        self._arrays[name] = array
        if along == "iterations":
            self._along.append(array)
            if self.index is not None:
                array.dataset.dims[0].attach_scale(self.index.scale)
        else:
            if along not in self._arrays:
                self._arrays[along] = dimension(self.group, along, None, self._settings)
            array.dataset.dims[0].attach_scale(self._arrays[along].dataset)
        for number, size in enumerate(shape):
            scale = dims[number] if dims else f"dim_{number}"
            if scale not in self._arrays:
                self._arrays[scale] = dimension(self.group, scale, size, self._settings)
            array.dataset.dims[number + 1].attach_scale(self._arrays[scale].dataset)
        return array

    def _put(self, name: str, start: int, rows: numpy.ndarray[Any, Any]) -> None:
        self._arrays[name].put(start, rows)

    def _write_rows(self, start: int, batch: Batch) -> None:
        kind = self.form.kind
        if kind == "str":
            self._arrays["values"].put_objects(start, list(batch.values))
            return
        array = self._roomy("values", start + len(batch))
        if kind != "tensor":
            array.put(start, numpy.asarray(batch.values, _NUMPY[kind]))
        elif type(batch.values) is Tensor:
            array.put_bytes(start, len(batch), bytes_of(batch.values))
        elif array.row_bytes >= _COPIED:
            array.put_each(start, [bytes_of(value) for value in batch.values])
        else:
            array.put_bytes(start, len(batch), bytes_of(torch.stack(list(batch.values))))

    def _write_flat(self, start: int, batch: Batch) -> None:
        flat = torch.cat([value.reshape(-1) for value in batch.values])
        sizes = [math.prod(shape) for shape in batch.shapes]
        self._put_elements("values", start, sizes, bytes_of(flat), flat.numel())

    def _write_nested(self, start: int, batch: Batch) -> None:
        texts, pieces, sizes = [], [numpy.zeros(0, numpy.uint8)], []
        for value in batch.values:
            text, tensors = encoded(value)
            texts.append(text)
            pieces.extend(map(bytes_of, tensors))
            sizes.append(sum(piece.size for piece in pieces[len(pieces) - len(tensors) :]))
        self._arrays["values"].put_objects(start, texts)
        data = numpy.concatenate(pieces)
        self._put_elements("bytes", start, sizes, data, data.size)

    def _put_elements(self, name: str, start: int, sizes: list[int], data: Any, count: int) -> None:
        """Adds to a flat array; `offsets` says where the elements of each record begin."""
        begins = self.elements + numpy.cumsum([0, *sizes], dtype="<i8")[:-1]
        self._put("offsets", start, begins)
        if count:
            self._arrays["elements"].grow(self.elements + count)
            self._roomy(name, self.elements + count).put_bytes(self.elements, count, data)
        self.elements += count


def _type_of(form: Form) -> Any:
    return (
        file_type(dtype_named(form.dtype))
        if form.kind == "tensor"
        else (strings() if form.kind == "str" else numpy.dtype(_NUMPY[form.kind]))
    )
