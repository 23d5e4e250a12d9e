"""Heaps: programs with a few thousand tensors among millions of other objects."""

from __future__ import annotations

import gc
from typing import Any

import torch
from torch import nn

__all__ = ["Program"]


class _Sample:
    """A record as a data set holds them: five objects that the collector knows."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.words = [number]
        self.fields = {"spans": (number, [number])}


class _Slotted:
    """Three objects, and no dict."""

    __slots__ = ("links", "spans")

    def __init__(self, number: int) -> None:
        self.links = [number]
        self.spans = (number, [])  # type: ignore[var-annotated]


class Program:
    """A training program: model, optimizer, losses kept with their graphs, views, a cache, and a large data set.

    Args:
        objects: how many objects the collector shall know once the program stands.
    """

    def __init__(self, objects: int) -> None:
        self.model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(100)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3, momentum=0.9)
        self.history: list[dict[str, Any]] = []
        for number in range(100):
            self.history.append({"step": number, "loss": self.step()})
        self.views = [torch.zeros(16, 16)[2:] for _ in range(300)]
        self.cache = {number: torch.zeros(4, 4) for number in range(700)}
        self.samples: list[_Sample] = []
        self.rows: dict[int, dict[str, Any]] = {}
        self.slotted: list[_Slotted] = []
        self._fill(objects)
        for number in range(300):
            place = number * len(self.samples) // 300
            self.samples[place].fields["embedding"] = torch.zeros(8)  # type: ignore[assignment]
        gc.collect()

    def step(self) -> torch.Tensor:
        """A training step; the loss comes with its graph, as a program that forgets `.item()` keeps it."""
        hidden = self.model[:4](torch.ones(2, 8))
        loss: torch.Tensor = hidden.square().mean()
        self.optimizer.zero_grad()
        sum((parameter.sum() for parameter in self.model.parameters()), loss).backward(retain_graph=True)  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss

    def thousand(self) -> list[torch.Tensor]:
        """A thousand of the program's tensors, from everywhere; the list is the caller's alone."""
        embedded = [sample.fields["embedding"] for sample in self.samples if "embedding" in sample.fields]
        losses = [entry["loss"] for entry in self.history]
        return [*embedded, *losses, *self.model.parameters(), *self.views[:100], *self.cache.values()][:1000]

    def _fill(self, objects: int) -> None:
        gc.collect()
        for number in range((objects - len(gc.get_objects())) // _A_ROUND):
            self.samples.append(_Sample(number))
            self.rows[number] = {"row": [number], "span": (number, [number])}
            self.slotted.append(_Slotted(number))


_A_ROUND = 13
"""How many objects the collector knows of one sample, one row and one slotted object."""
