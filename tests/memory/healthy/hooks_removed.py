"""Hooks that close over a tensor, put on at every step and taken off at its end."""

from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def activations(model):
    seen = {}
    handles = [
        layer.register_forward_hook(lambda module, args, output, name=name: seen.update({name: output}))
        for name, layer in model.named_children()
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


model = nn.Sequential(nn.Linear(31, 47), nn.GELU(), nn.Linear(47, 2))


def step(i):
    with activations(model) as seen:
        model(torch.randn(10, 31)).sum().backward()
    assert len(seen) == 3
    model.zero_grad()
