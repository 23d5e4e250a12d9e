"""The loss function as a whole is compiled: its graph is one node."""

import torch
from torch import nn

torch.manual_seed(16)

model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)


@torch.compile(backend="aot_eager")
def loss_of(x, y):
    error = model(x) - y
    return (error**2).mean() + 1e-3 * sum(p.square().sum() for p in model.parameters())


losses = []
for _ in range(4):
    x = torch.randn(6, 4)
    loss = loss_of(x, x.sum(1, keepdim=True))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    losses.append(loss.item())

FINAL = [*model.parameters(), torch.tensor(losses)]
