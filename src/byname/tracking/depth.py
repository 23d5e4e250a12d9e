"""Depth: a higher recursion limit while a program is watched, to make room for the frames that watching adds.

The patch of a tracker adds one frame to each module call, and so does PyTorch's own detour for a module with hooks
(``_call_impl.<locals>.inner``). Python has one recursion limit for the whole process: it is raised while anything
watches, and restored afterwards.
"""

from __future__ import annotations

import sys
import threading
import weakref
from types import TracebackType

__all__ = ["Deeper"]

_MOST = 3000
"""The most that is added to the limit: each frame of a module call also takes space on the thread's own stack."""


class Deeper:
    """Raises Python's recursion limit from `install` to `remove`, or until this object is freed."""

    def __init__(self) -> None:
        self._share = _Share()
        weakref.finalize(self, self._share.release).atexit = False

    def install(self) -> None:
        """Raise the recursion limit."""
        self._share.hold()

    def remove(self) -> None:
        """Restore the limit, unless another holder still needs it raised. A second call does nothing."""
        self._share.release()

    def __enter__(self) -> Deeper:
        self.install()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.remove()


class _Share:
    """One holder's request for the raised limit, apart from the holder so that it can outlive it."""

    def __init__(self) -> None:
        self._holds = False

    def hold(self) -> None:
        """Raise the limit. A second call does nothing."""
        if not self._holds:
            self._holds = True
            _LIMIT.hold()

    def release(self) -> None:
        """Give up the raised limit, if this share holds it."""
        if self._holds:
            self._holds = False
            _LIMIT.release()


class _Limit:
    """The recursion limit of the process, and the number of holders that need it raised."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the collector may let go of a holder at any moment
        self._holders = 0
        self._before = self._raised = 0

    def hold(self) -> None:
        """Add a holder; the first one raises the limit."""
        with self._lock:
            self._holders += 1
            now = sys.getrecursionlimit()
            if self._holders == 1 and now != self._raised:
                self._before, self._raised = now, now + min(now, _MOST)
                sys.setrecursionlimit(self._raised)

    def release(self) -> None:
        """Remove a holder; the last one restores the limit, unless the program has set another one meanwhile."""
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
"""One object for the process, because Python has one limit for the process."""
