"""Descriptors: bytes of an open file read, written and locked, on every system.

Locks are those of ``flock``, which HDF5 takes as well (``LOCK_SH`` for reading). A system or a file system without them
(Windows, some network file systems) does without.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

try:
    import fcntl as found
except ImportError:  # Windows
    found = None  # type: ignore[assignment]

fcntl: Any = found
Bytes = bytes | bytearray | memoryview
_BUSY = (errno.EWOULDBLOCK, errno.EACCES)


def opened(path: str | os.PathLike[str], flags: int) -> int:
    """Return a descriptor, which neither changes line ends (Windows) nor waits for the other side of a pipe."""
    return os.open(path, flags | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)


def write_at(descriptor: int, data: Bytes, offset: int) -> None:
    """Write all of ``data``, without a copy of it."""
    left = memoryview(data)
    while len(left):
        written = _pwrite(descriptor, left, offset)
        left, offset = left[written:], offset + written


def write_together(descriptor: int, several: Sequence[Any], offset: int) -> int:
    """Write buffers one after another, without a copy of them; return where they end."""
    for begin in range(0, len(several), _AT_ONCE):
        views = [memoryview(one) for one in several[begin : begin + _AT_ONCE]]
        end = offset + sum(map(len, views))
        taken = os.pwritev(descriptor, views, offset) if len(views) > 1 and hasattr(os, "pwritev") else 0
        for view in views if offset + taken < end else ():  # the system took less than all
            write_at(descriptor, view[taken:], offset + taken)
            offset, taken = offset + len(view), max(taken - len(view), 0)
        offset = end
    return offset


_AT_ONCE = 256
"""Buffers that are given to the system at once; it takes 1,024."""


def _pwrite(descriptor: int, data: memoryview, offset: int) -> int:
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, data, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.write(descriptor, data)


def read_at(descriptor: int, view: memoryview, offset: int) -> int:
    """Fill ``view`` with what the file holds from ``offset`` on; return how many bytes that were."""
    done = 0
    while done < len(view) and (got := _pread(descriptor, view[done:], offset + done)):
        done += got
    return done


def _pread(descriptor: int, view: memoryview, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [view], offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    data = os.read(descriptor, len(view))
    view[: len(data)] = data
    return len(data)


def same_file(descriptor: int, path: str | os.PathLike[str]) -> os.stat_result | None:
    """Return the status of an open file if ``path`` still names it."""
    found = os.fstat(descriptor)
    try:
        return found if os.path.samestat(found, os.stat(path)) else None  # noqa: PTH116 - ten times as fast as a Path's
    except FileNotFoundError:
        return None


def lock_shared(descriptor: int) -> None:
    """Show others that a writer has the file, while the descriptor is open; readers are not kept out."""
    if fcntl is not None:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)


def unlock(descriptor: int) -> None:
    """End `lock_shared`, also in processes that were forked meanwhile, and have the same lock."""
    if fcntl is not None:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_UN)


def lock_exclusive(descriptor: int) -> bool | None:
    """Lock a file whose writer has ended, and return whether that succeeded; None where there are no locks.

    The lock ends with the descriptor.
    """
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in _BUSY else None
    return True


def link_as(new: Path, path: Path) -> None:
    """Give a file a name that no other has; FileExistsError if one has it."""
    try:
        os.link(new, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        if path.exists():
            raise FileExistsError(str(path)) from None
        new.replace(path)
