"""Batches come from a generator that is suspended between the steps, with the last batch among its variables."""

import torch
from torch import nn


def batches(size):
    offset = torch.zeros(size, 21)
    while True:
        batch = torch.randn(size, 21) + offset
        yield batch


source = batches(19)
model = nn.Linear(21, 2)


def step(i):
    model(next(source)).sum().backward()
    model.zero_grad(set_to_none=False)


model(next(source)).sum().backward()
