"""Plugs: what joins byname to other tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from byname.plug.sending import live, send
    from byname.plug.trackers import ExperimentTracker, mlflow, tensorboard, trackio, wandb

__all__ = ["ExperimentTracker", "live", "mlflow", "send", "tensorboard", "trackio", "wandb"]

_SENDING = ("live", "send")


def __getattr__(name: str) -> Any:
    """Import what is asked for; the plugin of pytest is in this folder, too, and comes without PyTorch."""
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module 'byname.plug' has no attribute {name!r}")
    return getattr(import_module(f"byname.plug.{'sending' if name in _SENDING else 'trackers'}"), name)


def __dir__() -> list[str]:
    """Return the public names, loaded or not."""
    return sorted(__all__)
