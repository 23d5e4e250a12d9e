"""Journal: the file beside a recording, how it is written, put back after a kill, and removed.

Nothing that anybody else has made is touched.
"""

from __future__ import annotations

import errno
import os
import re
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from byname.errors import RecordingError
from byname.reading.interrupts import defer_signals
from byname.recording.stores.journal.committed import SIGNATURE, CommittedFile, journaled
from byname.recording.stores.journal.descriptors import beside, opened, read_at, same_file, taken_over, write_at
from byname.recording.stores.journal.frames import MAGIC

Check = Callable[[CommittedFile, int], None]


def new_name(path: Path, identity: bytes) -> Path:
    """What a file is called until it takes the name of an older one; nobody else chooses the same."""
    return path.with_name(f"{path.name}.{identity.hex()[:12]}.new")


def is_foreign(path: Path) -> bool:
    """Whether there is something under the name of a journal that no writer has made.

    Args:
        path: of the journal.
    """
    try:
        descriptor = opened(path, os.O_RDONLY)
    except FileNotFoundError:
        return path.is_symlink()  # that leads nowhere
    try:
        return not (stat.S_ISREG(os.fstat(descriptor).st_mode) and MAGIC.startswith(_start(descriptor)))
    finally:
        os.close(descriptor)


def put_back(path: Path, check: Check, *, surely: bool) -> bool:
    """Puts the journal of a file into it, whatever moment its writer was killed at, and removes the journal.

    To be killed here does no harm either: the journal goes last.

    Args:
        path: of the file.
        check: looks at what the file would be, and where its mark lies; raises if that is no recording.
        surely: whether to leave everything as it is where there are no locks that tell whether its writer is gone.

    Returns:
        Whether there was a journal, and is none any more.

    Raises:
        RecordingError: the file is in use, or the journal is damaged.
        OSError: the file or its folder may not be written.
    """
    if not beside(path).is_file():
        return False
    descriptor = opened(path, os.O_RDWR)
    try:
        alone = taken_over(descriptor)
        if alone is False:
            raise RecordingError(
                f"{path} is in use: another process, or this one, writes or reads it. Try again when it has ended"
            )
        if (alone is None and surely) or not same_file(descriptor, path):
            return False
        last, changes = journaled(descriptor, path)
        if last is not None:
            changes.cut(last.end)
            check(CommittedFile(descriptor, changes, last.end), last.marked_at)
            with defer_signals():
                for offset, piece in changes.runs():
                    write_at(descriptor, piece, offset)
                os.ftruncate(descriptor, last.end)
        beside(path).unlink()
        return True
    finally:
        os.close(descriptor)


def remove_journal(path: Path) -> None:
    """Removes the journal of a file that is no longer there, if there is one.

    Raises:
        FileExistsError: what has this name is no journal, and was not touched.
    """
    if is_foreign(path):
        raise FileExistsError(errno.EEXIST, "this is no journal of a recording; move it away", str(path))
    path.unlink(missing_ok=True)


def remove_left(path: Path) -> bool:
    """Removes what killed writers have left of files that were to take this name; whether there was some.

    Args:
        path: of the file that is to be written.
    """
    shape = re.compile(re.escape(path.name) + r"\.[0-9a-f]{12}\.new")
    with os.scandir(path.parent) as entries:
        left = [Path(entry.path) for entry in entries if shape.fullmatch(entry.name)]
    found = False
    for one in left:
        with suppress(OSError):  # somebody else removes it, or it may not be
            found |= _remove_if_left(one)
    half = beside(path)
    half = half.with_name(half.name + ".new")
    if not is_foreign(half):
        half.unlink(missing_ok=True)
    return found


def _remove_if_left(path: Path) -> bool:
    descriptor = opened(path, os.O_RDWR)
    try:
        start = _start(descriptor)
        if start in (b"", bytes(8), SIGNATURE) and taken_over(descriptor) and same_file(descriptor, path):
            path.unlink()
            return True
        return False
    finally:
        os.close(descriptor)


def _start(descriptor: int) -> bytes:
    start = bytearray(len(MAGIC))
    return bytes(start[: read_at(descriptor, memoryview(start), 0)]) if _is_file(descriptor) else b""


def _is_file(descriptor: int) -> bool:
    return stat.S_ISREG(os.fstat(descriptor).st_mode)


class Journal:
    """Frames in a file, one after the other.

    Args:
        path: of the journal; it is created with the first frame.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor: int | None = None
        self.size = 0

    @property
    def gone(self) -> bool:
        """Whether somebody else has put it into the file and removed it, though this writer is still there."""
        return self._descriptor is not None and not same_file(self._descriptor, self._path)

    def append(self, frame: bytes) -> None:
        """Adds a frame; when it cannot be written whole, nothing of it is left."""
        if self._descriptor is None:
            self._descriptor = self._created(self._path)
        try:
            write_at(self._descriptor, frame, self.size)
        except OSError:
            os.ftruncate(self._descriptor, self.size)
            raise
        self.size += len(frame)

    def restart(self, frame: bytes) -> None:
        """Puts a journal of this one frame into the place of the one there is."""
        name = self._path.with_name(self._path.name + ".new")
        descriptor = self._created(name)
        try:
            write_at(descriptor, frame, 0)
            name.replace(self._path)
        except OSError:
            os.close(descriptor)
            name.unlink(missing_ok=True)
            raise
        self.close()
        self._descriptor, self.size = descriptor, len(frame)

    def _created(self, path: Path) -> int:
        remove_journal(path)  # of an older file of this name
        return opened(path, os.O_RDWR | os.O_CREAT | os.O_EXCL)

    def remove(self) -> None:
        """Ends the journal: all of it is in the file."""
        if self._descriptor is not None:
            if same_file(self._descriptor, self._path):
                self._path.unlink()
            self.close()

    def close(self) -> None:
        """Gives the descriptor back."""
        if self._descriptor is not None:
            descriptor, self._descriptor, self.size = self._descriptor, None, 0
            os.close(descriptor)
