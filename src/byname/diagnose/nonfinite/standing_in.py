"""How is a function called so that what PyTorch warns of has the program's line? From code that bears that line.

``PyErr_WarnEx`` and ``warnings.warn`` take file, line and registry of warnings from a frame, counted from the one that
calls. Under a mode that frame is the mode's. So the function is called from a frame with the globals, file and line of
the program's own; `byname.source.tracebacks` takes it out of tracebacks, as it does with the frames of byname.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType, FrameType, FunctionType
from typing import Any

from byname.source.tracebacks import STANDS_IN, is_byname

__all__ = ["StandIns", "plainly"]


def plainly(function: Any, args: Any, kwargs: Any) -> Any:
    """What a stand-in does, from here."""
    return function(*args, **kwargs)


_LINES = max(line or 0 for _, _, line in plainly.__code__.co_lines()) - plainly.__code__.co_firstlineno
"""How far below its first line a stand-in calls."""


class StandIns:
    """Functions that call others from a line of the program; one for each place that has called."""

    def __init__(self) -> None:
        self._known: dict[tuple[CodeType, int], FunctionType] = {}

    def at(self, frame: FrameType | None, function: Any) -> Callable[[Any, Any, Any], Any]:
        """What calls a function with ``(function, args, kwargs)`` as the program does.

        Args:
            frame: the one that has called the mode.
            function: what it was called with.
        """
        frame = _caller(frame, function)
        if frame is None:
            return plainly
        place = (frame.f_code, frame.f_lasti)
        known = self._known.get(place)
        if known is None or known.__globals__ is not frame.f_globals:
            known = self._known[place] = _standing_in(frame)
        return known


def _caller(frame: FrameType | None, function: Any) -> FrameType | None:
    """The frame that called a function, past modes of byname and PyTorch's detour to each of them.

    A function that is written in Python asks for modes itself, and is entered once more for each.
    """
    own = getattr(function, "__code__", None)
    while frame is not None:
        entered = frame.f_back
        if is_byname(frame.f_code.co_filename):
            frame = entered
        elif frame.f_code.co_name == _DETOUR and entered is not None and entered.f_code is own:
            frame = entered.f_back
        else:
            break
    return frame


_DETOUR = "handle_torch_function"


def _standing_in(frame: FrameType) -> FunctionType:
    code = plainly.__code__.replace(
        co_filename=frame.f_code.co_filename,
        co_firstlineno=(frame.f_lineno or 1) - _LINES,
        co_name=STANDS_IN,
        co_qualname=STANDS_IN,
    )
    return FunctionType(code, frame.f_globals)
