"""Reader: an HDF5 file as it is opened, and the series of the places in it."""

from __future__ import annotations

import json
import operator
import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy

from byname.errors import NotARecordingError, NotPermittedError, RecordingError
from byname.recording.columns import Scalars, SharedItems, distinct, end_to_end, picked
from byname.recording.lazy import Picked
from byname.recording.series import Series
from byname.recording.stores.arrays import FORMAT, VERSION, modes, numbers
from byname.recording.stores.described import Extent, Stored, check_described, places_of_groups
from byname.recording.stores.inventory import places_of_inventory
from byname.recording.stores.journal.committed import SIGNATURE, committed
from byname.recording.stores.journal.file_objects import read_by_hdf5
from byname.recording.stores.journal.journal import put_back
from byname.recording.stores.stored_values import PartAt, Source, StoredValues
from byname.recording.stores.validate import (
    attribute,
    broken,
    dataset_in,
    first_rows,
    group_in,
    names_in,
    storage,
    within_size,
)
from byname.table import listed
from byname.text import printable

_COLUMNS = {"iterations": "<i8", "ranks": "<i4", "calls": "<i4"}


@dataclass(frozen=True, slots=True)
class RecordIndex:
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
                found = places_of_groups if attribute(file, "version", int) == 1 else places_of_inventory
                self.places, self.missing = found(file)

    def __len__(self) -> int:
        return len(self.places)

    def __iter__(self) -> Iterator[str]:
        return iter(self.places)

    def __getitem__(self, path: str) -> Series:
        place = self.places[path]
        index = self.index(path)
        values: list[StoredValues] = [StoredValues(self._source, part) for part in place.parts]
        shapes = end_to_end([self._shapes(part) for part in place.parts])
        shards = end_to_end([SharedItems.all(part.form.shard, part.count) for part in place.parts])
        if several := len(place.parts) > 1:
            begins = numpy.cumsum([0, *(part.count for part in place.parts)])
            at = begins[index.part] + index.row
            shapes, shards = picked(shapes, at), picked(shards, at)
        return Series(
            path,
            Picked(values, index.part, index.row) if several else values[0],
            Scalars(index.iterations),
            Scalars(index.ranks),
            Scalars(index.calls),
            SharedItems((index.modes == 1).astype(numpy.int8), ("train", "eval")),
            shapes,
            shards if distinct(shards) != {None} else (),
            place.sampling,
            self._ends(path),
        )

    def _ends(self, path: str) -> list[tuple[str, int]]:
        with self._source.reading() as file:
            ends = _json(attribute(file, "ends", str, "{}"), dict).get(path, [])
        try:
            return [(str(mode), operator.index(iteration)) for mode, iteration in ends]
        except (TypeError, ValueError) as reason:
            raise broken(f"an attribute that is not an end of {path}: {ends!r:.60}") from reason

    def index(self, path: str) -> RecordIndex:
        """When, where and how often the values of a place came."""
        parts = self.places[path].parts
        with self._source.reading() as file:
            groups = [part.group(file) for part in parts]
            check_described(groups, self.places[path])
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
        return RecordIndex(**whole, part=numpy.concatenate(numbered)[sorting], row=numpy.concatenate(rows)[sorting])

    def extent(self, path: str) -> Extent:
        """What a place has, without its values: from the inventory, or from its arrays where the file has none."""
        known = self.places[path].extent
        if known is not None:
            return known
        index = self.index(path)
        first, last = (int(index.iterations.min()), int(index.iterations.max())) if len(index.row) else (0, -1)
        return Extent(first, last, frozenset(index.ranks.tolist()), self._size(path))

    def _size(self, path: str) -> int:
        """How many bytes the values of a place take in the file; of text, without the letters."""
        with self._source.reading() as file:
            groups = [part.group(file) for part in self.places[path].parts]
            names = [(group, name) for group in groups for name in ("values", "bytes") if name.encode() in group.id]
            return sum(int(storage(group, name)) for group, name in names)

    def _shapes(self, part: PartAt) -> SharedItems[tuple[int, ...]]:
        form = part.form
        if not (form.padded or form.layout == "flat"):
            return SharedItems.all(form.shape, part.count)
        with self._source.reading() as file:
            found = dataset_in(part.group(file), "shapes", numbers("<i8"), (None, len(form.shape)))
            return SharedItems.of([tuple(shape) for shape in first_rows(found, part.count).tolist()])


def _columns(part: PartAt, group: Any, parts: int) -> dict[str, Any]:
    columns = {}
    for name, code in _COLUMNS.items():
        dataset = dataset_in(group, name, numbers(code), (None,))
        columns[name] = first_rows(dataset, part.count, whole=name == "iterations")
    columns["modes"] = first_rows(dataset_in(group, "modes", modes(), (None,)), part.count, whole=False)
    columns["order"] = numpy.arange(part.count)
    if parts > 1 and b"order" in group.id:
        order = dataset_in(group, "order", numbers("<i8"), (None,))
        columns["order"] = first_rows(order, part.count)
    return columns


