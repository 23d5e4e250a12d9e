"""Journaled file: an HDF5 file that no kill tears. Every change of what was committed goes through a journal.

HDF5 writes to a `JournaledFile` instead of to a path:

- What lies behind the end of the last commit is written to the file at once. Nobody sees it: the superblock still says
  the old end.
- What changes bytes that were committed is kept in memory. `JournaledFile.commit` appends it as one frame to the
  journal beside the file, then applies it in place, then removes the journal.

Whatever moment the process is killed:

- before the last byte of the frame: the file is as after the commit before; bytes behind its end, and a frame that is
  not whole, count for nothing;
- after it, until the journal is removed: `committed` reads the frame over the file, whichever part of it was applied;
  only there may a program that knows nothing of the journal see half a change, for some microseconds;
- after that: the file is as after this commit, by itself.

The first commit is no exception: until then the superblock is in memory, so that the file is none of HDF5's.

Readers lock the file (HDF5 itself does so too). While one reads, commits are appended to the journal and not applied:
what it has seen stays as it is, and the writer waits for nobody. The bytes that a commit put behind the old end are
from then on committed and change only through the journal as well. A journal that grows long meanwhile is replaced with
one frame that holds all its changes.

A writer holds a shared lock for as long as it has the file. Who can lock the file alone knows that its writer is gone
and that nobody reads, and may put into place what the journal has (see `byname.recording.stores.journal.journal`).

A program that opens the file just while a journal is applied is refused by HDF5, and may open it again: "unable to lock
file", or "truncated file" where HDF5 (1.14) looked at the size before it took the lock. `committed` waits instead.

This is about processes that die. After a loss of power the same holds as far as the file system keeps the order of
writes; nothing is synchronised.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from byname.reading.interrupts import defer_signals
from byname.recording.stores.journal.descriptors import (
    alone,
    beside,
    hold,
    let_go,
    opened,
    read_at,
    same_file,
    write_at,
)
from byname.recording.stores.journal.file_objects import SUPERBLOCK, FileCutError, GuardedFile
from byname.recording.stores.journal.frames import IDENTITY, Extents, Frame, packed
from byname.recording.stores.journal.journal import Journal, is_foreign, new_name, remove_journal, remove_left

LONG = 2**24
"""Bytes of a journal from which on it is shortened, where that is worth it."""
LARGEST_COPY = 2**30
"""Bytes of a file that may be copied at the end, when a reader keeps it from being changed."""
PATIENCE = 0.5
"""Seconds that `JournaledFile.close` waits for readers."""


class JournaledFile(GuardedFile):
    """A file for ``h5py.File(journaled, "w")`` whose content others see only as it was at a commit.

    From the first error on nothing more is written, `commit` raises the error, and the file stays as after the last
    commit. In a forked process nothing is written either.

    Args:
        path: the new file.
        overwrite: whether it may take the place of an older one, which then stays until the first commit.

    Raises:
        FileExistsError: the file exists.
        FileNotFoundError: its directory does not.

    Examples:
        >>> import h5py, tempfile
        >>> from byname.recording.stores.journal.committed import committed
        >>> path = tempfile.mkdtemp() + "/run.h5"
        >>> journaled = JournaledFile(path, overwrite=False)
        >>> file = h5py.File(journaled, "w")
        >>> journaled.sign(file)
        >>> file["losses"] = [0.5, 0.25]
        >>> file.flush(), journaled.commit()
        (None, None)
        >>> with committed(path) as source, h5py.File(source, "r") as seen:
        ...     seen["losses"][:].tolist()
        [0.5, 0.25]
        >>> file.close(), journaled.commit(), journaled.close()
        (None, None, None)
    """

    def __init__(self, path: str | os.PathLike[str], *, overwrite: bool) -> None:
        self.path = Path(os.path.realpath(path))
        self._identity = os.urandom(IDENTITY)
        self._marked_at: int | None = None
        self._written_as = self._name(overwrite)
        super().__init__(opened(self._written_as, os.O_RDWR | os.O_CREAT | os.O_EXCL))
        hold(self._descriptor)
        self._journal = Journal(beside(self.path))
        self._commits = self._committed_end = 0

    def _name(self, overwrite: bool) -> Path:
        """Where to write until the first commit; all that can be refused is refused here."""
        if not self.path.parent.is_dir():
            raise FileNotFoundError(errno.ENOENT, "there is no such directory; create it first", str(self.path.parent))
        journal = beside(self.path)
        if is_foreign(journal):
            raise FileExistsError(errno.EEXIST, "this is no journal of a recording; move it away", str(journal))
        remove_left(self.path)
        if not self.path.exists():
            remove_journal(journal)  # of a file that is gone
            return self.path
        if not overwrite:
            raise FileExistsError(errno.EEXIST, "the file exists; overwrite=True replaces it", str(self.path))
        if not self.path.is_file():
            raise FileExistsError(errno.EEXIST, "this is not a file, and is not replaced", str(self.path))
        return new_name(self.path, self._identity)

    def sign(self, file: Any) -> None:
        """Puts the mark into the file (``/byname/identity``) by which it and its journal know each other.

        Call it once, between opening the file with h5py and the first commit. Raw data of a contiguous dataset never
        moves in a file.
        """
        mark = file.create_dataset("byname/identity", data=list(self._identity), dtype="uint8")
        self._marked_at = mark.id.get_offset()

    def commit(self) -> None:
        """Makes all that was written seen by others, at once or not at all; call ``flush()`` of the h5py file before.

        Raises:
            OSError: it cannot be written (disk full, file gone or replaced); so does every later commit.
        """
        if self._closed or os.getpid() != self._process:
            return
        if self._error is None:
            try:
                with defer_signals(also_repeated=True):
                    self._commit()
            except OSError as error:
                self._fail(error)
        if self._error is not None:
            raise self._error

    @property
    def fence(self) -> int:
        """Where what was committed ends: bytes before it change only through the journal."""
        return self._fence

    def write_unseen(self, pieces: Sequence[tuple[int, Any]]) -> None:
        """Writes bytes to the file at once, where HDF5 has made room and nothing committed leads.

        Such are the rows behind the committed length of an array, in a chunk that was allocated behind the `fence` of
        its time: no reader sees them before the commit of the new length, and no journal speaks of them.

        Args:
            pieces: each with where in the file it goes.
        """
        if self._writable():
            try:
                for several, offset in _runs(pieces):
                    self._put_together(several, offset)
            except OSError as error:
                self._fail(error)

    def cut_off(self) -> FileCutError | None:
        """The error for a file that another program has emptied or written to; None while it is as it was written."""
        if self._error is None:
            try:
                self._check_whole()
            except FileCutError as error:
                return error
        return self._error if isinstance(self._error, FileCutError) else None

    def close(self) -> None:
        """Ends writing: what was not committed is dropped, and no journal is left. Once more does nothing.

        A file to which nothing was ever committed is removed. While others still read, their file is replaced with a
        whole one; one larger than a gigabyte keeps its journal instead.
        """
        if self._closed:
            return
        self._closed = True
        try:
            if os.getpid() == self._process:
                with defer_signals(also_repeated=True):
                    self._finish()
        except OSError as error:
            self._fail(error)  # all that was committed is in the file and its journal
        finally:
            self._journal.close()
            if os.getpid() == self._process:
                let_go(self._descriptor)
            os.close(self._descriptor)

    def _commit(self) -> None:
        self._check_whole()
        if not self._fresh and self._end == self._committed_end:
            return
        if not same_file(self._descriptor, self._written_as):
            raise FileNotFoundError(errno.ENOENT, "the file was deleted or replaced by others", str(self.path))
        if os.fstat(self._descriptor).st_size < self._end:
            self._set_size(self._end)
        if not self._commits:
            self._mark()
        if self._written_as == self.path:
            self._write_frame()
            self._take_over()
            self._apply()
        else:
            self._take_over()
            self._put_in_place()
            self._take_the_name()
        self._commits += 1

    def _check_whole(self) -> None:
        super()._check_whole()
        if self._commits and self._marked_at is not None:
            mark = bytearray(IDENTITY)
            if read_at(self._descriptor, memoryview(mark), self._marked_at) < IDENTITY or mark != self._identity:
                raise FileCutError(errno.EIO, "another program has written to the file")

    def _take_over(self) -> None:
        """What was fresh is committed."""
        self._committed_end = self._end
        self._fence = max(self._fence, self._end)
        self._unapplied.update(self._fresh)
        self._unapplied.cut(self._end)
        self._fresh = Extents()

    def _mark(self) -> None:
        """Writes the mark into the file before there is a journal that it could be compared with."""
        if self._marked_at is None:
            raise ValueError("sign(file) must be called before the first commit")
        write_at(self._descriptor, self._identity, self._marked_at)

    def _write_frame(self) -> None:
        if self._journal.gone or (self._journal.size > LONG and self._journal.size > 8 * self._unapplied.size()):
            both = Extents()
            both.update(self._unapplied)
            both.update(self._fresh)
            both.cut(self._end)
            self._journal.restart(packed(self._frame(both)))
        else:
            self._journal.append(packed(self._frame(self._fresh)))

    def _frame(self, changes: Extents) -> Frame:
        assert self._marked_at is not None
        return Frame(self._identity, self._marked_at, self._commits + 1, self._end, changes)

    def _apply(self, patience: float = 0.0) -> bool:
        """Puts into place what was committed, unless somebody reads. What fails is tried again at the next commit."""
        with alone(self._descriptor, patience) as free:
            if not free:
                return False
            with suppress(OSError):  # the journal has it all
                self._put_in_place()
                self._journal.remove()
                return True
        return False

    def _put_in_place(self) -> None:
        for offset, piece in self._unapplied.runs():
            write_at(self._descriptor, piece, offset)
        self._set_size(self._committed_end)
        self._unapplied = Extents()
        self._fence = max(SUPERBLOCK, self._committed_end)

    def _take_the_name(self) -> None:
        self._written_as.replace(self.path)
        self._written_as = self.path
        with suppress(OSError):
            remove_journal(beside(self.path))  # of the file that was here

    def _finish(self) -> None:
        if self.cut_off() is not None:
            self._journal.remove()
            return  # nothing that was in it can be put back
        here = same_file(self._descriptor, self._written_as)  # or moved, or deleted
        if not self._commits:
            self._journal.remove()
            if here:
                self._written_as.unlink()
            return
        if self._unapplied and not self._apply(PATIENCE) and here and self._committed_end <= LARGEST_COPY:
            self._through_a_copy()
            return
        os.ftruncate(self._descriptor, self._fence if self._unapplied else self._committed_end)
        if not (self._unapplied and here):
            self._journal.remove()

    def _through_a_copy(self) -> None:
        """Leaves the readers their file, and puts a whole one into its place."""
        copy = new_name(self.path, self._identity)
        try:
            descriptor = opened(copy, os.O_RDWR | os.O_CREAT | os.O_EXCL)
            try:
                hold(descriptor)
                shutil.copyfile(self.path, copy)
                shutil.copymode(self.path, copy)
                for offset, piece in self._unapplied.runs():
                    write_at(descriptor, piece, offset)
                os.ftruncate(descriptor, self._committed_end)
            finally:
                os.close(descriptor)
            copy.replace(self.path)
        except OSError:
            copy.unlink(missing_ok=True)
            raise
        self._journal.remove()


def _runs(pieces: Sequence[tuple[int, Any]]) -> Iterator[tuple[list[Any], int]]:
    """Pieces of which each begins where the one before it ends, and where the first of them begins."""
    several: list[Any] = []
    begin = end = -1
    for offset, piece in pieces:
        if several and offset != end:
            yield several, begin
            several = []
        begin = begin if several else offset
        several.append(piece)
        end = offset + len(piece)
    if several:
        yield several, begin
