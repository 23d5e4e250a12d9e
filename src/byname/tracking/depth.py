"""Depth: a higher recursion limit while a program is watched, to make room for the frames that watching adds.

A tracker's patch adds one frame to each module call, and so does PyTorch's own detour for a module with hooks
(``_call_impl.<locals>.inner``).
"""

from __future__ import annotations

import sys

from byname.undo import Shared

_MOST = 3000
"""The most to add to the limit: each frame of a module call also takes space on the thread's own stack."""


class _RecursionLimit(Shared):
    """Python's recursion limit, which it has once for the process; higher while anything holds this."""

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


RECURSION_LIMIT = _RecursionLimit()
