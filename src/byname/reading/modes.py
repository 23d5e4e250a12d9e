"""How does a mode of ours get off PyTorch's stacks, and back on, while others are entered and left?"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import torch

__all__ = ["DISPATCHES", "FUNCTIONS", "Stack"]


@dataclass(frozen=True, slots=True)
class Stack:
    """One of PyTorch's stacks of modes, as the running thread has it.

    Attributes:
        depth: how many modes are on it.
        at: the mode at a level, from the bottom.
        push: puts a mode on top.
        pop: takes the mode on top off, and returns it.
    """

    depth: Callable[[], int]
    at: Callable[[int], Any]
    push: Callable[[Any], None]
    pop: Callable[[], Any]

    def holds(self, mode: Any) -> bool:
        """Whether a mode is on this thread's stack; PyTorch takes it off while the mode handles a call."""
        return any(self.at(level) is mode for level in range(self.depth()))

    def remove(self, mode: Any) -> None:
        """Takes a mode off this thread's stack, wherever it stands; another thread's stack cannot be reached."""
        if self.holds(mode):
            self.take_off([mode])

    def put_in(self, mode: Any, level: int) -> None:
        """Puts a mode on this thread's stack at a level, below those that stand there and above."""
        now = self.modes()
        self._become([*now[:level], mode, *now[level:]])

    def take_off(self, modes: Collection[Any]) -> list[Any]:
        """Takes these modes off this thread's stack; the stack as it was, for `put_back`."""
        before = self.modes()
        self._become([mode for mode in before if not _among(mode, modes)])
        return before

    def put_back(self, modes: Collection[Any], before: list[Any]) -> None:
        """Puts modes back where they stood; below the others, where these have changed since.

        Args:
            modes: those of the modes taken off that are still wanted.
            before: the stack as it was, of which everything but our modes has stayed.
        """
        now = self.modes()
        wanted = [mode for mode in before if _among(mode, modes) or _among(mode, now)]
        unchanged = [mode for mode in wanted if not _among(mode, modes)]
        same = len(unchanged) == len(now) and all(one is other for one, other in zip(unchanged, now, strict=True))
        self._become(wanted if same else [*(mode for mode in before if _among(mode, modes)), *now])

    def modes(self) -> list[Any]:
        """The modes on this thread's stack, from the bottom."""
        return [self.at(level) for level in range(self.depth())]

    def _become(self, wanted: Sequence[Any]) -> None:
        """Makes the stack this one. No mode of the program's is lost where an interrupt comes meanwhile."""
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


def _pop_dispatch() -> Any:
    return torch._C._pop_torch_dispatch_stack(None)


FUNCTIONS = Stack(
    torch._C._len_torch_function_stack,
    torch._C._get_function_stack_at,
    torch._C._push_on_torch_function_stack,
    torch._C._pop_torch_function_stack,
)
"""The stack of those that see calls of PyTorch's functions."""

DISPATCHES = Stack(
    torch._C._len_torch_dispatch_stack,
    torch._C._get_dispatch_stack_at,
    torch._C._push_on_torch_dispatch_stack,
    _pop_dispatch,
)
"""The stack of those that see operators. PyTorch keeps its own modes at the bottom."""
