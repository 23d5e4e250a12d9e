"""How do frames get into the journal beside a file? It is there only while it is needed."""

from __future__ import annotations

import os
from pathlib import Path

from byname.recording.stores.journal.descriptors import opened, same_file, write_at
from byname.recording.stores.journal.leftovers import remove_journal

__all__ = ["Journal"]


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
