# cause: stored-graph
# name: history['train'][*]
# count: 8
# bytes: 8 * (16 * 4 * 4)
# mended 1: history["train"].append(loss.item())
# The backward has freed what the graph had saved: of each loss only its own storage and the bare nodes are left.
# That storage is larger than the one number: PyTorch reduces the squared errors in place, in what they took.
from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import nn

model = nn.Sequential(nn.Linear(64, 32), nn.Tanh(), nn.Linear(32, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
history = defaultdict(list)


def step(i):
    loss = F.mse_loss(model(torch.randn(16, 64)), torch.randn(16, 4))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    history["train"].append(loss)  #: 1
