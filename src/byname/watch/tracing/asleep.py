"""Is an example run on in this thread? Then what is attached to the model sees nothing of it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["asleep", "example_running"]


class _Here(threading.local):
    """How many example runs are on in one thread, one inside the other. A model does not say whose call it is in."""

    depth = 0


_here = _Here()


def asleep() -> bool:
    """Whether an example run is on in this thread.

    >>> with example_running():
    ...     asleep()
    True
    >>> asleep()
    False
    """
    return _here.depth > 0


@contextmanager
def example_running() -> Iterator[None]:
    """Marks what this thread runs inside as an example run."""
    _here.depth += 1
    try:
        yield
    finally:
        _here.depth -= 1
