"""Plugs: what joins byname to other tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from byname.plug.sending import ExperimentTracker, live, mlflow, send, tensorboard, trackio, wandb

__all__ = ["ExperimentTracker", "live", "mlflow", "send", "tensorboard", "trackio", "wandb"]


def __getattr__(name: str) -> Any:
    """Import what is asked for; the plugin of pytest is in this folder, too, and comes without PyTorch."""
    from importlib import import_module

    if name not in __all__:
        raise AttributeError(f"module 'byname.plug' has no attribute {name!r}")
    return getattr(import_module("byname.plug.sending"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
