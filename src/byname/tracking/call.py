"""Call: one call of a PyTorch function that made graph nodes, and the names of functions."""

from __future__ import annotations

import weakref
from types import FunctionType
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import nn

from byname.reading.frames import Line
from byname.reading.objects import attributes_of, found_in


class Called(NamedTuple):
    """A function that was called: its name, its kind, and whether it is a method of tensors."""

    name: str
    kind: int
    is_method: bool


def name_of(function: Any) -> str:
    """Return the name of a function; ``?`` for a callable that has none, or computes it."""
    if type(function) in _HAVE_A_NAME:
        return str(function.__name__)
    name = attributes_of(function).get("__name__", found_in(type(function), "__name__"))
    return name if type(name) is str else "?"


_HAVE_A_NAME = (FunctionType, type(len), type(str.join), type(str.__len__), type("".__len__))


def is_method(function: Any) -> bool:
    """Return whether a function is a method of tensors."""
    name = name_of(function)
    return any(vars(kind).get(name) is function for kind in (torch.Tensor, torch._C.TensorBase))


RawCall: TypeAlias = tuple[int, int, Any, Any, Any, int, Any, int, Any]
"""The fields of a `Call`, and in place of the last those of its `Line`: a thousand are recorded for each one read."""


class Call(NamedTuple):
    """One call that made graph nodes.

    Attributes:
        before, after: the thread's sequence number around the call; its nodes have before <= number < after.
        called: the called function: a builtin of PyTorch's itself, or the `Called` of any other.
        result: a weak reference to the resulting tensor; None if there was none or several.
        module: a weak reference to the innermost running module.
        inside: the number of enclosing torch.nn module calls that have not yet returned the result; 0 if it is the
            value of the user's own expression.
        line: the user's line that called.
    """

    before: int
    after: int
    called: Any
    result: weakref.ref[torch.Tensor] | None
    module: weakref.ref[nn.Module] | None
    inside: int
    line: Line

    @classmethod
    def of(cls, raw: RawCall) -> Call:
        """Return the call that was recorded by these fields."""
        return cls(*raw[:6], Line(*raw[6:]))

    @property
    def name(self) -> str:
        """The name of the called function."""
        return str(self.called.name if type(self.called) is Called else self.called.__name__)

    @property
    def is_method(self) -> bool:
        """Whether a method of tensors was called, so that its first operand stands before the dot."""
        return bool(self.called.is_method if type(self.called) is Called else is_method(self.called))
