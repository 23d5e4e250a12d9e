"""Gradients of several micro batches add up before one step of the optimizer."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(5)
ACCUMULATE = 4


def loader():
    x = torch.randn(32, 5)
    y = (x.sum(1) > 0).long()
    return DataLoader(TensorDataset(x, y), batch_size=2, shuffle=True)


model = nn.Sequential(nn.Linear(5, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 2))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
history = []

optimizer.zero_grad()
for index, (x, y) in enumerate(loader()):
    loss = F.cross_entropy(model(x), y) / ACCUMULATE
    loss.backward()
    history.append(loss.detach())
    if (index + 1) % ACCUMULATE == 0:
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

FINAL = [*model.parameters(), torch.stack(history)]
