"""Stored values: values of a file that are read when they are asked for, and only those."""

from __future__ import annotations

import copy
import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, overload

import numpy
import torch

from byname.codec import decoded, dtype_named
from byname.recording.stores.arrays import file_type, numbers, strings, taken_as
from byname.recording.stores.parts import Form
from byname.recording.stores.validate import broken, check_packed, dataset_in, group_in, stored, text_lengths

BLOCK = 4 * 2**20
"""Bytes that are read at once where values are asked for one after another."""
NEAR = 2**20
"""Bytes that are read with a single value, where the file has to be opened for it."""


class Source(Protocol):
    """A file from which values are read."""

    @property
    def opens_each_time(self) -> bool:
        """Whether the file is not held open, so that each reading costs as much as opening it."""

    def reading(self) -> AbstractContextManager[Any]:
        """The file (``h5py.File``), for as long as the context lasts."""


@dataclass(frozen=True, slots=True)
class PartAt:
    """Where a part of a place is, and what was in it when it was looked at.

    Attributes:
        groups: the names that lead to it.
        form: of its values.
        count: of its records.
    """

    groups: tuple[str, ...]
    form: Form
    count: int

    def group(self, file: Any) -> Any:
        """Its group in the open file."""
        for name in self.groups:
            file = group_in(file, name)
        return file


@dataclass(slots=True)
class _Seen:
    """What was found out about the arrays of a part; they are the same each time that they are read.

    Attributes:
        whole: the arrays of which the file has all that they say.
        unpacked: the chunks that unpack to what they say, by array.
        sizes: the bytes of each value, where they differ.
        texts: the bytes of each text.
    """

    whole: set[str] = field(default_factory=set)
    unpacked: dict[str, set[int]] = field(default_factory=dict)
    sizes: Any = None
    texts: Any = None


