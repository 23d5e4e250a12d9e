# warm: 4
# steps: 8
"""Gradients of four batches are summed; they are set to None only at every fourth step."""

import torch
from torch import nn

model = nn.Sequential(nn.Linear(36, 52), nn.ReLU(), nn.Linear(52, 1))
optimizer = torch.optim.Adam(model.parameters())
pending = []


def step(i):
    loss = model(torch.randn(7, 36)).square().mean() / 4
    loss.backward()
    pending.append(loss.detach())
    if i % 4 == 3:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        pending.clear()
