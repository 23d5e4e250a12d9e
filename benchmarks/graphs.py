"""Graphs: the graphs and training steps on which byname is measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

__all__ = ["Built", "attention", "chain", "encoder", "residual", "rnn", "tiny_step", "transformer_step"]


class Built(NamedTuple):
    """A loss with a fresh graph behind it, and what a program would hold of it: the model, or the weights."""

    loss: torch.Tensor
    holds: Any


def chain(length: int = 20_000) -> Built:
    """Tiny operations one after another. (A longer graph, once walked without care, cannot be freed.)"""
    start = torch.ones(1, requires_grad=True)
    here = start
    for _ in range(length):
        here = here.sin()
    return Built(here, start)


def rnn(steps: int = 3_000) -> Built:
    """An unrolled recurrent net that uses the same weights at every step, with a term of the loss at each."""
    weights = {name: torch.full((4, 4), 0.1, requires_grad=True) for name in ("inner", "outer")}
    x, h, total = torch.ones(1, 4), torch.zeros(1, 4), torch.zeros(())
    for _ in range(steps):
        h = torch.tanh(x @ weights["inner"] + h @ weights["outer"])
        total = total + h.sum()
    return Built(total, weights)


def residual(steps: int = 2_000) -> Built:
    """The same block added to its own input over and over."""
    block = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
    y = torch.ones(1, 4)
    for _ in range(steps):
        y = y + block(y)
    return Built(y.sum(), block)


def encoder(layers: int = 12) -> Built:
    """A transformer encoder as PyTorch ships it."""
    model = _encoder(layers, width=32)
    return Built(model(torch.ones(2, 4, 32)).sum(), model)


def attention() -> nn.Module:
    """An attention model of the size of a demo: 30 parameters."""
    return _Language(layers=2, width=32, length=16)


def transformer_step(width: int = 128, sequences: int = 12) -> Callable[[], None]:
    """A training step of a small transformer under AdamW: some tens of milliseconds, unless it is made wider."""
    model = _Language(layers=4, width=width, length=48)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5)
    tokens = torch.randint(_VOCABULARY, (sequences, 48))
    entropy = nn.CrossEntropyLoss()

    def step() -> None:
        optimizer.zero_grad()
        loss = entropy(model(tokens).flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.step()

    return step


def tiny_step(blocks: int = 41) -> Callable[[], None]:
    """A training step that is nothing but overhead: 205 operations on 4 by 4 matrices, their backward, and SGD."""
    weight = torch.eye(4).mul_(0.9).requires_grad_()
    bias = torch.zeros(4, requires_grad=True)
    optimizer = torch.optim.SGD([weight, bias], lr=1e-6)
    x = torch.ones(4, 4)

    def step() -> None:
        optimizer.zero_grad()
        h = x
        for _ in range(blocks):
            h = (h @ weight + bias).tanh() * 0.5 - x
        h.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


_VOCABULARY = 64


class _Language(nn.Module):
    """Embedding, positions, transformer blocks, norm and head."""

    def __init__(self, layers: int, width: int, length: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(_VOCABULARY, width)
        self.positions = nn.Parameter(torch.zeros(length, width))
        self.blocks = _encoder(layers, width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, _VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        hidden = self.blocks(self.embedding(tokens) + self.positions)
        logits: torch.Tensor = self.head(self.norm(hidden))
        return logits


def _encoder(layers: int, width: int) -> nn.TransformerEncoder:
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
    return nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
