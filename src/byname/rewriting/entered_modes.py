"""In which modes does a forward run its statements? ``no_grad`` goes into the graph, others cannot."""

from __future__ import annotations

import sys
from typing import Any

import torch

from byname.rewriting.outside import autocast_state
from byname.rewriting.proxies import Untraceable

__all__ = ["check_modes", "is_leaving", "restored", "state_of_modes", "switched"]


def is_leaving() -> bool:
    """Whether the recording of gradients is being switched by the end of a ``with`` block, and not by its beginning."""
    frame: Any = sys._getframe(1)
    while frame is not None:
        name, file = frame.f_code.co_name, str(frame.f_code.co_filename)
        if file.endswith("grad_mode.py") and name in ("__enter__", "__exit__"):
            return bool(name == "__exit__")
        frame = frame.f_back if file.startswith((_TORCH, _HERE)) else None
    return False


_TORCH = str(torch.__file__).rpartition("__init__")[0]
_HERE = __file__.rpartition("entered_modes.py")[0]


def switched(enabled: bool) -> bool:
    """Switches the recording of gradients on or off and gives what it was."""
    was = torch.is_grad_enabled()
    torch._C._set_grad_enabled(enabled)
    return was


def restored(enabled: bool) -> None:
    """Switches the recording of gradients back."""
    torch._C._set_grad_enabled(enabled)


def state_of_modes() -> tuple[Any, ...]:
    """The modes that would be lost in a graph."""
    return (
        torch.is_inference_mode_enabled(),
        autocast_state(),
        torch._C._autograd._saved_tensors_hooks_is_enabled(),  # type: ignore[attr-defined]
        torch._C._autograd._top_saved_tensors_default_hooks(True) is not None,
    )


def check_modes(state: tuple[Any, ...]) -> None:
    """Refuses a statement that runs in another mode than the forward began in."""
    now = state_of_modes()
    for was, is_now, what in zip(state, now, _MODES, strict=True):
        if was != is_now:
            raise Untraceable(f"runs under {what}, which a graph does not keep")


_MODES = (
    "inference mode",
    "autocast",
    "hooks of saved tensors",
    "hooks of saved tensors, such as a checkpoint's",
)
