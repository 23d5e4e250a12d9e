"""What does a file hold? Its places, each as a `Series` whose values are read when they are asked for."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy

from byname.recording.processes.shard import Shard
from byname.recording.processes.shards import checked
from byname.recording.sampling import Sampling
from byname.recording.series import Series
from byname.recording.stores.layout.dtypes import modes, numbers
from byname.recording.stores.layout.names import ASKED, group_name, place_of
from byname.recording.stores.layout.parts import Form
from byname.recording.stores.stored.lazy import PartAt, Source, StoredValues
from byname.recording.stores.stored.trust import (
    attribute,
    broken,
    check_packed,
    dataset_in,
    flat_shape,
    group_in,
    names_in,
    row_shape,
    storage,
    stored,
    within_size,
)
from byname.recording.values.nested import dtype_named
from byname.recording.views.reading import Picked
from byname.table import counted, printable

__all__ = ["Index", "StoredPlaces", "Stored"]

_COLUMNS = {"iterations": "<i8", "ranks": "<i4", "calls": "<i4"}
_FACTS = {name: int if name in ("every", "start", "stop", "on_change") else str for name in Sampling.__slots__}
_NOTHING: Any = object()
_KINDS = {"rows": ("tensor", "int", "float", "bool", "complex", "str"), "flat": ("tensor",), "nested": ("nested",)}
"""Of the values that each layout has."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A place in a file.

    Attributes:
        path: the place.
        parts: of its values.
        sampling: how they were taken; None in a file of an older byname.
    """

    path: str
    parts: tuple[PartAt, ...]
    sampling: Sampling | None = None

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


class StoredPlaces(Mapping[str, Series]):
    """The places of a file, as they were when this was made.

    Args:
        source: the file.
        places: what is in it, where that is known without a look.

    Attributes:
        places: by their paths.
        missing: those that were left out, in words.

    Raises:
        RecordingError: if the file is none that a recorder has written.
    """

    def __init__(self, source: Source, places: Iterable[Stored] | None = None) -> None:
        self._source = source
        self.missing: tuple[str, ...] = ()
        if places is not None:
            self.places = {place.path: place for place in places}
            return
        with source.reading() as file:
            with within_size(file):
                self.places, self.missing = _places(file)

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
            place.sampling,
        )

    def index(self, path: str) -> Index:
        """When, where and how often the values of a place came."""
        parts = self.places[path].parts
        with self._source.reading() as file:
            groups = [part.group(file) for part in parts]
            for part, group in zip(parts, groups, strict=True):
                StoredValues(self._source, part).check(group)  # first: many places may lead to the same columns
            columns = [_columns(part, group, len(parts)) for part, group in zip(parts, groups, strict=True)]
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
                shapes.append([tuple(shape) for shape in _read(found, part.count).tolist()])
        return shapes


def _places(file: Any) -> tuple[dict[str, Stored], tuple[str, ...]]:
    """The places by their paths, in order, and in words what else there should be."""
    names, links = names_in(file)
    missing = [
        f"what was recorded at `{place_of(name)}`: there is {kind}, which is not followed"
        for name, kind in links.items()
    ]
    numbered: dict[str, tuple[int, str, Stored]] = {}
    last = -1
    for name in names:
        if name == "byname":
            continue  # the mark by which the file and its journal know each other
        number, place = _place_at(file, name)
        other = numbered.get(place.path)
        if other is not None:
            kept, left_out = (name, other[1]) if group_name(place.path) == name else (other[1], name)
            missing.append(
                f"what was recorded at `{place_of(left_out)}`: it says that it is `{place.path}`, as does {kept}"
            )
        if other is None or kept == name:
            numbered[place.path] = number, name, place
        last = max(last, number)
    gone = last + 1 - len(numbered) - len(missing)
    if gone > 0:
        missing.append(f"{counted(gone, 'place')} that the file had: its numbers of places lead to {last}")
    in_order = sorted(numbered.values(), key=lambda one: one[0])
    return {place.path: place for _, _, place in in_order}, tuple(map(printable, missing))


def _place_at(file: Any, name: str) -> tuple[int, Stored]:
    """A place by the name of its group, and the number that it has among all places."""
    group = group_in(file, name)
    parts = [_part_at(group, (name,))]
    if b"more" in group.id:
        further = group_in(group, "more")
        inside, links = names_in(further)
        if links:
            raise broken(f"{next(iter(links))} in {further.name} is a link, which is not followed")
        inside.sort(key=lambda one: (len(one), one))
        parts += [_part_at(group_in(further, one), (name, "more", one)) for one in inside]
    return attribute(group, "number", int), Stored(attribute(group, "path", str), tuple(parts), _sampling(group))


def _sampling(group: Any) -> Sampling | None:
    if "every" not in group.attrs:
        return None
    read: dict[str, Any] = {}
    for name, kind in _FACTS.items():
        found = attribute(group, ASKED.get(name, name), kind, _NOTHING)
        if found is not _NOTHING:
            read[name] = printable(found) if kind is str else found
    try:
        return Sampling.of(read)
    except (TypeError, KeyError) as reason:
        raise broken(f"{group.name} does not say how its values were taken") from reason


def _part_at(group: Any, names: tuple[str, ...]) -> PartAt:
    layout, kind = attribute(group, "layout", str), attribute(group, "kind", str)
    if kind not in _KINDS.get(layout, ()):
        raise broken(f"{group.name} has the layout {layout} and the kind {kind}, which this version does not know")
    shape: tuple[int, ...] = ()
    dtype = attribute(group, "dtype", str, "")
    if kind == "tensor":
        dtype_named(dtype)
        shape = flat_shape(group) if layout == "flat" else row_shape(group, "values")
    elif dtype:
        raise broken(f"{group.name} has the kind {kind} and the dtype {dtype}, which only tensors have")
    iterations = dataset_in(group, "iterations", numbers("<i8"), (None,))
    padded = layout == "rows" and b"shapes" in group.id
    return PartAt(names, Form(layout, kind, dtype, shape, _shard(group), padded), len(iterations))


def _shard(group: Any) -> Shard | None:
    text = attribute(group, "shard", str, "")
    if not text:
        return None
    try:
        facts = {name: tuple(fact) for name, fact in json.loads(text).items()}
        return checked(Shard(**facts))
    except (ValueError, TypeError, AttributeError, RecursionError) as reason:
        raise broken(f"{group.name} is a part of a distributed tensor, and which cannot be read") from reason


def _columns(part: PartAt, group: Any, parts: int) -> dict[str, Any]:
    columns = {}
    for name, code in _COLUMNS.items():
        dataset = dataset_in(group, name, numbers(code), (None,))
        columns[name] = _read(dataset, part.count, whole=name == "iterations")
    columns["modes"] = _read(dataset_in(group, "modes", modes(), (None,)), part.count, whole=False)
    columns["order"] = numpy.arange(part.count)
    if parts > 1 and b"order" in group.id:
        order = dataset_in(group, "order", numbers("<i8"), (None,))
        columns["order"] = _read(order, part.count)
    return columns


def _read(dataset: Any, count: int, *, whole: bool = True) -> Any:
    """The first records of an array that has them; only `ranks`, `calls` and `modes` need not have been written."""
    if len(dataset) < count:
        raise broken(f"{dataset.name} has {len(dataset)} records of {count}")
    if whole and stored(dataset) < count * dataset.id.get_type().get_size() * math.prod(dataset.shape[1:]):
        raise broken(f"{dataset.name} says that it has {count} records, and the file does not hold them")
    check_packed(dataset, 0, count)
    return dataset[:count]
