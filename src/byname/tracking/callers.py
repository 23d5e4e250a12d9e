"""Which line of the user's program led to this call? From the frame that called to the user's own."""

from __future__ import annotations

from functools import lru_cache
from types import CodeType, FrameType

from torch import nn

from byname.source.location import is_torch

__all__ = [
    "CODE_OF_A_MODULES_CALL",
    "call_of_a_module",
    "computes",
    "is_optimizers",
    "known_files",
    "made_for_the_user",
    "place_of",
    "users_frame",
]

call_of_a_module = nn.Module._call_impl
"""A module's call as PyTorch has it, before anything is wrapped."""

CODE_OF_A_MODULES_CALL = call_of_a_module.__code__

known_files: dict[str, bool] = {}
"""Whether a file is PyTorch's, for the files met so far."""

_MAKERS = frozenset({"handle_torch_function", "wrapped"})
"""PyTorch's functions that stand between a user's call and the mode."""


def users_frame(frame: FrameType | None) -> tuple[FrameType | None, int]:
    """The innermost frame of the user's, and how many calls of modules lie between it and the given one."""
    inside = 0
    while frame is not None:
        code = frame.f_code
        theirs = known_files.get(code.co_filename)
        if theirs is None:
            theirs = known_files[code.co_filename] = is_torch(code.co_filename)
        if not theirs:
            break
        if code is CODE_OF_A_MODULES_CALL:
            inside += 1
        frame = frame.f_back
    return frame, inside


def place_of(frame: FrameType | None) -> tuple[CodeType | None, int]:
    """The code object and the instruction of the user's frame."""
    user, _ = users_frame(frame)
    return (None, -1) if user is None else (user.f_code, user.f_lasti)


def made_for_the_user(frame: FrameType) -> bool:
    """Whether the frame that called is the user's, and not one of the many in which PyTorch works for itself."""
    return not known_files.get(frame.f_code.co_filename) or frame.f_code.co_name in _MAKERS


def computes(frame: FrameType) -> bool:
    """Whether what this frame calls is part of the user's computation, not of an optimizer's or a clipper's."""
    caller: FrameType | None = frame
    while caller is not None and caller.f_code.co_name in _MAKERS and is_torch(caller.f_code.co_filename):
        caller = caller.f_back
    return caller is None or not _keeps_house(caller.f_code.co_filename)


def is_optimizers(frame: FrameType) -> bool:
    """Whether what this frame calls is called by one of PyTorch's optimizers."""
    return "/torch/optim/" in frame.f_code.co_filename.replace("\\", "/")


@lru_cache(maxsize=1024)
def _keeps_house(filename: str) -> bool:
    inner = filename.replace("\\", "/").rpartition("/torch/")[2]
    return is_torch(filename) and inner.startswith(_HOUSEKEEPING)


_HOUSEKEEPING = tuple(
    "optim/ nn/utils/ nn/init.py amp/ cuda/ autograd/ distributed/ utils/ testing/ profiler/ jit/ fx/ onnx/ _dynamo/ "
    "_inductor/ _functorch/ _tensor_str.py _utils.py serialization.py".split()
)
"""Where in PyTorch tensors are computed that are no part of what the user computes."""
