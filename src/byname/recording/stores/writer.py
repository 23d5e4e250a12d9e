"""Writer: how a recording gets into an HDF5 file, in windows that are in it whole or not at all."""

from __future__ import annotations

import json
import os
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy

from byname.errors import (
    RecordingError,
    RecordingWarning,
    recording_error,
)
from byname.reading.interrupts import defer_signals
from byname.recording.sampling import Sampling
from byname.recording.series import Series
from byname.recording.stores.arrays import ASKED, FORMAT, VERSION, Filters, Settings, filters_of, group_name
from byname.recording.stores.coordinates import write_all
from byname.recording.stores.inventory import FileInventory
from byname.recording.stores.journal.committed import committed
from byname.recording.stores.journal.file_objects import read_by_hdf5
from byname.recording.stores.journal.journaled_file import JournaledFile
from byname.recording.stores.parts import SHAPES, Batch, Form, Part, batches
from byname.recording.stores.target import needs_h5py, target
from byname.table import counted
from byname.text import printable

if TYPE_CHECKING:
    from byname.recording.stores.described import Stored


class WrittenPlace:
    """A place in a file that is being written.

    Args:
        file: open for writing.
        path: the place.
        number: how many places the file had before.
        settings: of the file.
        sampling: how its values were taken, if that is known.
    """

    def __init__(self, file: Any, path: str, number: int, settings: Settings, sampling: Sampling | None = None) -> None:
        self._path = path
        self._group = _compact_group(file, group_name(path))
        self._group.attrs["path"] = path
        self._group.attrs["number"] = number
        for name, fact in ({} if sampling is None else sampling.facts()).items():
            self._group.attrs[ASKED.get(name, name)] = fact
        self.sampling = sampling
        self._by_form: dict[Form, Part] = {}
        self._own: set[Form] = set()  # those with rows of their own
        self._shapes: Counter[Any] = Counter()
        self._count = 0
        self._settings = settings

    @property
    def parts(self) -> Iterable[Part]:
        """One for each form of values."""
        return self._by_form.values()

    def named(self) -> Iterator[tuple[tuple[str, ...], Part]]:
        """The parts, with the names that lead to each from the file."""
        own = group_name(self._path)
        for number, part in enumerate(self._by_form.values()):
            yield ((own, "more", str(number)) if number else (own,)), part

    def write(self, series: Series) -> None:
        """Adds records."""
        several = batches(series, self._count, self._settle)
        ordered = len({*self._by_form, *(batch.form for batch in several)}) > 1
        for batch in several:
            self._part(batch).write(batch, ordered=ordered)
        self._count += len(series)

    def _settle(self, form: Form) -> Form:
        """The form in which values are stored: where there are many shapes, those that come later are laid flat."""
        if form in self._own or form.kind != "tensor" or form.padded:
            return form
        alike = (form.dtype, form.shard)
        if self._shapes[alike] >= SHAPES:
            return replace(form, layout="flat", shape=tuple(0 for _ in form.shape))
        self._shapes[alike] += 1
        self._own.add(form)
        return form

    def _part(self, batch: Batch) -> Part:
        form = batch.form
        if form not in self._by_form:
            group = self._group
            if self._by_form:
                group = _compact_group(self._group.require_group("more"), str(len(self._by_form)))
            self._by_form[form] = Part(group, form, self._settings, batch)
        return self._by_form[form]


def _compact_group(parent: Any, name: str) -> Any:
    """Make a group whose attributes lie in its header: a heap of their own takes two kilobytes."""
    import h5py

    how = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
    how.set_attr_phase_change(_ATTRIBUTES, _ATTRIBUTES)
    return h5py.Group(h5py.h5g.create(parent.id, name.encode(), gcpl=how))


_ATTRIBUTES = 32
"""Of a group: more than a place has."""
_OUTSIDE = (OSError, RuntimeError, ValueError, KeyError)
"""What h5py raises when the file cannot be written: HDF5's own errors become one of these."""
_LARGE, _PAGE = 64 * 1024, 4096
"""Bytes of chunks that begin where a page of the disk does: the system writes them faster."""


