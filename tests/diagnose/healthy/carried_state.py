"""A state is carried through the backward calls of a line: detached each time, in windows, and over shared graphs."""

import torch
from torch import nn

torch.manual_seed(0)
cell, out = nn.GRUCell(3, 4), nn.Linear(4, 1)
optimizer = torch.optim.SGD([*cell.parameters(), *out.parameters()], 0.01)
for stream in torch.randn(2, 8, 2, 3):
    h = torch.zeros(2, 4)
    optimizer.zero_grad()
    for x in stream:
        h = cell(x, h.detach())
        out(h).square().mean().backward()
    optimizer.step()

shared = cell(torch.randn(2, 3))
optimizer.zero_grad()
for column in range(4):
    out(shared).square()[:, 0].mul(column + 1).sum().backward(retain_graph=True)
optimizer.step()

# Steps of an inner loop go through all those before them: that is the point.
weight = nn.Parameter(torch.ones(3))
outer = torch.optim.SGD([weight], 0.01)
for _ in range(3):
    fast = weight * 1
    for x in torch.randn(5, 3):
        (slope,) = torch.autograd.grad((fast * x).sum().square(), fast, create_graph=True)
        fast = fast - 0.1 * slope
    outer.zero_grad()
    fast.sum().square().backward()
    outer.step()

# A step by hand, in functions of its own; the parameters change in place.
model = nn.Linear(3, 1)


def step(parameters, rate):
    with torch.no_grad():
        for p in parameters:
            moved = p - rate * p.grad
            p.copy_(moved)


def averaged(values):
    mean = 0.0
    for value in values:
        mean = mean - 0.1 * (mean - value)
    return mean


losses = []
for _ in range(6):
    loss = model(torch.ones(2, 3)).square().mean()
    model.zero_grad()
    loss.backward()
    step(model.parameters(), 0.1)
    losses.append(loss.item())
averaged(losses)

FINAL = [*cell.parameters(), *out.parameters(), weight, *model.parameters()]
