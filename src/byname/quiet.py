"""How does byname look at a program without disturbing it? Two contexts, under which tensors and nodes are read."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["collection_paused", "untouched"]

untouched = torch._C.DisableTorchFunction
"""Context under which reading a tensor calls neither its class's ``__torch_function__`` nor an active mode's."""


@contextmanager
def collection_paused() -> Iterator[None]:
    """Keeps the garbage collector from running over and over because of the many objects that a look makes at once.

    On a graph of 100,000 nodes the collector would take ten times as long as the look itself.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
