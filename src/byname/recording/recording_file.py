"""Recording file: a log or a finished recording, open for reading; how both are named, and which may be written.

Both are read by frames: a log has many, one behind the other, and an HDF5 file one, its index, whose entries say where
in the file each array lies. HDF5 is asked for nothing, so nothing that a file says of itself makes it read, follow or
unpack anything.
"""

from __future__ import annotations

import errno
import os
import struct
import zlib
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from byname.errors import (
    BadArgumentError,
    BynameError,
    IsAFolderError,
    NoFolderError,
    NoRecordingError,
    NotAFolderError,
    NotARecordingError,
    RecordingError,
    RecordingExistsError,
    recording_error,
)
from byname.extras import needs
from byname.recording.frame import FrameIndex, frame_at
from byname.recording.memory import SeriesOnDemand
from byname.recording.series import Series
from byname.recording.stored import NEAR, OpenFile
from byname.table import closest
from byname.text import printable

LOG_MAGIC = b"byname log 3\n\0\0\0"
LOG_START = len(LOG_MAGIC) + 16
"""What a log begins with; 16 bytes follow that tell it from all others; then come its frames."""
FORMAT, VERSION = "byname recording", 3
MARK = struct.Struct("<16s16sQQI")
"""The mark of an HDF5 file: the magic, the identity, the bytes of the file, the start of the index, the checksum."""
MAGIC = b"byname HDF5 3.1\n"


def log_of(path: str | os.PathLike[str]) -> Path:
    return Path(os.path.realpath(path) + ".log")


def file_of(path: Path) -> Path:
    """Return the HDF5 file that a log becomes; another path stays as it is, also one that ends in ``.log`` itself."""
    if path.suffix == ".log" and (is_log(path) or not (path.exists() or is_log(log_of(path)))):
        return path.with_suffix("")
    return path


def is_log(path: Path) -> bool:
    try:
        with closing(OpenFile(path)) as file:
            return file.read(0, min(file.size, len(LOG_MAGIC))).tobytes() == LOG_MAGIC
    except (OSError, BynameError):  # there is nothing, or something else
        return False


class RecordingFile:
    """A recording that is open for reading, with what its file held when it was opened.

    Attributes:
        identity: tells the recording from all others; that of a log is that of the file which it becomes.
        run: the facts of the run.
        level: of gzip in the HDF5 file that a log becomes; None for none.
        missing: what is known to be lost, in words.
        damage: what of a log cannot be read, in words; empty where all can be.
        ended: whether the recording was closed.
        complete: whether, besides, no error ended the run and nothing is missing.
        places: the places by their paths.
        ends: for places that ended before the run did, the modes and iterations from which on nothing stands there.
    """

    def __init__(self, file: OpenFile) -> None:
        self.file = file
        self.missing: list[str] = []
        self.damage = ""
        self.ended = self.complete = False
        self.ends: dict[str, list[tuple[str, int]]] = {}
        start = file.read(0, min(file.size, LOG_START)).tobytes()
        log = start.startswith(LOG_MAGIC)
        self.identity, at = (start[len(LOG_MAGIC) :], LOG_START) if log else _marked(file)
        self._read(at, log)

    @property
    def series(self) -> Mapping[str, Series]:
        return SeriesOnDemand(self.places, lambda path: self.places[path].series(), self.ends)

    def _read(self, at: int, log: bool) -> None:
        index, frame = FrameIndex(self.file), frame_at(self.file, at, None if log else 0)
        if frame is None:
            raise self.file.damaged("it ends before anything was recorded")
        run, self.level = frame.facts.get("run"), frame.facts.get("gzip")
        if type(run) is not dict or (self.level is not None and self.level not in range(10)):
            raise self.file.damaged("it does not begin like a recording")
        try:
            while frame is not None:
                if frame.facts.get("anew") is True:
                    index.clear()
                index.add(frame)
                more = frame.facts.get("run")
                run = {**run, **more} if type(more) is dict else run
                self._note(frame.facts)
                at = frame.end
                frame = frame_at(self.file, at) if log else None
        except RecordingError as reason:
            if not log:
                raise
            after = f"the part after byte {at} ({self.file.size - at} bytes)"
            self.damage = f"{after} cannot be read: {reason}"
            self.missing.append(self.damage)
            self.ended = True
        self.places = index.places()
        updated = datetime.fromtimestamp(self.file.updated, UTC).isoformat(timespec="milliseconds")
        self.run: dict[str, Any] = {"updated": updated, **run}
        self.complete &= not self.missing
        if log and not self.ended:
            last = index.last()
            after = f"everything after iteration {last}" if last >= 0 else "all it recorded"
            self.missing.append(
                f"the recording was not closed: it still runs, or its process ended early; {after} is not in the file"
            )

    def _note(self, facts: Mapping[str, Any]) -> None:
        try:
            self.missing += [printable(str(one)) for one in facts.get("missing", ())]
            for path, times in facts.get("ends", ()):
                self.ends.setdefault(path, []).extend((str(mode), int(iteration)) for mode, iteration in times)
        except (TypeError, ValueError) as reason:
            raise self.file.damaged("its list of missing values cannot be read") from reason
        self.ended = self.ended or facts.get("closed") is True
        self.complete = facts.get("complete") is True


