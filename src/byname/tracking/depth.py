"""Depth: a higher recursion limit while a program is watched, to make room for the frames that watching adds.

A tracker's patch adds one frame to each module call, and so does PyTorch's own detour for a module with hooks
(``_call_impl.<locals>.inner``).
"""

from __future__ import annotations

import sys
import weakref

from byname.undo import Shared

_MOST = 3000
"""The most to add to the limit: each frame of a module call also takes space on the thread's own stack."""


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


class _Limit(Shared):
    """The recursion limit, which Python has once for the process."""

    def __init__(self) -> None:
        super().__init__(self._raise, self._restore)
        self._before = self._raised = 0

    def _raise(self) -> None:
        now = sys.getrecursionlimit()
        if now != self._raised:
            self._before, self._raised = now, now + min(now, _MOST)
            sys.setrecursionlimit(self._raised)

    def _restore(self) -> None:
        """Restore the limit, unless the program has set another one meanwhile."""
        if sys.getrecursionlimit() == self._raised:
            try:
                sys.setrecursionlimit(self._before)
            except RecursionError:  # the stack is deeper than that: the next holder restores it
                return
        self._raised = 0


_LIMIT = _Limit()
