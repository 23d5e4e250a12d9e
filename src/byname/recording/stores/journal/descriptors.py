"""Descriptors: bytes of an open file read, written and locked, on every system.

Locks are those of ``flock``, which HDF5 takes as well (``LOCK_SH`` for reading). A system or a file system without them
(Windows, some network file systems) does without.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from byname.errors import RecordingError

try:
    import fcntl as found
except ImportError:  # Windows
    found = None  # type: ignore[assignment]

fcntl: Any = found
Bytes = bytes | bytearray | memoryview
PATIENCE = 10.0
"""Seconds to wait for a writer that holds its lock; it needs milliseconds unless it was stopped."""
_BUSY = (errno.EWOULDBLOCK, errno.EACCES)


def opened(path: str | os.PathLike[str], flags: int) -> int:
    """A descriptor, which neither changes line ends (Windows) nor waits for the other side of a pipe of that name."""
    return os.open(path, flags | getattr(os, "O_BINARY", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)


def write_at(descriptor: int, data: Bytes, offset: int) -> None:
    """Writes all of ``data``, without a copy of it."""
    rest = memoryview(data)
    while len(rest):
        written = _pwrite(descriptor, rest, offset)
        rest, offset = rest[written:], offset + written


def write_together(descriptor: int, several: Sequence[Any], offset: int) -> int:
    """Writes bytes one behind the other, without a copy of them; returns where they end."""
    for begin in range(0, len(several), _AT_ONCE):
        views = [memoryview(one) for one in several[begin : begin + _AT_ONCE]]
        taken = os.pwritev(descriptor, views, offset) if len(views) > 1 and hasattr(os, "pwritev") else 0
        for view in views:
            write_at(descriptor, view[taken:], offset + taken)  # nothing, unless the system took less than all
            offset, taken = offset + len(view), max(taken - len(view), 0)
    return offset


_AT_ONCE = 256
"""Buffers that are given to the system at once; it takes 1,024."""


def _pwrite(descriptor: int, data: memoryview, offset: int) -> int:
    if hasattr(os, "pwrite"):
        return os.pwrite(descriptor, data, offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.write(descriptor, data)


def read_at(descriptor: int, view: memoryview, offset: int) -> int:
    """Fills ``view`` with what the file holds from ``offset`` on; returns how many bytes that were."""
    done = 0
    while done < len(view):
        got = _pread(descriptor, view[done:], offset + done)
        if not got:
            break
        done += got
    return done


def _pread(descriptor: int, view: memoryview, offset: int) -> int:
    if hasattr(os, "preadv"):
        return os.preadv(descriptor, [view], offset)
    os.lseek(descriptor, offset, os.SEEK_SET)
    data = os.read(descriptor, len(view))
    view[: len(data)] = data
    return len(data)


def same_file(descriptor: int, path: str | os.PathLike[str]) -> bool:
    """Whether ``path`` still names the open file."""
    try:
        return os.path.samestat(os.fstat(descriptor), Path(path).stat())
    except FileNotFoundError:
        return False


def beside(path: str | os.PathLike[str]) -> Path:
    """Where the journal of a file is."""
    return Path(os.path.realpath(path) + ".journal")


def hold(descriptor: int) -> None:
    """Shows others that a writer has the file, for as long as the descriptor is open; keeps no reader out."""
    _lock(descriptor, getattr(fcntl, "LOCK_SH", 0), 0.0)


def let_go(descriptor: int) -> None:
    """Ends `hold`, also in processes that were forked meanwhile, and have the same lock."""
    _unlock(descriptor)


@contextmanager
def alone(descriptor: int, patience: float = 0.0) -> Iterator[bool]:
    """Locks out readers while the context lasts; False when there are some, who then are not waited for.

    For a writer, who holds the file before and afterwards.
    """
    got = _lock(descriptor, getattr(fcntl, "LOCK_EX", 0), patience)
    try:
        yield got
    finally:
        _lock(descriptor, getattr(fcntl, "LOCK_SH", 0), PATIENCE)  # one that was not got may have cost the other


def taken_over(descriptor: int) -> bool | None:
    """Locks a file out of which a writer has gone: whether it has, and nobody reads; None where there are no locks.

    The lock ends with the descriptor.
    """
    if fcntl is None:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return False if error.errno in _BUSY else None
    return True


@contextmanager
def shared(descriptor: int, path: str | os.PathLike[str]) -> Iterator[None]:
    """Keeps a writer from changing what is already there while the context lasts."""
    if not _lock(descriptor, getattr(fcntl, "LOCK_SH", 0), PATIENCE):
        raise RecordingError(
            f"{path} is locked: a process has been in the middle of writing to it for {PATIENCE:g} seconds. "
            "Is it stopped (Ctrl-Z)? Continue it, or end it, and open the file again."
        )
    try:
        yield
    finally:
        _unlock(descriptor)


def _lock(descriptor: int, kind: int, patience: float) -> bool:
    until = time.monotonic() + patience
    while fcntl is not None:
        try:
            fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _BUSY:
                return True  # a file system without locks
        else:
            return True
        if time.monotonic() >= until:
            return False
        time.sleep(0.005)
    return True


def _unlock(descriptor: int) -> None:
    if fcntl is not None:
        with suppress(OSError):  # a file system without locks
            fcntl.flock(descriptor, fcntl.LOCK_UN)
