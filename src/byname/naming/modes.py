"""How does a function mode get off the stack, and back on, while others are entered and left?"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

__all__ = ["is_on_stack", "put_back", "remove_mode", "take_off"]


def remove_mode(mode: TorchFunctionMode) -> None:
    """Takes a mode off this thread's stack, wherever it stands; a mode on another thread's stack cannot be reached."""
    if is_on_stack(mode):
        take_off([mode])


def is_on_stack(mode: TorchFunctionMode) -> bool:
    """Whether a mode is on this thread's stack; PyTorch takes it off while the mode handles a call."""
    depth = torch._C._len_torch_function_stack()
    return any(torch._C._get_function_stack_at(level) is mode for level in range(depth))


def take_off(modes: Collection[Any]) -> list[Any]:
    """Takes these modes off this thread's stack; the stack as it was, for `put_back`."""
    before = _emptied()
    _push(mode for mode in before if not _among(mode, modes))
    return before


def put_back(modes: Collection[Any], before: list[Any]) -> None:
    """Puts modes back where they stood; below the others, where these have changed since.

    Args:
        modes: those of the modes taken off that are still wanted.
        before: the stack as it was, of which everything but our modes has stayed.
    """
    now = _emptied()
    wanted = [mode for mode in before if _among(mode, modes) or _among(mode, now)]
    unchanged = [mode for mode in wanted if not _among(mode, modes)]
    same = len(unchanged) == len(now) and all(one is other for one, other in zip(unchanged, now, strict=True))
    _push(wanted if same else [*(mode for mode in before if _among(mode, modes)), *now])


def _among(mode: Any, modes: Collection[Any]) -> bool:
    return any(one is mode for one in modes)


def _emptied() -> list[Any]:
    depth = torch._C._len_torch_function_stack()
    return [torch._C._pop_torch_function_stack() for _ in range(depth)][::-1]


def _push(modes: Any) -> None:
    for mode in modes:
        torch._C._push_on_torch_function_stack(mode)
