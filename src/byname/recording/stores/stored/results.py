"""What does a file hold? Its places, each as a `Series` whose values are read when they are asked for."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy

from byname.recording.processes.shard import Shard
from byname.recording.series import Series
from byname.recording.stores.layout.dtypes import modes, numbers
from byname.recording.stores.layout.parts import Form
from byname.recording.stores.stored.lazy import PartAt, Source, StoredValues
from byname.recording.stores.stored.trust import (
    attribute,
    broken,
    dataset_in,
    group_in,
    names_in,
    row_shape,
    storage,
    stored,
)
from byname.recording.values.nested import dtype_named
from byname.recording.views.reading import Picked

__all__ = ["Index", "Results", "Stored"]

_COLUMNS = {"iterations": "<i8", "ranks": "<i4", "calls": "<i4"}
_LAYOUTS = ("rows", "flat", "nested")
_KINDS = ("tensor", "int", "float", "bool", "complex", "str", "nested")


@dataclass(frozen=True, slots=True)
class Stored:
    """A place in a file.

    Attributes:
        path: the place.
        parts: of its values.
    """

    path: str
    parts: tuple[PartAt, ...]

    @property
    def count(self) -> int:
        """Of its records."""
        return sum(part.count for part in self.parts)


@dataclass(frozen=True, slots=True)
class Index:
    """The records of a place, without their values; one array a column.

    Attributes:
        iterations: of each record.
        ranks: of each record.
        calls: of each record.
        modes: 0 for train, 1 for eval.
        part: the number of the part that it is in.
        row: its number there.
    """

    iterations: Any
    ranks: Any
    calls: Any
    modes: Any
    part: Any
    row: Any


class Results(Mapping[str, Series]):
    """The places of a file, as they were when this was made.

    Args:
        source: the file.

    Raises:
        RecordingError: if the file is none that a recorder has written.
    """

    def __init__(self, source: Source) -> None:
        self._source = source
        with source.reading() as file:
            self.places = {place.path: place for place in _places(file)}

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __getitem__(self, path: str) -> Series:
        place = self.places[path]
        index = self.index(path)
        values = [StoredValues(self._source, part) for part in place.parts]
        several = len(values) > 1
        named = numpy.where(index.modes == 1, "eval", "train").tolist()
        shapes, shards = self._shapes(place), [part.form.shard for part in place.parts]
        numbered = list(zip(index.part.tolist(), index.row.tolist(), strict=True))
        return Series(
            path,
            Picked(values, index.part, index.row) if several else values[0],
            index.iterations.tolist(),
            index.ranks.tolist(),
            index.calls.tolist(),
            named,
            [shapes[part][row] for part, row in numbered],
            [shards[part] for part, _ in numbered] if any(shards) else (),
        )

    def index(self, path: str) -> Index:
        """When, where and how often the values of a place came."""
        parts = self.places[path].parts
        with self._source.reading() as file:
            columns = [_columns(part, part.group(file), len(parts)) for part in parts]
            order = numpy.concatenate([one.pop("order") for one in columns])
            if len(columns) > 1 and (numpy.sort(order) != numpy.arange(len(order))).any():
                raise broken(f"the records of {path} have no order")
        rows = [numpy.arange(part.count) for part in parts]
        numbered = [numpy.full(part.count, number) for number, part in enumerate(parts)]
        sorting = numpy.argsort(order, kind="stable")
        whole = {name: numpy.concatenate([one[name] for one in columns])[sorting] for name in columns[0]}
        return Index(**whole, part=numpy.concatenate(numbered)[sorting], row=numpy.concatenate(rows)[sorting])

    def size(self, path: str) -> int:
        """How many bytes the values of a place take in the file; of text, without the letters."""
        with self._source.reading() as file:
            groups = [part.group(file) for part in self.places[path].parts]
            names = [(group, name) for group in groups for name in ("values", "bytes") if name.encode() in group.id]
            return sum(int(storage(group, name)) for group, name in names)

    def _shapes(self, place: Stored) -> list[list[tuple[int, ...]]]:
        shapes = []
        for part in place.parts:
            form = part.form
            if not (form.padded or form.layout == "flat"):
                shapes.append([form.shape] * part.count)
                continue
            with self._source.reading() as file:
                found = dataset_in(part.group(file), "shapes", numbers("<i8"), (None, len(form.shape)))
                _check_length(found, part.count)
                shapes.append([tuple(shape) for shape in found[: part.count].tolist()])
        return shapes


def _places(file: Any) -> list[Stored]:
    numbered = []
    for name in names_in(file):
        if name == "byname":
            continue  # the mark by which the file and its journal know each other
        group = group_in(file, name)
        parts = [_part_at(group, (name,))]
        if b"more" in group.id:
            further = group_in(group, "more")
            inside = sorted(names_in(further), key=lambda one: (len(one), one))
            parts += [_part_at(group_in(further, one), (name, "more", one)) for one in inside]
        numbered.append((attribute(group, "number", int), Stored(attribute(group, "path", str), tuple(parts))))
    return [place for _, place in sorted(numbered, key=lambda pair: pair[0])]


def _part_at(group: Any, names: tuple[str, ...]) -> PartAt:
    layout, kind = attribute(group, "layout", str), attribute(group, "kind", str)
    if layout not in _LAYOUTS or kind not in _KINDS:
        raise broken(f"{group.name} has the layout {layout} and the kind {kind}, which this version does not know")
    shape: tuple[int, ...] = ()
    if kind == "tensor":
        dtype_named(attribute(group, "dtype", str))
        shape = (0,) * row_shape(group, "shapes")[0] if layout == "flat" else row_shape(group, "values")
    iterations = dataset_in(group, "iterations", numbers("<i8"), (None,))
    padded = layout == "rows" and b"shapes" in group.id
    form = Form(layout, kind, attribute(group, "dtype", str, ""), shape, _shard(group), padded)
    return PartAt(names, form, len(iterations))


def _shard(group: Any) -> Shard | None:
    text = attribute(group, "shard", str, "")
    if not text:
        return None
    try:
        facts = {name: tuple(fact) for name, fact in json.loads(text).items()}
        return Shard(**facts)
    except (ValueError, TypeError, AttributeError, RecursionError) as reason:
        raise broken(f"{group.name} is a part of a distributed tensor, and which cannot be read") from reason


def _columns(part: PartAt, group: Any, parts: int) -> dict[str, Any]:
    columns = {}
    for name, code in _COLUMNS.items():
        dataset = dataset_in(group, name, numbers(code), (None,))
        _check_length(dataset, part.count, whole=name == "iterations")
        columns[name] = dataset[: part.count]
    mode = dataset_in(group, "modes", modes(), (None,))
    _check_length(mode, part.count, whole=False)
    columns["modes"] = mode[: part.count]
    columns["order"] = numpy.arange(part.count)
    if parts > 1 and b"order" in group.id:
        order = dataset_in(group, "order", numbers("<i8"), (None,))
        _check_length(order, part.count)
        columns["order"] = order[: part.count]
    return columns


def _check_length(dataset: Any, count: int, *, whole: bool = True) -> None:
    """Whether an array has its records; only `ranks`, `calls` and `modes` need not have been written."""
    if len(dataset) < count:
        raise broken(f"{dataset.name} has {len(dataset)} records of {count}")
    if whole and stored(dataset) < count * dataset.id.get_type().get_size() * int(numpy.prod(dataset.shape[1:])):
        raise broken(f"{dataset.name} says that it has {count} records, and the file does not hold them")
