"""How does a command look at the program that it runs, so that the program notices nothing?"""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType, FunctionType, MethodType
from typing import Any

from byname.memory.census import Census, census
from byname.source.location import is_library
from byname.source.tracebacks import frames
from byname.table import text
from byname.text import printable, table_width


def unnoticed(look: Callable[[], None], tell: Callable[[str], None], *, also: type[BaseException] = Exception) -> None:
    """Looks at a program that must not fail because of it: an error of the look is told, and goes no further.

    What another signal handler of the program raises meanwhile belongs to the program, and so does Ctrl-C.

    Args:
        look: the look.
        tell: is given the sentence about an error.
        also: a kind of errors besides `Exception`.
    """
    try:
        look()
    except (Exception, also) as error:  # the program goes on, whatever goes wrong in a look at it
        if _from_a_handler(error):
            raise
        tell(printable(f"could not look at the program: {type(error).__name__}: {error}"))


def _from_a_handler(error: BaseException) -> bool:
    """Whether a signal handler of the program raised an error."""
    codes = []
    for number in signal.valid_signals():
        handler: Any = signal.getsignal(number)
        if type(handler) in (FunctionType, MethodType):
            codes.append(handler.__code__)
    return any(entry.frame.f_code is code for entry in frames(error)[1:] for code in codes)


def census_text(found: Census, top: int, width: int | None = None) -> str:
    """Return a census as a table.

    Args:
        found: the census.
        top: how many rows.
        width: in characters; by default that of the standard error.
    """
    table = found.head(top, width=table_width(sys.__stderr__) if width is None else width)
    return table if found else f"{table}\n{_NOTHING}"


_NOTHING = "the functions that held tensors have returned; --every N looks while they run"


def where(frame: FrameType | None) -> str:
    """Where the program is: `` at train.py:14``; empty where it is nowhere."""
    while frame is not None and is_library(frame.f_code.co_filename):
        frame = frame.f_back
    return "" if frame is None else f" at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"


def ready() -> None:
    """Imports everything that a look needs, so that none of it is imported in the middle of the program."""
    census()
    text([{"": ""}], width=table_width(None))
