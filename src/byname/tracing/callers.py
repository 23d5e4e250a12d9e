"""Callers: the line of the model that makes a call, the functions of a module around it, and the calls still open."""

from __future__ import annotations

from collections.abc import Mapping
from types import FrameType
from typing import Any, TypeVar

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


T = TypeVar("T")


class OpenCalls(list[tuple[nn.Module, T]]):
    """A stack of modules, each with what is noted of its call.

    >>> calls = OpenCalls()
    >>> outer, inner = nn.ReLU(), nn.Tanh()
    >>> calls.append((outer, "first"))
    >>> calls.append((inner, "second"))
    >>> calls.end(outer), calls.end(inner), len(calls)
    ('first', None, 0)
    """

    def end(self, module: nn.Module) -> T | None:
        """Close the innermost call of a module, and those inside it, whose hooks may have been removed meanwhile.

        Returns:
            What was noted of the call; None if no call of the module is open, as when another hook raised before ours.
        """
        if not self or self[-1][0] is not module:
            if all(one is not module for one, _ in self):
                return None
            while self[-1][0] is not module:
                self.pop()
        return self.pop()[1]
