"""Frames: the local variables of running functions, read without a trace, and the user's line that led to a call."""

from __future__ import annotations

import inspect
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType
from typing import Any, NamedTuple

from torch import nn

from byname.reading.objects import snapshot
from byname.source.code import HIDDEN, CodeKey
from byname.source.location import FILE_ORIGIN, PROGRAM, TORCH, Expression, Instruction, Site, is_torch, locate
from byname.source.tracebacks import PassedFrame, frames, walk_frames


class RunningFrame(NamedTuple):
    """A frame, its distance in calls from the innermost frame, and whether it belongs to another thread."""

    frame: FrameType
    distance: int
    foreign: bool


def caller() -> FrameType | None:
    """Return the innermost frame that is neither byname's nor PyTorch's."""
    return find_user_frame(sys._getframe(1))[0]


def reported_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame of the program, from the given one outwards, or else that of a library.

    Often a trainer calls backward or step, but users want the line of their program that led there.
    """
    return program_frame(frame) or find_user_frame(frame)[0]


def program_frame(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame that is neither PyTorch's nor of a library, from the given one outwards, or None."""
    while frame is not None and FILE_ORIGIN[frame.f_code.co_filename] != PROGRAM:
        frame = frame.f_back
    return frame


def running_frames() -> Iterator[RunningFrame]:
    """Yield the frames that are neither byname's nor PyTorch's, the inner before the outer, this thread's first.

    Before them come the frames that count as running (`treat_as_running`).
    """
    for distance, left in enumerate(_frames_left.frames):
        if not is_torch(left.f_code.co_filename):
            yield RunningFrame(left, distance, False)
    here = threading.get_ident()
    # Not this generator's own frame: one that refers to itself lives, with its callers, until the next collection.
    others = [(ident, frame) for ident, frame in sys._current_frames().items() if ident != here]
    for ident, innermost in [(here, sys._getframe().f_back), *others]:
        theirs = (frame for frame in walk_frames(innermost) if not is_torch(frame.f_code.co_filename))
        for distance, frame in enumerate(theirs):
            if frame not in _frames_left.frames:
                yield RunningFrame(frame, distance, ident != here)


def running_frame_ids() -> frozenset[int]:
    """Return the ids of all running frames of every thread, and of those that count as running (`treat_as_running`)."""
    running = (frame for innermost in sys._current_frames().values() for frame in walk_frames(innermost))
    return frozenset(map(id, [*_frames_left.frames, *running]))


def is_module_body(frame: FrameType) -> bool:
    """Return whether a frame runs a module's body, so that its variables are the module's globals."""
    return not frame.f_code.co_flags & inspect.CO_OPTIMIZED and frame.f_locals is frame.f_globals


def frames_of_error(error: BaseException) -> list[PassedFrame]:
    """Return all frames that an error passed, the innermost first, and then the frames around them."""
    passed = frames(error)
    outer = walk_frames(passed[0].frame.f_back if passed else None)
    return [*reversed(passed), *(PassedFrame(frame, frame.f_lasti) for frame in outer)]


@contextmanager
def treat_as_running(error: BaseException | None) -> Iterator[None]:
    """Within the block, treat the functions that an error has left as running."""
    before = _frames_left.frames
    _frames_left.frames = () if error is None else tuple([one.frame for one in frames_of_error(error)])
    try:
        yield
    finally:
        _frames_left.frames = before


class _FramesLeft(threading.local):
    frames: tuple[FrameType, ...] = ()


_frames_left = _FramesLeft()


def variables_of(frame: FrameType) -> dict[str, Any]:
    return {**frame.f_globals, **dict(locals_of(frame))}


def variables_at(code: CodeType | None, innermost: FrameType | None) -> dict[str, Any]:
    """Return the variables of the innermost running function with this code; none if it has ended."""
    running = next((frame for frame in walk_frames(innermost) if frame.f_code is code), None)
    return {} if running is None else variables_of(running)


