"""What have writers that were killed left beside a file? It is removed by the next one; nothing of anybody else is."""

from __future__ import annotations

import errno
import os
import re
import stat
from contextlib import suppress
from pathlib import Path

from byname.recording.stores.journal.descriptors import beside, opened, read_at, same_file, taken_over
from byname.recording.stores.journal.frames import MAGIC

__all__ = ["is_foreign", "new_name", "remove_journal", "remove_left"]

_SIGNATURE = b"\x89HDF\r\n\x1a\n"


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
        if start in (b"", bytes(8), _SIGNATURE) and taken_over(descriptor) and same_file(descriptor, path):
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