class StoredValues(Sequence[Any]):
    """The values of one part of a place, or some of them.

    Args:
        source: the file.
        part: which values.
        rows: the rows of the part that these are; all by default.
    """

    __slots__ = ("_near", "_seen", "part", "rows", "source")

    def __init__(self, source: Source, part: PartAt, rows: range | None = None) -> None:
        self.source = source
        self.part = part
        self.rows = range(part.count) if rows is None else rows
        self._seen = _Seen()
        self._near: tuple[int, list[Any]] = (0, [])  # the first row of what was read around a value, and these values

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, which: int) -> Any: ...
    @overload
    def __getitem__(self, which: slice) -> StoredValues: ...
    def __getitem__(self, which: int | slice) -> Any:
        if isinstance(which, slice):
            some = StoredValues(self.source, self.part, self.rows[which])
            some._seen = self._seen
            return some
        row = self.rows[operator.index(which)]
        return self._read_near(row) if self.source.opens_each_time else self._read(row, row + 1)[0]

    def _read_near(self, row: int) -> Any:
        """The value of a row; those beside it are read with it, and kept for whoever goes from one to the next."""
        start, values = self._near
        if not start <= row < start + len(values):
            start, stop = self._around(row)
            values = self._read(start, stop)
            self._near = start, values
        return copy.deepcopy(values[row - start])  # it is the caller's, who may change it

    def __iter__(self) -> Iterator[Any]:
        if abs(self.rows.step) != 1:
            yield from (self[number] for number in range(len(self)))
            return
        for start, stop in self._blocks():
            rows = self.rows[start:stop]
            values = self._read(min(rows), max(rows) + 1)
            yield from values if rows.step > 0 else values[::-1]

    def __repr__(self) -> str:
        return f"<{len(self)} values in a file>"

    @property
    def array(self) -> StoredNumbers | None:
        """The values as one array that reads what is asked of it; None where they are no numbers of one shape."""
        return StoredNumbers(self) if self.part.form.layout == "rows" and self.part.form.kind != "str" else None

    def check(self, group: Any) -> None:
        """Looks whether the file can hold the values that there are said to be; reads none of them."""
        if self.part.form.layout == "flat":
            self._check(dataset_in(group, "offsets", numbers("<i8"), (None,)))
        elif self._is_text:
            self._check(dataset_in(group, "values", strings(), (None,)))
        else:
            self.dataset(group)

    @property
    def _is_text(self) -> bool:
        return self.part.form.kind in ("str", "nested")

    def _around(self, row: int) -> tuple[int, int]:
        """Where the rows begin and end that are read with one of them: `NEAR` bytes, or the value that has more."""
        block = self._of_equal_size(NEAR)
        if block:
            start = row - row % block
            return start, min(start + block, self.part.count)
        with self.source.reading() as file:
            before = numpy.cumsum(self._sizes(self.part.group(file)) + 8) // NEAR
        return int(numpy.searchsorted(before, before[row])), int(numpy.searchsorted(before, before[row], "right"))

    def _of_equal_size(self, size: int) -> int:
        """So many rows have this size, at least one; 0 where each has its own."""
        form = self.part.form
        if form.layout != "rows" or form.kind == "str":
            return 0
        row = math.prod(form.shape) * dtype_named(form.dtype).itemsize if form.dtype else 16
        return max(1, size // max(row, 8))

    def _blocks(self) -> Iterator[tuple[int, int]]:
        """Where in the rows those begin and end that are read at once: `BLOCK` bytes, or the value that has more."""
        block = self._of_equal_size(BLOCK)
        if block:
            yield from ((start, start + block) for start in range(0, len(self.rows), block))
        elif self.rows:
            with self.source.reading() as file:
                sizes = self._sizes(self.part.group(file))[numpy.asarray(self.rows)]
            before = numpy.cumsum(sizes + 8) // BLOCK
            starts = [0, *(numpy.flatnonzero(numpy.diff(before)) + 1).tolist(), len(self.rows)]
            yield from itertools.pairwise(starts)

    def _sizes(self, group: Any) -> Any:
        """The bytes of each value, where they differ."""
        if self._seen.sizes is None:
            sizes = self._text_lengths(group) if self._is_text else numpy.zeros(self.part.count, numpy.int64)
            if self.part.form.layout != "rows":
                elements, each = self._elements(group)
                sizes = sizes + numpy.diff(self._begins(group, 0, self.part.count, elements)) * each
            self._seen.sizes = sizes
        return self._seen.sizes

    def _read(self, start: int, stop: int) -> list[Any]:
        with self.source.reading() as file:
            group = self.part.group(file)
            return _READERS[self.part.form.layout](self, group, start, stop)

    def _rows(self, group: Any, start: int, stop: int) -> list[Any]:
        form = self.part.form
        if form.kind == "str":
            return [one.decode() for one in self._texts(group, start, stop)]
        dataset = self.dataset(group, start, stop)
        if form.kind != "tensor":
            read: list[Any] = dataset[start:stop].tolist()
            return read
        raw = _bytes_of_rows(dataset, start, stop)
        whole = _tensor(raw, form.dtype, (stop - start, *form.shape))
        return [whole[0]] if stop - start == 1 else [one.clone() for one in whole]

    def _flat(self, group: Any, start: int, stop: int) -> list[Any]:
        form, ndim = self.part.form, len(self.part.form.shape)
        values, _ = self._elements(group)
        found_shapes = dataset_in(group, "shapes", numbers("<i8"), (None, ndim))
        self._check(found_shapes, start, stop)
        shapes = found_shapes[start:stop].tolist()
        found = []
        for shape, (low, high) in zip(shapes, self._bounds(group, start, stop, values), strict=True):
            if min(shape, default=0) < 0 or math.prod(shape) != high - low:
                raise broken(f"a shape that does not fit its elements: {shape}")
            found.append(_tensor(_bytes_of_rows(values, low, high), form.dtype, tuple(shape)))
        return found

    def _nested(self, group: Any, start: int, stop: int) -> list[Any]:
        data, _ = self._elements(group)
        bounds = self._bounds(group, start, stop, data)
        texts = self._texts(group, start, stop)
        return [decoded(text, data[low:high].data) for text, (low, high) in zip(texts, bounds, strict=True)]

    def _texts(self, group: Any, start: int, stop: int) -> list[bytes]:
        self._text_lengths(group)
        read: list[bytes] = dataset_in(group, "values", strings(), (None,))[start:stop].tolist()
        return read

    def _text_lengths(self, group: Any) -> Any:
        if self._seen.texts is None:
            texts = dataset_in(group, "values", strings(), (None,))
            self._check(texts)
            self._seen.texts = text_lengths(texts, self.part.count)
        return self._seen.texts

    def _elements(self, group: Any) -> tuple[Any, int]:
        """The array in which the elements of all values lie one after another, and the bytes of each."""
        if self.part.form.layout == "nested":
            return dataset_in(group, "bytes", numbers("<u1"), (None,)), 1
        dtype = dtype_named(self.part.form.dtype)
        return dataset_in(group, "values", file_type(dtype), (None,)), dtype.itemsize

    def _bounds(self, group: Any, start: int, stop: int, elements: Any) -> list[tuple[int, int]]:
        """Where the elements of each record are, which can be read."""
        begins = self._begins(group, start, stop, elements).tolist()
        self._check(elements, begins[0], begins[-1], count=len(elements))
        return list(itertools.pairwise(begins))

    def _begins(self, group: Any, start: int, stop: int, elements: Any) -> Any:
        """Where the elements of each record begin, and those of the last one end; all are some that there are."""
        offsets = dataset_in(group, "offsets", numbers("<i8"), (None,))
        self._check(offsets, start, stop + 1)
        begins = offsets[start : stop + 1]
        if len(begins) == stop - start:
            begins = numpy.append(begins, len(elements))
        if (begins[1:] < begins[:-1]).any() or begins[0] < 0 or begins[-1] > len(elements):
            raise broken("offsets that lead outside of the values")
        return begins

    def dataset(self, group: Any, start: int = 0, stop: int = 0) -> Any:
        """The array of the values, after a look at whether all of it is there, and these rows can be unpacked."""
        form = self.part.form
        kind = file_type(dtype_named(form.dtype)) if form.kind == "tensor" else numbers(_NUMPY[form.kind])
        found = dataset_in(group, "values", kind, (None, *form.shape))
        self._check(found, start, stop)
        return found

    def _check(self, dataset: Any, start: int = 0, stop: int = 0, *, count: int | None = None) -> None:
        """Refuses an array of which the file has less than it says, or that is something else when it is unpacked.

        Args:
            dataset: the array.
            start: the first row that is to be read.
            stop: the row after the last.
            count: how many rows it needs; those of the part by default.
        """
        name, count = dataset.name, self.part.count if count is None else count
        if len(dataset) < count:
            raise broken(f"{name} has {len(dataset)} records, and {count} were there before")
        if name not in self._seen.whole:
            needed = count * math.prod(dataset.shape[1:]) * dataset.id.get_type().get_size()
            held = stored(dataset)
            if held < needed:
                raise broken(f"{name} says that it has {needed} bytes, and the file has {held} of them")
            self._seen.whole.add(name)
        check_packed(dataset, start, stop, self._seen.unpacked.setdefault(name, set()))


class StoredNumbers:
    """Values of one shape as an array: what is asked for is read, and given as NumPy does.

    Args:
        values: of which this is the array.
    """

    __slots__ = ("_tail", "dtype", "values")

    def __init__(self, values: StoredValues) -> None:
        form = values.part.form
        self.values = values
        self._tail = form.shape
        kind = _numpy_dtype(taken_as(dtype_named(form.dtype))) if form.dtype else numpy.dtype(_NUMPY[form.kind])
        self.dtype: numpy.dtype[Any] = kind

    @property
    def shape(self) -> tuple[int, ...]:
        """The number of records, then the shape of each."""
        return (len(self.values), *self._tail)

    @property
    def ndim(self) -> int:
        """How many dimensions there are."""
        return len(self.shape)

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, which: Any) -> Any:
        key = which if isinstance(which, tuple) else (which,)
        first, rest = (key[0], key[1:]) if key and key[0] is not Ellipsis else (slice(None), key)
        if isinstance(first, slice):
            return self._read(self.values.rows[first])[(slice(None), *rest)]
        if isinstance(first, int | numpy.integer) and not isinstance(first, bool):
            row = self.values.rows[int(first)]
            return self._read(range(row, row + 1))[(0, *rest)]
        picked = numpy.arange(len(self))[first]  # a list or array of positions, or of truth values
        there, back = numpy.unique(picked, return_inverse=True)
        rows = [self[int(one)] for one in there]
        block = numpy.stack(rows) if rows else numpy.empty((0, *self._tail), self.dtype)
        return block[back.reshape(picked.shape)][(slice(None), *rest)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> numpy.ndarray[Any, Any]:
        return numpy.asarray(self[:], dtype)

    def _read(self, rows: range) -> numpy.ndarray[Any, Any]:
        if not rows:
            return numpy.empty((0, *self._tail), self.dtype)
        part = self.values.part
        with self.values.source.reading() as file:
            low, high = sorted((rows[0], rows[-1]))
            dataset = self.values.dataset(part.group(file), low, high + 1)
            block = dataset[low : high + 1 : abs(rows.step)]
        block = _as_numbers(block, part.form)
        return block if rows.step > 0 else block[::-1]


_READERS = {"rows": StoredValues._rows, "flat": StoredValues._flat, "nested": StoredValues._nested}
_NUMPY = {"int": "<i8", "float": "<f8", "bool": "bool", "complex": "<c16"}


def _bytes_of_rows(dataset: Any, start: int, stop: int) -> numpy.ndarray[Any, Any]:
    """Rows as the bytes that the file holds, without any conversion."""
    from h5py import h5s

    kind = dataset.id.get_type()
    shape = (stop - start, *dataset.shape[1:])
    out = numpy.empty(math.prod(shape) * kind.get_size(), numpy.uint8)
    if out.size:
        there = dataset.id.get_space()
        there.select_hyperslab((start, *(0 for _ in shape[1:])), shape)
        dataset.id.read(h5s.create_simple(shape), there, out, kind)
    return out


def _tensor(raw: numpy.ndarray[Any, Any], name: str, shape: tuple[int, ...]) -> torch.Tensor:
    dtype = dtype_named(name)
    if not raw.size:
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(raw, dtype=dtype).view(shape)


def _as_numbers(block: numpy.ndarray[Any, Any], form: Form) -> numpy.ndarray[Any, Any]:
    """What h5py read, as numbers: it has made float32 of bfloat16, and knows nothing of eight-bit floats."""
    dtype = dtype_named(form.dtype) if form.dtype else torch.float32
    if dtype is torch.bfloat16 or taken_as(dtype) == dtype:
        return block
    raw = numpy.ascontiguousarray(block).reshape(-1).view(numpy.uint8)
    numbers: numpy.ndarray[Any, Any] = _tensor(raw, form.dtype, block.shape).to(taken_as(dtype)).numpy()
    return numbers


def _numpy_dtype(dtype: torch.dtype) -> numpy.dtype[Any]:
    return torch.empty(0, dtype=dtype).numpy().dtype
