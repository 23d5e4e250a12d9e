"""Modes: PyTorch's mode stacks, from which byname takes its modes and puts them back while others come and go."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Stack:
    """One of PyTorch's mode stacks, in the running thread, by the functions that PyTorch has for it."""

    depth: Callable[[], int]
    at: Callable[[int], Any]
    push: Callable[[Any], None]
    pop: Callable[[], Any]

    def holds(self, mode: Any) -> bool:
        """Return whether a mode is on this thread's stack. PyTorch takes a mode off while it handles a call."""
        return _among(mode, self.modes())

    def remove(self, mode: Any) -> None:
        """Take a mode off this thread's stack, at any level. Another thread's stack cannot be reached."""
        depth = self.depth()
        if depth and self.at(depth - 1) is mode:  # nearly always
            self.pop()
        else:
            self.remove_all([mode])

    def put_in(self, mode: Any, level: int) -> None:
        """Put a mode on this thread's stack at a level, below the modes that are now at that level and above."""
        now = self.modes()
        self._set_modes([*now[:level], mode, *now[level:]])

    def remove_all(self, modes: Collection[Any]) -> list[Any]:
        """Take modes off this thread's stack, and return the stack as it was before, for `restore`."""
        before = self.modes()
        self._set_modes([mode for mode in before if not _among(mode, modes)])
        return before

    def restore(self, modes: Collection[Any], before: list[Any]) -> None:
        """Put removed modes back at their levels in `before`, or below all others if those have changed since."""
        now = self.modes()
        wanted = [mode for mode in before if _among(mode, modes) or _among(mode, now)]
        unchanged = [mode for mode in wanted if not _among(mode, modes)]
        same = len(unchanged) == len(now) and all(one is other for one, other in zip(unchanged, now, strict=True))
        self._set_modes(wanted if same else [*(mode for mode in before if _among(mode, modes)), *now])

    def modes(self) -> list[Any]:
        """Return the modes on this thread's stack, bottom first."""
        return [self.at(level) for level in range(self.depth())]

    def _set_modes(self, wanted: Sequence[Any]) -> None:
        """Set this thread's stack to these modes. An interrupt meanwhile loses no mode of the program."""
        try:
            self._make(wanted)
        finally:
            self._make(wanted)  # does nothing, unless it was interrupted

    def _make(self, wanted: Sequence[Any]) -> None:
        now = self.modes()
        same = 0
        while same < min(len(now), len(wanted)) and now[same] is wanted[same]:
            same += 1
        while self.depth() > same:
            self.pop()
        for mode in wanted[same:]:
            self.push(mode)


def _among(mode: Any, modes: Collection[Any]) -> bool:
    return any(one is mode for one in modes)


FUNCTIONS = Stack(
    torch._C._len_torch_function_stack,
    torch._C._get_function_stack_at,
    torch._C._push_on_torch_function_stack,
    torch._C._pop_torch_function_stack,
)
"""The stack of function modes, which see calls of PyTorch's functions."""

DISPATCHES = Stack(
    torch._C._len_torch_dispatch_stack,
    torch._C._get_dispatch_stack_at,
    torch._C._push_on_torch_dispatch_stack,
    lambda: torch._C._pop_torch_dispatch_stack(None),
)
"""The stack of dispatch modes, which see operators. PyTorch keeps its own modes at the bottom."""
