"""Tally: the number of values that each variable gets in one run, and the shapes of the tensors in the first value."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType, FunctionType
from typing import Any

from torch import nn

from byname.errors import BadArgumentError
from byname.reading.quiet import DisableTorchFunction
from byname.source.code import stands_for
from byname.source.location import Instruction
from byname.tracing.callers import line_in_the_model
from byname.tracing.eager import EAGERLY
from byname.tracing.preserve import tensors_in
from byname.tracing.tensor_ids import shape_of
from byname.undo import Undo
from byname.watch.variables.subscribe import RETURN, Listening

Wanted = tuple[nn.Module, str, FunctionType, list[str], bool]
"""The variables to count in one function. The items: a module; the name of one of its methods, or of a function that it
calls; the function object; the names of the variables, ``return`` for the return value; and whether the module calls
the
function, rather than having it as a method."""


@dataclass(slots=True)
class Seen:
    """The facts about one variable or return value.

    Attributes:
        calls: the number of its values.
        shapes: the shapes of the tensors in the first value.
        line: for a return value, the instruction that called the function.
    """

    calls: int = 0
    shapes: tuple[tuple[int, ...], ...] = ()
    line: Instruction | None = None


class Tally:
    """Counts the values that `attach` would report, and keeps none of them."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, str, str], Seen] = {}
        self._heard: set[tuple[int, str]] = set()

    @contextmanager
    def listening(self, wanted: Iterable[Wanted]) -> Iterator[None]:
        """Count the values of these variables inside the block."""
        with EAGERLY.held():
            undo = Undo()
            try:
                for module, name, function, variables, called in wanted:
                    receive = self._receiver(module, name, function)
                    one = Listening(function, module, variables, receive, exits=False, by_caller=called)
                    undo.add(one.remove)
                    try:
                        one.begin()
                    except BadArgumentError:  # a generator without source: its variables cannot be read
                        continue
                    self._heard.add((id(module), name))
                yield
            finally:
                undo()

    def of(self, module: nn.Module, name: str, variable: str) -> Seen | None:
        """Return the facts about a variable of a method or function; None if it was not observed."""
        if (id(module), name) not in self._heard:
            return None
        return self._seen.get((id(module), name, variable), _NEVER)

    def _receiver(self, module: nn.Module, name: str, function: FunctionType) -> Any:
        """Return the receiver for a function; it counts a value and returns it."""
        key, every = id(module), self._seen

        def receive(activation: Any, variable: str, value: Any, moment: str) -> Any:
            seen = every.get((key, name, variable))
            if seen is None:
                seen = every[key, name, variable] = Seen()
                with DisableTorchFunction():
                    seen.shapes = tuple(shape_of(one) for one in tensors_in(value))
                if variable == RETURN:
                    seen.line = _line_of_the_call(function, sys._getframe(1))
            seen.calls += 1
            return value

        return receive


_NEVER = Seen()


def _line_of_the_call(function: FunctionType, frame: FrameType | None) -> Instruction | None:
    """Return the instruction of the model that called a function; the frame is that of the function or inside it."""
    own = stands_for[function.__code__]
    while frame is not None and stands_for[frame.f_code] is not own:
        frame = frame.f_back
    return None if frame is None else line_in_the_model(frame.f_back)
