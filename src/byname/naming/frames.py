"""Which local variables are alive in which running function? Read without leaving a trace in the frames."""

from __future__ import annotations

import inspect
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any, NamedTuple

from byname.site import is_torch

__all__ = ["RunningFrame", "caller", "locals_of", "running_frames"]


class RunningFrame(NamedTuple):
    """A frame, how many calls away it is from the asker, and whether it belongs to another thread."""

    frame: FrameType
    distance: int
    foreign: bool


def caller() -> FrameType | None:
    """The innermost frame that is neither byname's nor PyTorch's."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and is_torch(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def running_frames() -> Iterator[RunningFrame]:
    """Every frame of every thread that is not byname's own, the asker's first and the nearest first."""
    here = threading.get_ident()
    threads = sorted(sys._current_frames().items(), key=lambda pair: pair[0] != here)
    for ident, innermost in threads:
        frame: FrameType | None = innermost
        distance = 0
        while frame is not None:
            if not frame.f_code.co_filename.startswith(_OWN):
                yield RunningFrame(frame, distance, ident != here)
                distance += 1
            frame = frame.f_back


def locals_of(frame: FrameType) -> list[tuple[str, Any]]:
    """The local variables of a frame.

    Up to Python 3.12 ``frame.f_locals`` leaves a dict in the frame that keeps every value alive, also after ``del`` in
    the program. It is emptied again, unless the program itself holds that dict (it called ``locals()`` and kept it), or
    a debugger or tracer may be about to write the dict back into the frame.
    """
    found = frame.f_locals
    values = list(found.items())
    optimized = frame.f_code.co_flags & inspect.CO_OPTIMIZED
    if optimized and type(found) is dict and sys.getrefcount(found) <= _ONLY_THE_FRAME and not _traced(frame):
        found.clear()
    return values


def _traced(frame: FrameType) -> bool:
    every = (sys.gettrace, sys.getprofile, threading.gettrace, threading.getprofile)
    return frame.f_trace is not None or any(get() is not None for get in every)


_ONLY_THE_FRAME = 3
"""References to a frame's dict when nobody else holds it: the frame, the variable above, the argument of the count."""

_OWN = __file__.removesuffix("naming/frames.py")