def locals_of(frame: FrameType) -> list[tuple[str, Any]]:
    """Return the local variables of a frame.

    Up to Python 3.12 ``frame.f_locals`` leaves a dict in the frame that keeps every value alive, even after ``del`` in
    the program. This function empties that dict again, unless the program holds it (it called ``locals()``), or a
    debugger or tracer may be about to write it back into the frame. All readers of a frame share the dict, so only one
    thread reads at a time.
    """
    with _LOCALS_LOCK:
        found = frame.f_locals
        optimized = frame.f_code.co_flags & inspect.CO_OPTIMIZED
        values = [*found.items()] if optimized else snapshot(found) if issubclass(type(found), dict) else []
        if optimized and type(found) is dict and sys.getrefcount(found) <= _ONLY_THE_FRAME and not _traced(frame):
            found.clear()
    return [(name, value) for name, value in values if type(name) is str and not name.startswith(HIDDEN)]


_LOCALS_LOCK: Any = threading.RLock()
if hasattr(os, "register_at_fork"):  # a forked process does not have the thread that held it
    os.register_at_fork(after_in_child=_LOCALS_LOCK._at_fork_reinit)


def _traced(frame: FrameType) -> bool:
    every = (sys.gettrace, sys.getprofile, threading.gettrace, threading.getprofile)
    return frame.f_trace is not None or any(get() is not None for get in every)


_ONLY_THE_FRAME = 3
"""References to a frame's dict if no other code holds it: those of the frame, the variable above and the argument."""

MODULE_CALL_CODE = nn.Module._call_impl.__code__
"""The code of PyTorch's own function for a module call, taken before anything patches it."""


def running_module() -> nn.Module | None:
    """Return the innermost module that is running in this thread; None outside of modules."""
    calls = (frame for frame in walk_frames(sys._getframe(1)) if frame.f_code is MODULE_CALL_CODE)
    innermost = next(calls, None)
    return None if innermost is None else innermost.f_locals.get("self")


def runs(model: nn.Module, calls: int = 1) -> bool:
    """Return whether this module is being called in this thread, or `calls` times, one inside the other."""
    of_modules = (frame for frame in walk_frames(sys._getframe(1)) if frame.f_code is MODULE_CALL_CODE)
    own = (frame for frame in of_modules if frame.f_locals.get("self") is model)
    return next(islice(own, calls - 1, None), None) is not None


_CALL_FORWARD = (MODULE_CALL_CODE, *(one for one in MODULE_CALL_CODE.co_consts if type(one) is CodeType))
"""The codes that call a module's ``forward``: that of the module call, and that inside it which also calls hooks."""

_TORCH_WRAPPERS = frozenset({"handle_torch_function", "wrapped"})
"""PyTorch's functions that stand between a user's call and the mode."""


def find_user_frame(frame: FrameType | None) -> tuple[FrameType | None, int]:
    """Return the innermost frame of the user's, and the number of module calls between it and the given frame."""
    inside = 0
    while frame is not None:
        code = frame.f_code
        if FILE_ORIGIN[code.co_filename] != TORCH:
            break
        if code is MODULE_CALL_CODE:
            inside += 1
        frame = frame.f_back
    return frame, inside


class Line(NamedTuple):
    """The user's line of a call, as it is recorded, before its source is read: `NO_LINE` if there is none.

    Attributes:
        code, instruction: the code object of the user's frame and the byte offset of its instruction.
        caller: the code that called the function of that frame, if the function is a helper (`helper_caller`).
    """

    code: CodeType | None = None
    instruction: int = -1
    caller: Instruction | None = None

    @property
    def place(self) -> tuple[CodeKey, int]:
        """The line as a dictionary key, which leaves the caller out."""
        return CodeKey(self.code), self.instruction

    @property
    def expr(self) -> Expression | None:
        """The expression in the source; None for `NO_LINE`."""
        return None if self.code is None else locate(self.code, self.instruction, self.caller)

    @property
    def site(self) -> Site | None:
        return None if (expr := self.expr) is None else expr.site


NO_LINE = Line()


