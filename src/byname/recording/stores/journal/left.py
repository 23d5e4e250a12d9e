"""What a killed writer left beside a file is put into it, so that programs see all of it that know of no journal."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from byname.errors import RecordingError
from byname.interrupts import interrupts_wait
from byname.recording.stores.journal.committed import CommittedFile, journaled
from byname.recording.stores.journal.descriptors import beside, opened, same_file, taken_over, write_at

__all__ = ["put_back"]

Check = Callable[[CommittedFile, int], None]


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
            with interrupts_wait():
                for offset, piece in changes.runs():
                    write_at(descriptor, piece, offset)
                os.ftruncate(descriptor, last.end)
        beside(path).unlink()
        return True
    finally:
        os.close(descriptor)
