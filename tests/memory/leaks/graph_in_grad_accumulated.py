# cause: graph-in-grad
# name: model.weight.grad
# count: 24
# bytes: 8 * (6 * 53 * 4 + 6 * 17 * 4 + 4)
# mended 1: loss.backward()
# The same parameter at every step, never cleared: each gradient is the sum of the last one and a new one, with the
# graphs of both: batch, output, and the number that the backward began with. All is local to the function that trains.
import torch
from torch import nn


def train(steps):
    model = nn.Linear(53, 17, bias=False)
    for _ in steps:
        loss = model(torch.randn(6, 53)).exp().sum()
        loss.backward(create_graph=True)  #: 1
