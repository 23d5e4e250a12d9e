"""Tracebacks: the frames of the user's program in a traceback, without byname's own, and the short names of files."""

from __future__ import annotations

import contextlib
import os
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any, NamedTuple

_HERE = str(Path(__file__).parent.parent) + os.sep


def is_byname(filename: str) -> bool:
    return filename.startswith(_HERE)


class PassedFrame(NamedTuple):
    """A frame that an error passed, and the instruction that it was running."""

    frame: FrameType
    instruction: int

    @property
    def code(self) -> CodeType:
        return self.frame.f_code

    @property
    def file(self) -> str:
        return self.frame.f_code.co_filename


def strip_byname_frames(error: BaseException) -> None:
    """Remove byname's frames from the tracebacks of an error, its causes, its contexts and the errors it groups."""
    for one in error_chain(error):
        before = _TRACEBACK.__get__(one)
        after = without_byname(before)
        if after is not before:  # works for frozen classes and for those with their own __setattr__
            _TRACEBACK.__set__(one, after)


def without_byname(traceback: TracebackType | None) -> TracebackType | None:
    """Return a traceback as the program would have it without byname; the given one is changed.

    Under a function mode, PyTorch goes through `handle_torch_function` and enters the called function a second time.
    byname causes that detour, so it is removed together with byname's frames.
    """
    chain = list(_chain(traceback))
    ours = _added_by_byname([one.tb_frame for one in chain])
    kept = [one for one, drop in zip(chain, ours, strict=True) if not drop]
    for one, following in zip(kept, [*kept[1:], None], strict=False):
        one.tb_next = following
    return kept[0] if kept else None


def frames(error: BaseException) -> list[PassedFrame]:
    """Return the frames that an error passed through, outermost first."""
    return [PassedFrame(one.tb_frame, one.tb_lasti) for one in _chain(error.__traceback__)]


def meant_frame(filename: str, line: int) -> tuple[FrameType, FrameType] | None:
    """Return the frame at the line of a warning, and the frame whose line it would have without byname.

    The result is None if both are the same.
    """
    inner = list(walk_frames(sys._getframe(2)))
    stack = inner[::-1]
    ours = _added_by_byname(stack)
    at = line, filename
    level = next((level for level, one in enumerate(inner) if (one.f_lineno, one.f_code.co_filename) == at), None)
    if level is None or not ours[~level]:
        return None
    kept = [one for one, drop in zip(stack, ours, strict=True) if not drop]
    return (inner[level], kept[~level]) if level < len(kept) else None


def walk_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """Yield a frame, the one that called it, and so on."""
    while frame is not None:
        yield frame
        frame = frame.f_back


def warn(sentence: str, category: type[Warning]) -> None:
    """Issue a warning at the nearest line that is neither byname's, PyTorch's nor an exit stack's."""
    torch = str(sys.modules["torch"].__file__)  # not imported here: a command's help does not need it
    passed = (_HERE, str(Path(torch).parent) + os.sep, contextlib.__file__)
    level, frame = 2, sys._getframe(1)
    while frame.f_back and frame.f_code.co_filename.startswith(passed):
        level, frame = level + 1, frame.f_back
    warnings.warn(f"byname: {sentence}", category, stacklevel=level)


def _chain(traceback: TracebackType | None) -> Iterator[TracebackType]:
    while traceback is not None:
        yield traceback
        traceback = traceback.tb_next


def error_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, its causes, its contexts and the errors it groups, each once."""
    seen: set[int] = set()  # an error can be its own distant cause; the first one keeps all of them alive
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            yield one
            waiting += [one.__cause__, one.__context__]
            waiting += one.exceptions if isinstance(one, BaseExceptionGroup) else ()


def _added_by_byname(stack: Sequence[FrameType]) -> list[bool]:
    """Return for each frame, the outermost first, whether byname added it."""
    ours = [is_byname(one.f_code.co_filename) for one in stack]
    for place in range(len(stack) - 1):
        if ours[place] and not ours[place + 1]:
            _mark_detour(stack, ours, place + 1)
    return ours


def _mark_detour(stack: Sequence[FrameType], ours: list[bool], entered: int) -> None:
    """Mark in `ours` the first call of the function of the frame at `entered`, and the dispatch in between."""
    before = entered - 1
    while before >= 0 and ours[before]:
        before -= 1
    if before < 1 or stack[before].f_code.co_name != "handle_torch_function":
        return
    ours[before] = True
    if stack[before - 1].f_code is stack[entered].f_code:
        ours[before - 1] = True


_TRACEBACK: Any = vars(BaseException)["__traceback__"]


def running_shell() -> Any:
    """Return the shell of IPython that runs in this process; None outside of notebooks."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", None)
    return None if shell is None else shell()


def shown_file(file: str) -> str:
    """Return a file without its folders, and a cell of a notebook as ``In[5]``, by the last time that it ran.

    >>> shown_file("/home/you/train.py")
    'train.py'
    """
    compiler = getattr(running_shell(), "compile", None)
    named = getattr(compiler, "format_code_name", None)
    cell = None if named is None else named(file)
    return os.path.basename(file) if cell is None else str(cell[1])  # noqa: PTH119 - not a path for exec
