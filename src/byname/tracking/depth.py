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

_MOST = 3000
"""The most that is added to the limit: each frame of a module call also takes space on the thread's own stack."""


class Deeper:
    """Raises Python's recursion limit from `install` to `remove`, or until this object is freed."""

    def __init__(self) -> None:
        self._token = object()
        weakref.finalize(self, _LIMIT.release, self._token).atexit = False

    def install(self) -> None:
        """Raise the recursion limit. A second call does nothing."""
        _LIMIT.hold(self._token)

    def remove(self) -> None:
        """Restore the limit, unless another holder still needs it raised. A second call does nothing."""
        _LIMIT.release(self._token)

    def __enter__(self) -> Deeper:
        self.install()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.remove()


class _Limit:
    """The recursion limit of the process, and the tokens of those that need it raised.

    They are a set and not a count, so that an interrupt between two lines leaves nobody counted twice or not at all.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()  # the collector may free a holder at any moment
        self._holders: set[object] = set()
        self._before = self._raised = 0

    def hold(self, token: object) -> None:
        """Add a holder; the first one raises the limit."""
        with self._lock:
            self._holders.add(token)
            now = sys.getrecursionlimit()
            if len(self._holders) == 1 and now != self._raised:
                self._before, self._raised = now, now + min(now, _MOST)
                sys.setrecursionlimit(self._raised)

    def release(self, token: object) -> None:
        """Remove a holder; the last one restores the limit, unless the program has set another one meanwhile."""
        with self._lock:
            if token not in self._holders:
                return
            self._holders.discard(token)
            if self._holders:
                return
            if sys.getrecursionlimit() == self._raised:
                try:
                    sys.setrecursionlimit(self._before)
                except RecursionError:  # the stack is deeper than that: the next holder restores it
                    return
            self._raised = 0


_LIMIT = _Limit()
"""One object for the process, because Python has one limit for the process."""
