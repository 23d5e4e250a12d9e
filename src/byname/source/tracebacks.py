"""What of a traceback is the program's own? Tracebacks without byname, and the frames in them."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NamedTuple

__all__ = ["STANDS_IN", "Entry", "clean", "frames", "is_byname", "users_frame", "warn", "without_byname"]

STANDS_IN = "<byname>"
"""The name of a function that stands in for a line of the program, with the file of that line."""


class Entry(NamedTuple):
    """One line of a traceback: a frame, and where in its code it was when the error passed."""

    frame: FrameType
    lasti: int
    lineno: int


def clean(error: BaseException) -> None:
    """Takes byname out of the tracebacks of an error, of its causes and contexts, and of the errors it groups."""
    for one in _related(error):
        before = _TRACEBACK.__get__(one)
        after = without_byname(before)
        if after is not before:  # past a frozen class, or one with a __setattr__ of its own
            _TRACEBACK.__set__(one, after)


def without_byname(traceback: TracebackType | None) -> TracebackType | None:
    """The traceback that the program would have had without byname; the given one is changed.

    Under a function mode, PyTorch goes through `handle_torch_function` and enters the function that was called a second
    time. That detour is byname's doing, and goes with the frames of byname.
    """
    chain = list(_chain(traceback))
    ours = [_is_ours(one) for one in chain]
    for place in range(len(chain) - 1):
        if ours[place] and not ours[place + 1]:
            _mark_detour(chain, ours, place + 1)
    kept = [one for one, drop in zip(chain, ours, strict=True) if not drop]
    for one, following in zip(kept, [*kept[1:], None], strict=False):
        one.tb_next = following
    return kept[0] if kept else None


def frames(error: BaseException) -> list[Entry]:
    """The frames an error passed through, the outermost first."""
    chain = (one for one in _chain(error.__traceback__) if one.tb_frame.f_code.co_name != STANDS_IN)
    return [Entry(one.tb_frame, one.tb_lasti, one.tb_lineno) for one in chain]


def users_frame(error: BaseException) -> Entry | None:
    """The innermost frame that is neither PyTorch's nor byname's; None where the error passed through no such frame."""
    from byname.source.location import is_torch  # and with it PyTorch, which the help of a command can do without

    theirs = [entry for entry in frames(error) if not is_torch(entry.frame.f_code.co_filename)]
    return theirs[-1] if theirs else None


def warn(sentence: str, category: type[Warning]) -> None:
    """Warns; the place of the warning is the nearest line that is neither byname's nor that of an exit stack.

    Args:
        sentence: what there is to say.
        category: a class of warnings.
    """
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_HERE, contextlib.__file__)):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"byname: {sentence}", category, stacklevel=level)


def _chain(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def _related(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()  # an error can be its own distant cause; each is alive as long as the first one is
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [one.__cause__, one.__context__, *_grouped(one)]


def _grouped(error: BaseException) -> tuple[BaseException, ...]:
    return error.exceptions if isinstance(error, BaseExceptionGroup) else ()


def _is_ours(one: TracebackType) -> bool:
    code = one.tb_frame.f_code
    return is_byname(code.co_filename) or code.co_name == STANDS_IN


def is_byname(filename: str) -> bool:
    """Whether a file is one of byname's."""
    return filename.startswith(_HERE)


def _mark_detour(chain: list[TracebackType], ours: list[bool], entered: int) -> None:
    """Marks the first entry into the function that the frame at `entered` is in, and the dispatch in between."""
    before = entered - 1
    while before >= 0 and ours[before]:
        before -= 1
    if before < 1 or chain[before].tb_frame.f_code.co_name != "handle_torch_function":
        return
    ours[before] = True
    if chain[before - 1].tb_frame.f_code is chain[entered].tb_frame.f_code:
        ours[before - 1] = True


_TRACEBACK: Any = vars(BaseException)["__traceback__"]
_HERE = str(Path(__file__).parent.parent) + os.sep
