"""How does a recording get into an HDF5 file? In windows, each of which is in the file whole or not at all."""

from __future__ import annotations

import json
import os
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import numpy

from byname.errors import RecordingError, RecordingWarning, recording_error
from byname.reading.interrupts import defer_signals
from byname.recording.series import Series
from byname.recording.stores.journal.committed import committed
from byname.recording.stores.journal.journal import JournaledFile
from byname.recording.stores.journal.positioned import read_by_hdf5
from byname.recording.stores.layout.arrays import Filters, Settings
from byname.recording.stores.layout.filters import filters_of
from byname.recording.stores.layout.indexes import write_all
from byname.recording.stores.layout.names import FORMAT, VERSION
from byname.recording.stores.layout.places import Place
from byname.recording.stores.layout.targets import needs_h5py, target
from byname.table import counted, printable

if TYPE_CHECKING:
    from byname.recording.stores.stored.results import Stored

__all__ = ["Hdf5Store"]

_OUTSIDE = (OSError, RuntimeError, ValueError, KeyError)
"""What h5py raises when the file cannot be written: HDF5's own errors become one of these."""


class Hdf5Store:
    """Writes windows of values to a file; a `byname.recording.stores.store.Store`.

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
        self._places: dict[str, Place] = {}
        self._waiting: defaultdict[str, list[Series]] = defaultdict(list)
        self._closed_with: list[Stored] | None = None
        self._missing: list[str] = []
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
        from byname.recording.stores.stored.results import StoredPlaces

        if self._file is not None:
            self._guarded(self._write)
        return StoredPlaces(self, self._in_it())

    def _in_it(self) -> list[Stored] | None:
        """What was written, without a look at the file; None where it is not known whether all of it is in there."""
        from byname.recording.stores.stored.lazy import PartAt
        from byname.recording.stores.stored.results import Stored

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

        uncached = {} if filters.code else {"rdcc_nbytes": 0}
        self._file = h5py.File(self._disk, "w", libver=("v108", "v110"), **uncached)
        self._disk.sign(self._file)
        self._settings = Settings(self._disk, filters, int(run.get("rank", 0)))
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
                place = self._places[path] = Place(
                    self._file, path, len(self._places), self._settings, several[0].sampling
                )
            for series in several:
                place.write(series)
                self._records += len(series)
                self._last = max(self._last, max(series.iterations))
        written = [part for path in waiting for part in self._places[path].parts if part.fresh]
        write_all(written, self._settings)

    def _note_progress(self) -> None:
        attributes = self._file.attrs
        attributes.modify("updated", numpy.bytes_(datetime.now(UTC).isoformat(timespec="milliseconds")))
        attributes.modify("last_iteration", numpy.int64(self._last))
        if self._missing:
            noted = json.loads(attributes["missing"])
            attributes["missing"] = json.dumps([*noted, *self._missing])
            self._missing = []

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
