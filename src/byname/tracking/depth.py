"""How deep may a program call while it is watched? As deep as without, though what watches adds frames.

The wrapper of a tracker is one more frame in the call of each module, and so is PyTorch's own detour for a module with
hooks (``_call_impl.<locals>.inner``). Python has one bound of the frames for the whole process: it is raised while
somebody watches, and put back afterwards.
"""

from __future__ import annotations

import sys
import threading
import weakref
from types import TracebackType

__all__ = ["Deeper"]

_MOST = 3000
"""By how much the bound is raised at most: each frame of a module's call also takes of the thread's own stack."""


class Deeper:
    """Raises Python's recursion limit while it is in place; one that is let go of does so no longer."""

    def __init__(self) -> None:
        self._share = _Share()
        weakref.finalize(self, self._share.release).atexit = False

    def install(self) -> None:
        """Let the program call deeper from now on."""
        self._share.hold()

    def remove(self) -> None:
        """Put the limit back, if nobody else has it raised. Once more does nothing."""
        self._share.release()

    def __enter__(self) -> Deeper:
        self.install()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.remove()


class _Share:
    """One of those that have the limit raised, or not yet, or no longer."""

    def __init__(self) -> None:
        self._holds = False

    def hold(self) -> None:
        """Raise the limit; once more does nothing."""
        if not self._holds:
            self._holds = True
            _LIMIT.hold()

    def release(self) -> None:
        """Put the limit back, if it was raised here."""
        if self._holds:
            self._holds = False
            _LIMIT.release()


class _Limit:
    """The recursion limit of the process, and how many have it raised."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the collector may let go of a holder at any moment
        self._holders = 0
        self._before = self._raised = 0

    def hold(self) -> None:
        """One more has it raised."""
        with self._lock:
            self._holders += 1
            now = sys.getrecursionlimit()
            if self._holders == 1 and now != self._raised:
                self._before, self._raised = now, now + min(now, _MOST)
                sys.setrecursionlimit(self._raised)

    def release(self) -> None:
        """One less; after the last one it is as before, unless the program has set another meanwhile."""
        with self._lock:
            self._holders -= 1
            if self._holders:
                return
            if sys.getrecursionlimit() == self._raised:
                try:
                    sys.setrecursionlimit(self._before)
                except RecursionError:  # we are deeper than that: whoever watches next puts it back
                    return
            self._raised = 0


_LIMIT = _Limit()
"""One for the process, as the limit is."""
