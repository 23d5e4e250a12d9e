"""How else can a program list its tensors, and find out who holds them? Without byname, as people do it."""

from __future__ import annotations

import gc
import types
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.util import find_spec

import torch

__all__ = ["by_attribute", "by_class", "by_instance", "collected", "in_bytes", "referrers", "traced"]

Holders = Callable[[Sequence[torch.Tensor]], object]


def by_instance() -> list[torch.Tensor]:
    """The loop that everybody writes."""
    return [thing for thing in gc.get_objects() if isinstance(thing, torch.Tensor)]


def by_class() -> list[torch.Tensor]:
    """The cheapest look: no class is asked for its bases, and none of the heap's own code runs."""
    classes = {torch.Tensor, torch.nn.Parameter}
    return [thing for thing in gc.get_objects() if type(thing) in classes]


def in_bytes() -> int:
    """The same loop, and what the tensors take, each storage once: what a census without names has to do at least."""
    storages: dict[int, int] = {}
    for tensor in by_instance():
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage.nbytes()
    return sum(storages.values())


def by_attribute() -> list[torch.Tensor]:
    """The loop that also looks for tensors wrapped in something with ``data``, as torchlisttensors does."""
    found = []
    for thing in gc.get_objects():
        try:
            if torch.is_tensor(thing) or (hasattr(thing, "data") and torch.is_tensor(thing.data)):
                found.append(thing)
        except Exception:  # noqa: BLE001  whatever the attributes of any object in the heap may raise
            continue
    return found


def collected() -> Callable[[], object] | None:
    """How pytorch_memlab collects tensors, if it is installed."""
    if find_spec("pytorch_memlab") is None:
        return None
    reporter = import_module("pytorch_memlab.mem_reporter").MemReporter

    def collect() -> object:
        here = reporter()
        here.collect_tensor()
        return here.device_mapping

    return collect


def referrers(tensors: Sequence[torch.Tensor]) -> object:
    """The collector, asked for the holders of one tensor after another: one step up, and no names."""
    return [len(gc.get_referrers(tensor)) for tensor in tensors]


def traced() -> Holders | None:
    """How objgraph goes from a tensor up to a module, if it is installed."""
    if find_spec("objgraph") is None:
        return None
    chain = import_module("objgraph").find_backref_chain

    def trace(tensors: Sequence[torch.Tensor]) -> object:
        return [chain(tensor, _is_module, max_depth=20) for tensor in tensors]

    return trace


def _is_module(thing: object) -> bool:
    return type(thing) is types.ModuleType
