"""Log: a recording while it runs: frames, one after another, and nothing that was written ever changes.

So a kill costs at most the frame that was being written, readers need no lock, and what they have seen stays. The
writer holds a lock for as long as it lives, by which others know whether it still does. When the recorder is closed, an
HDF5 file is made of the log in one piece, and the log is removed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from byname.errors import BadArgumentError, RecordingError, RecordingExistsError, RecordingWarning, recording_error
from byname.reading.interrupts import defer_signals
from byname.recording.descriptors import link_as, lock_shared, opened, same_file, unlock, write_together
from byname.recording.finish import finish_log, new_name, remove_left
from byname.recording.frame import FrameWriter
from byname.recording.memory import Store
from byname.recording.recording_file import LOG_MAGIC, RecordingFile, is_log, log_of, needs_h5py, target
from byname.recording.series import Series
from byname.recording.stored import OpenFile
from byname.source.tracebacks import warn
from byname.table import counted
from byname.text import printable


class LogStore(Store):
    """Writes windows of values to a log beside a path, and makes the HDF5 file there at the end; a `Store`.

    `run` has the facts of the run; the other arguments are those of `byname.record`.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        run: Mapping[str, Any],
        compression: Any = None,
        overwrite: bool = False,
        finish: bool = True,
    ) -> None:
        if finish:
            needs_h5py("recording to a file")
        self.path = target(path, overwrite=overwrite)
        level = _level_of(compression)
        self._log, self._finishes = _free_log(self.path, overwrite), finish
        self._owner, self._identity = os.getpid(), os.urandom(16)
        self._waiting: list[Series] = []
        self._said: dict[str, Any] = {}
        self._last, self._records, self._end = -1, 0, 0
        self._lost = self._ended = False
        self._failure: RecordingError | None = None
        self._frames = FrameWriter()
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        facts = {"rank": 0, "world_size": 1, "started": now, **run}
        shown = printable(str(self.path))
        try:
            with defer_signals(also_repeated=True):
                self._descriptor: int | None = self._created({"run": facts, "gzip": level}, overwrite)
        except FileExistsError as reason:
            raise RecordingExistsError(f"another process is recording to {shown}") from reason
        except OSError as reason:
            raise recording_error(f"{shown} cannot be written: {printable(str(reason))}", reason) from reason

    @property
    def failed(self) -> bool:
        return self._failure is not None

    def append(self, window: Mapping[str, Series]) -> None:
        if self._writes:
            self._waiting += [series for series in window.values() if len(series)]

    def forget(self) -> None:
        """Forget all values so far: readers skip it from the next frame on, and the HDF5 file does not contain it."""
        if self._writes:
            self._waiting.clear()
            self._said["anew"] = True

    def note(self, name: str, fact: str) -> None:
        if self._writes:
            self._said.setdefault("run", {})[name] = fact

    def flush(self) -> None:
        if os.getpid() != self._owner:
            return
        self._write()
        if self._failure is not None:
            raise self._failure

    def note_missing(self, sentence: str) -> None:
        if self._writes:
            self._lost = True
            self._said.setdefault("missing", []).append(sentence)

    def end(self, path: str, times: Sequence[tuple[str, int]]) -> None:
        if self._writes:
            self._said.setdefault("ends", []).append([path, [[*one] for one in times]])

    def close(self, *, complete: bool = True) -> None:
        """Write the last values, and make the HDF5 file; if that fails, the log stays, and is whole."""
        if self._descriptor is None:
            return
        try:
            if self._writes:
                self._write(closed=True, complete=complete and not self._lost)
                if self._failure is None and self._finishes:
                    self._make_hdf5()
        finally:
            if not self._writes:  # else an interrupt came before the log was whole, and closing it again goes on
                self._release()
        failure, self._failure = self._failure, None
        if failure is not None and os.getpid() == self._owner:
            raise failure

    def _release(self) -> None:
        with defer_signals(also_repeated=True):
            descriptor, self._descriptor = self._descriptor, None
            self._ended = True
            self._waiting.clear()
            if descriptor is not None:
                if os.getpid() == self._owner:
                    unlock(descriptor)
                os.close(descriptor)

    def withdraw(self) -> None:
        """Remove the file again, after `close`, if the recording did not begin."""
        if os.getpid() == self._owner and not self._records:
            for one in (self.path, self._log):
                one.unlink(missing_ok=True)

    def results(self) -> Mapping[str, Series]:
        """Return all that was taken so far, by path; values are read from the file when they are asked for."""
        if self._writes:
            self._write()
        for path in (self._log, self.path):
            with suppress(FileNotFoundError):
                found = RecordingFile(OpenFile(path, self._descriptor))
                if found.identity == self._identity:
                    return found.series
        raise RecordingError(f"{printable(str(self.path))} is gone, or another recording has replaced it")

    @property
    def _writes(self) -> bool:
        return not self._ended and self._failure is None and os.getpid() == self._owner

    def _created(self, facts: dict[str, Any], overwrite: bool) -> int:
        """Make the log, whole from the beginning, in the place of an older recording."""
        remove_left(self.path)
        new = new_name(self.path)
        descriptor = opened(new, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        try:
            lock_shared(descriptor)
            start = [LOG_MAGIC, self._identity, *self._frames.packed((), facts)]
            self._end = write_together(descriptor, start, 0)
            if overwrite:
                new.replace(self._log)
                Path(os.path.realpath(self.path)).unlink(missing_ok=True)
            else:
                link_as(new, self._log)
        except BaseException:
            os.close(descriptor)
            raise
        finally:
            new.unlink(missing_ok=True)
        return descriptor

    def _write(self, **facts: Any) -> None:
        """Write what waits as a frame; what goes wrong ends the recording, and not the program."""
        if not self._writes or not (self._said or self._waiting or facts):
            return
        failure: OSError | None = None
        with defer_signals(also_repeated=True):  # and what they raise, when this is done, is no error of the log
            said, self._said = {**self._said, **facts}, {}
            waiting, self._waiting = self._waiting, []
            try:
                self._append(self._frames.packed(waiting, said))
            except OSError as reason:
                failure = reason
            except BaseException:
                self._lost = True
                raise
            else:
                self._ended = "closed" in facts
                self._records += sum(map(len, waiting))
                self._last = self._frames.last
        if failure is not None:
            self._give_up(failure)

    def _append(self, buffers: Sequence[Any]) -> None:
        assert self._descriptor is not None, "only while it writes"
        there = same_file(self._descriptor, self._log)
        if there is None:
            raise OSError("it was removed or replaced meanwhile")
        if there.st_size != self._end:
            raise OSError("another program has changed it")
        self._end = write_together(self._descriptor, buffers, self._end)

    def _give_up(self, reason: Exception) -> None:
        if self._descriptor is not None:
            with suppress(OSError):  # nothing of a frame that is not whole; a reader would pass it over, too
                os.ftruncate(self._descriptor, self._end)
        kept = f"{counted(self._records, 'record')} up to iteration {self._last}" if self._records else "nothing yet"
        text = f"{printable(str(self._log))} can no longer be written ({printable(str(reason))}); in it: {kept}"
        self._failure = recording_error(text, reason)
        self._failure.__cause__ = reason
        warn(f"{text}; the program goes on without being recorded", RecordingWarning)

    def _make_hdf5(self) -> None:
        assert self._descriptor is not None, "only before it is let go"
        try:
            finish_log(RecordingFile(OpenFile(self._log, self._descriptor)), self.path)
        except BaseException as reason:  # of the file system or h5py; or what a signal raises, which goes on
            why = printable(str(reason)) or type(reason).__name__
            text = f"{printable(str(self._log))} is complete, but could not be made an HDF5 file ({why})"
            warn(f"{text}; byname.open reads it as it is, and byname.finish makes the file", RecordingWarning)
            if not isinstance(reason, RecordingError | OSError | RuntimeError | ValueError | KeyError | TypeError):
                raise


def _level_of(compression: Any) -> int | None:
    name, level = compression if type(compression) is tuple and len(compression) == 2 else (compression, 4)
    if name is None and compression is None:
        return None
    if name == "gzip" and type(level) is int and 0 <= level <= 9:
        return level
    raise BadArgumentError(
        f"compression={compression!r:.60} is unknown; use None, 'gzip', or ('gzip', 0) (fast) to ('gzip', 9)"
    )


def _free_log(path: Path, overwrite: bool) -> Path:
    """Return where the log of a recording to a file will lie.

    Refuse to replace another recording, or a file that is none, and to write a file that is the log of another.
    """
    log = log_of(path)
    shown, file = printable(str(log)), printable(str(path))
    if is_log(path):
        raise RecordingExistsError(
            f"{file} is the log of a recording and was not changed; record to its name without .log, or to another"
        )
    if is_log(log):
        if not overwrite:
            raise RecordingExistsError(
                f"{shown} exists: a recording to {file} is running, or was not finished. byname.finish makes the "
                "file from it; overwrite=True replaces it"
            )
    elif os.path.lexists(log):
        raise RecordingExistsError(
            f"{shown} exists, is not from a recording, and was not changed; a recording to {file} needs this name: "
            "move it away, or record to another name"
        )
    return log