class Hdf5Store:
    """Writes windows of values to a file; a `byname.recording.stores.memory.Store`.

    Args:
        path: of the file.
        run: facts of the run, which become attributes of the file.
        compression: see `filters_of`.
        overwrite: whether a file that is there may be replaced.

    Raises:
        RecordingError: if the file cannot be made.
        BadArgumentError: if there is no such compression.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        run: Mapping[str, Any],
        compression: Any = None,
        overwrite: bool = False,
    ) -> None:
        needs_h5py("recording to a file")
        self.path = target(path, overwrite=overwrite)
        filters = filters_of(compression)
        self._owner = os.getpid()
        self._places: dict[str, WrittenPlace] = {}
        self._changed: set[str] = set()
        self._waiting: defaultdict[str, list[Series]] = defaultdict(list)
        self._closed_with: list[Stored] | None = None
        self._missing: list[str] = []
        self._ends: dict[str, list[tuple[str, int]]] = {}
        self._last, self._records = -1, 0
        self._kept = "nothing yet"
        self._failure: RecordingError | None = None
        self._open(run, filters, overwrite)

    @property
    def failed(self) -> bool:
        """Whether the file can no longer be written."""
        return self._failure is not None

    def append(self, window: Mapping[str, Series]) -> None:
        """Takes the values that came since the last window."""
        if self._file is None or os.getpid() != self._owner:
            return
        for path, series in window.items():
            if len(series):
                self._waiting[path].append(series)

    def flush(self) -> None:
        """Makes what was appended outlive a kill of the process, and seen by readers.

        Raises:
            RecordingError: if the file can no longer be written.
        """
        if os.getpid() != self._owner:
            return
        if self._file is not None:
            self._guarded(self._write_and_commit)
        if self._failure is not None:
            raise self._failure

    def lose(self, sentence: str) -> None:
        """Notes in words that something is missing in the recording."""
        if self._file is None or os.getpid() != self._owner:
            return
        self._missing.append(sentence)

    def end(self, path: str, times: Sequence[tuple[str, int]]) -> None:
        """Notes from which iterations on, one of each mode, nothing stands at a place."""
        self._ends.setdefault(path, []).extend(times)

    def close(self, *, complete: bool = True) -> None:
        """Writes what is left, and closes the file.

        Raises:
            RecordingError: if it could not be written.
        """
        if os.getpid() != self._owner:
            return self._let_go()
        if self._file is not None:
            self._guarded(lambda: self._finish(complete))
        if self._failure is not None:
            self._closed_with = None
        failure, self._failure = self._failure, None
        if failure is not None:
            raise failure
        return None

    def withdraw(self) -> None:
        """Removes the file again, after `close`, where the recording did not come to begin."""
        if os.getpid() == self._owner and not self._records:
            self.path.unlink(missing_ok=True)

    def results(self) -> Mapping[str, Series]:
        """All that was taken so far, by path; values are read from the file when they are asked for."""
        from byname.recording.stores.reader import StoredPlaces

        if self._file is not None:
            self._guarded(self._write)
        return StoredPlaces(self, self._in_it())

    def _in_it(self) -> list[Stored] | None:
        """What was written, without a look at the file; None where it is not known whether all of it is in there."""
        from byname.recording.stores.described import Stored
        from byname.recording.stores.stored_values import PartAt

        if self._file is None:
            return self._closed_with
        return [
            Stored(path, tuple(PartAt(names, part.form, part.count) for names, part in place.named()), place.sampling)
            for path, place in self._places.items()
        ]

    @property
    def opens_each_time(self) -> bool:
        """Whether it is no longer being written."""
        return self._file is None

    @contextmanager
    def reading(self) -> Iterator[Any]:
        """The file, to be read: the one being written, or what there is of it."""
        if self._file is not None:
            yield self._file
            return

        with committed(self.path) as source, read_by_hdf5(source) as file:
            yield file

    def _open(self, run: Mapping[str, Any], filters: Filters, overwrite: bool) -> None:
        try:
            with defer_signals(also_repeated=True):
                self._disk = JournaledFile(self.path, overwrite=overwrite)
                try:
                    self._begin(run, filters)
                except BaseException:
                    self._disk.close()  # which leaves no file
                    raise
        except _OUTSIDE as reason:
            shown = printable(str(self.path))
            raise recording_error(f"{shown} cannot be written: {printable(str(reason))}", reason) from reason

    def _begin(self, run: Mapping[str, Any], filters: Filters) -> None:
        import h5py

        # A file begun as of HDF5 1.8 has no mark of being written, by which others would refuse it after a kill. Opened
        # again as of 1.10, it gets indexes of chunks that are small, and fast for many chunks.
        h5py.File(self._disk, "w", libver=("v108", "v110")).close()
        uncached = {} if filters.code else {"rdcc_nbytes": 0}
        self._file = h5py.File(
            self._disk, "r+", libver=("v110", "v110"), alignment_threshold=_LARGE, alignment_interval=_PAGE, **uncached
        )
        self._disk.sign(self._file)
        self._settings = Settings(self._disk, filters, int(run.get("rank", 0)))
        self._inventory = FileInventory(self._file, self._settings)
        self._describe(run)
        self._commit()

    def _describe(self, run: Mapping[str, Any]) -> None:
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        facts: dict[str, Any] = {
            "rank": 0,
            "world_size": 1,
            "started": now,
            **run,
            "format": FORMAT,
            "version": VERSION,
        }
        coded = sorted(name for name, fact in facts.items() if not _native(fact))
        attributes = self._file.attrs
        for name, fact in facts.items():
            attributes[name] = json.dumps(fact, default=str) if name in coded else fact
        attributes["json"] = json.dumps(coded)
        attributes["missing"] = "[]"
        attributes["complete"] = attributes["closed"] = False
        attributes["last_iteration"] = numpy.int64(-1)
        attributes["updated"] = numpy.bytes_(now)  # of fixed length: changing it takes no room

    def _write_and_commit(self) -> None:
        self._write()
        self._note_progress()
        self._commit()

    def _commit(self) -> None:
        self._file.flush()
        self._disk.commit()
        if self._records:
            self._kept = f"{counted(self._records, 'record')} up to iteration {self._last}"

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, defaultdict(list)
        for path, several in waiting.items():
            place = self._places.get(path)
            if place is None:
                place = self._places[path] = WrittenPlace(
                    self._file, path, len(self._places), self._settings, several[0].sampling
                )
            for series in several:
                place.write(series)
                self._records += len(series)
                self._last = max(self._last, max(series.iterations))
            self._changed.add(path)
        written = [part for path in waiting for part in self._places[path].parts if part.fresh]
        write_all(written, self._settings)

    def _note_progress(self) -> None:
        changed = [(path, self._places[path]) for path in self._places if path in self._changed]
        self._changed.clear()
        if changed:
            lines = [self._inventory.note(path, place.sampling, place.parts) for path, place in changed]
            self._inventory.write("".join(lines))
        attributes = self._file.attrs
        attributes.modify("updated", numpy.bytes_(datetime.now(UTC).isoformat(timespec="milliseconds")))
        attributes.modify("last_iteration", numpy.int64(self._last))
        if self._missing:
            noted = json.loads(attributes["missing"])
            attributes["missing"] = json.dumps([*noted, *self._missing])
            self._missing = []
            if self._ends:  # such a place is among what is missing
                attributes["ends"] = json.dumps(self._ends)

    def _finish(self, complete: bool) -> None:
        self._write()
        self._note_progress()
        whole = complete and self._file.attrs["missing"] == "[]"
        self._file.attrs.modify("complete", numpy.bool_(whole))
        self._file.attrs.modify("closed", numpy.bool_(True))
        self._commit()
        self._closed_with = self._in_it()
        file, self._file = self._file, None
        self._places.clear()
        file.close()
        self._disk.commit()
        self._disk.close()

    def _guarded(self, action: Any) -> None:
        """Does something with the file; what goes wrong there ends the recording, and not the program."""
        try:
            with defer_signals(also_repeated=True):
                action()
        except _OUTSIDE as reason:
            self._give_up(reason)

    def _let_go(self) -> None:
        """Holds the file no longer: it is lost, or belongs to the process that this one was forked from."""
        file, self._file = self._file, None
        self._places.clear()
        self._waiting.clear()
        for thing in (file, self._disk):
            with (
                defer_signals(also_repeated=True),
                suppress(*_OUTSIDE),
            ):  # a lost one has been reported, and a fork writes nothing
                if thing is not None:
                    thing.close()

    def _give_up(self, reason: Exception) -> None:
        cut = self._disk.cut_off()
        if cut is not None:
            reason, self._kept = cut, "nothing that can be read"
        self._let_go()
        text = f"{printable(str(self.path))} can no longer be written ({printable(str(reason))}); in it: {self._kept}"
        self._failure = recording_error(text, reason)
        self._failure.__cause__ = reason
        warnings.warn(f"{text}; the program goes on, and is not recorded", RecordingWarning, stacklevel=4)


def _native(fact: Any) -> bool:
    """Whether HDF5 has such a value."""
    if type(fact) is int:
        return -(2**63) <= fact < 2**63
    return type(fact) in (bool, float) or (type(fact) is str and "\0" not in fact and fact.isprintable())