def helper_caller(frame: FrameType) -> Instruction | None:
    """Return the code that called the function of a user's frame, or None if that function is not a helper.

    No helpers are a module's body, a ``forward``, and a function of the program that a library calls. The caller of a
    library's function is the innermost frame of the program, however far out. The caller of any other is the frame that
    called it, past those of PyTorch such as the wrapper of ``@torch.no_grad()``.
    """
    back = frame.f_back
    if back is not None and frame.f_code.co_name not in _NO_FUNCTIONS:  # the usual cases first: every call pays for it
        code = back.f_code
        if FILE_ORIGIN[code.co_filename] == PROGRAM:
            return code, back.f_lasti
        if code is not MODULE_CALL_CODE:
            return _found_outwards(frame, back)
        return None
    if back is None or frame.f_code.co_name == "<module>" or back.f_code.co_filename != frame.f_code.co_filename:
        return None
    return helper_caller(back)


_NO_FUNCTIONS = frozenset({"<module>", "<listcomp>", "<setcomp>", "<dictcomp>", "<genexpr>"})
"""Names of codes that are no functions: a module's body, and comprehensions, which belong to the function around."""


def is_function(frame: FrameType) -> bool:
    """Return whether a frame is that of a function, and not of a module's body or a comprehension."""
    return frame.f_code.co_name not in _NO_FUNCTIONS


def _found_outwards(frame: FrameType, back: FrameType | None) -> Instruction | None:
    """Return the caller where the frame that called is PyTorch's or a library's."""
    while back is not None and is_torch(back.f_code.co_filename):
        if any(back.f_code is code for code in _CALL_FORWARD):
            return None
        back = back.f_back
    program = program_frame(back)
    if program is back or FILE_ORIGIN[frame.f_code.co_filename] != PROGRAM:
        return None if program is None else (program.f_code, program.f_lasti)
    return None


def user_line(frame: FrameType | None) -> Line:
    """Return the line of the user's frame, from the given one outwards."""
    if frame is not None and FILE_ORIGIN[frame.f_code.co_filename] == TORCH:  # most often it is the user's
        frame, _ = find_user_frame(frame)
    # as `Line(...)`, in half the time
    return NO_LINE if frame is None else _new(Line, (frame.f_code, frame.f_lasti, helper_caller(frame)))


_new = tuple.__new__


def is_called_by_user(frame: FrameType) -> bool:
    """Return whether the calling frame is the user's, and not one in which PyTorch works for itself."""
    return FILE_ORIGIN[frame.f_code.co_filename] != TORCH or frame.f_code.co_name in _TORCH_WRAPPERS


def is_user_computation(frame: FrameType) -> bool:
    """Return whether a call from this frame is part of the user's computation.

    It is not in an optimizer, in clipping, or where a module moves or converts its parameters, as by ``to()``.
    """
    caller: FrameType | None = frame
    while caller is not None and caller.f_code.co_name in _TORCH_WRAPPERS and is_torch(caller.f_code.co_filename):
        caller = caller.f_back
    moving = caller is not None and caller.f_back is not None and caller.f_back.f_code is _APPLY
    return caller is None or not (moving or _is_auxiliary(caller.f_code.co_filename))


_APPLY = nn.Module._apply.__code__


def is_optimizer_frame(frame: FrameType) -> bool:
    """Return whether a frame runs code of one of PyTorch's optimizers."""
    return "/torch/optim/" in frame.f_code.co_filename.replace("\\", "/")


@lru_cache(maxsize=1024)
def _is_auxiliary(filename: str) -> bool:
    inner = filename.replace("\\", "/").rpartition("/torch/")[2]
    return is_torch(filename) and inner.startswith(_AUXILIARY)


_AUXILIARY = tuple(
    "optim/ nn/utils/ nn/init.py amp/ cuda/ autograd/ distributed/ utils/ testing/ profiler/ jit/ fx/ onnx/ _dynamo/ "
    "_inductor/ _functorch/ _tensor_str.py _utils.py serialization.py".split()
)
"""Parts of PyTorch that compute tensors which do not belong to the user's computation."""