_FILES = {stat.S_IFIFO: "a pipe (a FIFO)", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a directory"}
_OWN = ("format", "version", "closed", "complete", "json", "missing", "ends", "last_iteration")


class FileSource:
    """A recording's file, to be read.

    Args:
        path: of the file.

    Raises:
        NotARecordingError: if it is something else.
        RecordingError: if it is cut off or damaged, or cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.shown = printable(str(path))
        self._held = ExitStack()
        self._file: Any = None
        self._closed = False
        self._mark = ""
        _put_back_if_left(path)
        with self._described(), self._opened() as file, within_size(file):
            self.run, self.complete, self.ended, self.missing = _facts(file, self.shown)
            self._mark = _mark(file)
        if self.ended:
            self._file = self._held.enter_context(self._opened())

    @property
    def opens_each_time(self) -> bool:
        """Whether it still may be written, and is not held open, which would be in its writer's way."""
        return self._file is None and not self._closed

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """The file, for as long as the context lasts."""
        if self._closed:
            raise RecordingError(f"{self.shown} was closed; open it again with byname.open")
        with self._described():
            if self._file is not None:
                yield self._file
                return
            with self._opened() as file:
                yield file

    def close(self) -> None:
        """Closes the file; once more does nothing."""
        self._closed, self._file = True, None
        self._held.close()

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        _check_start(self.path)
        with committed(self.path) as source, read_by_hdf5(source) as file:
            if self._mark and _mark(file) != self._mark:
                raise RecordingError(f"{self.shown} was replaced by another recording; open it again with byname.open")
            yield file

    @contextmanager
    def _described(self) -> Iterator[None]:
        """What goes wrong in HDF5 is said in one form, with the file."""
        try:
            yield
        except (NotARecordingError, RecordingError) as reason:
            if self.shown in str(reason):
                raise
            raise type(reason)(f"{self.shown}: {reason}") from reason.__cause__
        except PermissionError as reason:
            raise NotPermittedError(f"{self.shown} may not be read: {printable(str(reason.strerror))}") from reason
        except (OSError, RuntimeError, LookupError, ValueError, TypeError, ArithmeticError) as reason:  # also of HDF5
            raise RecordingError(f"{self.shown} is damaged or cut off: {printable(str(reason))}") from reason


def _put_back_if_left(path: Path) -> None:
    """What a killed writer left is put into the file for other readers, if that is sure and allowed; see `repair`."""
    with suppress(OSError, RuntimeError, ValueError, KeyError, TypeError):  # whoever opens it says what is wrong
        if os.access(path, os.W_OK) and os.access(os.path.realpath(path.parent), os.W_OK):
            put_back(path, is_whole, surely=True)


def is_whole(source: Any, marked_at: int) -> None:
    """Looks at what a file would be with its journal, before that is put into it.

    Raises:
        NotARecordingError, RecordingError: if that is no recording, or the journal is not that of it.
    """
    import h5py

    with read_by_hdf5(source) as file:
        _facts(file, "it")
        own = group_in(file, "byname")
        mark = own["identity"] if "identity" in names_in(own)[0] else None
        if not isinstance(mark, h5py.Dataset) or mark.id.get_offset() != marked_at:
            raise broken("its journal is that of another file")


def _check_start(path: Path) -> None:
    """Whether this is a file of HDF5 at all, before HDF5 has a look."""
    kind = path.stat().st_mode
    if not stat.S_ISREG(kind):  # to open a pipe would wait for somebody who writes to it
        raise NotARecordingError(f"{printable(str(path))} is {_FILES.get(stat.S_IFMT(kind), 'a device')}, and no file")
    with path.open("rb", buffering=0) as file:
        start = file.read(len(SIGNATURE))
        size = os.fstat(file.fileno()).st_size
    if not size:
        raise NotARecordingError(f"{printable(str(path))} is empty: nothing was written to it yet, or it was cut off")
    if start != SIGNATURE and any(start):
        found = (
            "Python's pickle or a zip file"
            if start[:2] in (b"PK", b"\x80\x02", b"\x80\x04", b"\x80\x05")
            else "no HDF5"
        )
        raise NotARecordingError(f"{printable(str(path))} is no recording: it begins as {found}, with {start!r}")


def _mark(file: Any) -> str:
    """What tells this recording from others that were written to the same file."""
    return f"{attribute(file, 'started', str)} {attribute(file, 'run_id', str, '')}"


def _facts(file: Any, shown: str) -> tuple[dict[str, Any], bool, bool, list[str]]:
    """The attributes of the run, whether it came to its end, and what it is known to have lost."""
    if attribute(file, "format", object, "") != FORMAT:
        inside = listed(list(file), 8)
        raise NotARecordingError(f"{shown} is HDF5, but no recording of byname; in it: {printable(inside)}")
    version = attribute(file, "version", int)
    if not 1 <= version <= VERSION:
        raise RecordingError(f"it was written in version {version} of the format, and this byname reads 1 to {VERSION}")
    coded = _json(attribute(file, "json", str), list)
    run = {name: attribute(file, name, object) for name in file.attrs if name not in _OWN}
    run.update({name: _json(run[name], object) for name in {*coded} if name in run})
    complete, ended = attribute(file, "complete", bool), attribute(file, "closed", bool)
    missing = [str(one) for one in _json(attribute(file, "missing", str), list)]
    if not ended:
        last = attribute(file, "last_iteration", int)
        after = f"what came after iteration {last}" if last >= 0 else "what was recorded"
        missing.append(
            f"the recording was not closed: it still runs, or its process ended before; {after} is not in the file"
        )
    return run, complete, ended, [printable(one) for one in missing]


def _json(text: Any, kind: type) -> Any:
    try:
        found = json.loads(text)
    except (ValueError, TypeError, RecursionError) as reason:
        raise broken(f"an attribute that is not JSON: {text!r:.60}") from reason
    if not isinstance(found, kind):
        raise broken(f"an attribute that is not a {kind.__name__}: {text!r:.60}")
    return found
