"""Callers: the line of the model that makes a call, and the functions of a module that run around it."""

from __future__ import annotations

from collections.abc import Mapping
from types import FrameType
from typing import Any

from torch import nn

from byname.reading.frames import CODE_OF_A_MODULES_CALL
from byname.source.code import ThisCode, stands_for
from byname.source.location import Instruction, is_torch


def call_model(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Call a model; what is outside this call on the stack are no lines of the model."""
    model(*args, **kwargs)


def line_in_the_model(frame: FrameType | None) -> Instruction | None:
    """Return the innermost instruction outside PyTorch and byname; None if it is not inside `call_model`."""
    while frame is not None and is_torch(frame.f_code.co_filename):
        if frame.f_code is call_model.__code__:
            return None
        frame = frame.f_back
    return None if frame is None else (frame.f_code, frame.f_lasti)


def functions_running(functions: Mapping[str, ThisCode], frame: FrameType | None) -> list[str]:
    """Return which of a module's functions run between its call and a frame inside it, the innermost first."""
    found: dict[str, None] = {}
    while frame is not None and frame.f_code is not CODE_OF_A_MODULES_CALL:
        code = stands_for[frame.f_code]
        found.update((name, None) for name, one in functions.items() if one.code is code)
        frame = frame.f_back
    return [*found]
