"""Reserve: address space held back, and released when an allocation fails, so that the explanation can allocate."""

from __future__ import annotations

import mmap
from contextlib import suppress

from byname.undo import Shared


class _Reserve:
    """Address space of the process, held while a block may need it. It takes no memory, as nothing is written there.

    Attributes:
        size: in bytes.
    """

    size = 128 * 2**20

    def __init__(self) -> None:
        self._users = Shared(self.hold, self.give_back)
        self._held: mmap.mmap | None = None

    @property
    def is_held(self) -> bool:
        """Whether it is held now."""
        return self._held is not None

    def begin(self, block: object) -> None:
        """Hold it from now on until `end` is called for this block."""
        self._users.hold(block)

    def end(self, block: object) -> None:
        """Give it back if no other block needs it. A second call does nothing."""
        self._users.release(block)

    def hold(self) -> None:
        """Hold it, again if it was given back; where there is no room for it, nothing is held."""
        with self._users.lock:
            if self._held is None and self._users.holders:
                with suppress(OSError, ValueError, AttributeError):  # no room; or Windows, whose mmap has no flags
                    self._held = mmap.mmap(-1, self.size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)

    def give_back(self) -> None:
        """Make room: the process may allocate as much as this was."""
        with self._users.lock:
            held, self._held = self._held, None
        if held is not None:
            held.close()


RESERVE = _Reserve()
"""The only one of the process, whose memory is one."""