def _marked(file: OpenFile) -> tuple[bytes, int]:
    """Return the identity in the mark of an HDF5 file, and where its index is."""
    start = file.read(0, min(file.size, NEAR)).tobytes()
    at = start.find(MAGIC)
    mark = start[at : at + MARK.size] if at >= 0 else b""
    if len(mark) < MARK.size:
        raise _foreign(file, start)
    _, identity, whole, begin, checksum = MARK.unpack(mark)
    if zlib.crc32(mark[:-4]) != checksum:
        raise file.damaged("its header does not match its checksum")
    if file.size < whole:
        raise file.damaged(f"it has {file.size} of {whole} bytes")
    return identity, begin


def marked(identity: bytes, size: int, index: int) -> bytes:
    """Return the mark of an HDF5 file: its identity, its size in bytes, and where its index is."""
    mark = MARK.pack(MAGIC, identity, size, index, 0)[:-4]
    return mark + zlib.crc32(mark).to_bytes(4, "little")


def _foreign(file: OpenFile, start: bytes) -> Exception:
    """Return the error for a file that is no recording of this version."""
    if not file.size:
        return NotARecordingError(f"{file.shown} is empty: nothing was written to it yet, or it was cut off")
    if start.startswith(b"\x89HDF\r\n\x1a\n"):
        more = file.read(0, min(file.size, 1 << 16)).tobytes()
        if FORMAT.encode() in more:
            return RecordingError(
                f"{file.shown} was written by an older byname, in format 1 or 2: one from before 2026-11-26 reads it"
            )
        return NotARecordingError(f"{file.shown} is HDF5, but not a recording of byname")
    zipped = (b"PK", b"\x80\x02", b"\x80\x04", b"\x80\x05")
    found = "Python's pickle or a zip file" if start[:2] in zipped else "neither HDF5 nor a log"
    return NotARecordingError(f"{file.shown} is not a recording: it begins like {found}, with {start[:8]!r}")


def needs_h5py(what: str) -> None:
    """Raise an error that says how to install h5py, which `what` needs, if it is missing."""
    with needs(what, "h5py"):
        import h5py  # noqa: F401 - to see whether it is there


def name_of(path: Any, function: str) -> str:
    """Return the path of a recording as text, or raise if it is no path; `function` is the one it was given to."""
    named = os.fspath(path) if isinstance(path, str | os.PathLike) else path
    if not isinstance(named, str) or not named:
        given = repr(named) if named == "" else type(path).__name__
        raise BadArgumentError(f"{function} takes the path of a recording's file, not {given}")
    return named


@contextmanager
def no_such_file(named: str) -> Iterator[None]:
    """Raise an error of the system about a path as a `RecordingError`, a `NoRecordingError` if no file can have it."""
    try:
        yield
    except BynameError:
        raise
    except (OSError, ValueError) as reason:
        shown = printable(named if len(named) <= _LONG else f"{named[:_LONG]}... ({len(named)} characters)")
        words = printable(str(getattr(reason, "strerror", None) or reason))
        if isinstance(reason, ValueError) or reason.errno == errno.ENAMETOOLONG:
            raise NoRecordingError(f"there is no file {shown}: {words}") from None
        raise RecordingError(f"{shown} cannot be read: {words}") from reason


_LONG = 200
"""Characters of a path that are shown where there can be no such file."""


def target(to: str | os.PathLike[str], *, overwrite: bool) -> Path:
    """Return the path of a file that may be written; refuse a directory, a device, and what may not be replaced."""
    path = Path(os.fspath(to)).absolute()
    shown = printable(str(to))
    try:
        os.path.realpath(path)
        is_directory, has_parent, is_there = path.is_dir(), path.parent.is_dir(), path.exists()
    except (OSError, ValueError) as reason:  # a name that is too long, or has a zero in it
        raise recording_error(f"{shown} cannot be written: {getattr(reason, 'strerror', reason)}", reason) from None
    if is_directory:
        raise IsAFolderError(f"{shown} is a directory; name a file in it: {printable(str(Path(to) / 'run.h5'))}")
    if not has_parent:
        file = next((one for one in path.parents if one.exists() and not one.is_dir()), None)
        if file is not None:
            raise NotAFolderError(f"{shown} cannot be written: {printable(str(file))} is a file, not a directory")
        raise NoFolderError(f"there is no directory {printable(str(path.parent))} to write to; {nearest(path.parent)}")
    if is_there and not path.is_file():
        raise RecordingExistsError(f"{shown} is a device or a pipe, not a file, and was not changed")
    if is_there and not overwrite:
        raise RecordingExistsError(f"{shown} exists already and was not changed; overwrite=True replaces it")
    return path


def nearest(path: Path) -> str:
    """Return in words the closest existing directory of a missing path, and the names in it."""
    above = next(one for one in path.parents if one.is_dir())
    try:
        names = sorted(one.name for one in above.iterdir())
    except OSError as reason:
        return f"{printable(str(above))} exists, but cannot be listed ({reason.strerror})"
    missing = path.relative_to(above).parts[0]
    inside = f"; in it: {printable(closest(missing, names))}" if names else ", which is empty"
    return f"the closest that exists: {printable(str(above))}{inside}"
