# cause: checkpoint-mismatch
# culprits: hidden
# kind: error
# mended 1: pass
# Python's own random numbers are not replayed as torch's are.
import random

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Network(nn.Module):
    def __init__(self, depth=3):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(depth))
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        hidden = x
        for layer in self.layers:
            if random.random() < 0.5:
                hidden = torch.sigmoid(layer(hidden))  #: 1
        return self.head(hidden).sum()


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step(self, x):
        self.optimizer.zero_grad()
        checkpoint(self.model, x, use_reentrant=False).backward()  #: 2
        self.optimizer.step()


torch.manual_seed(0)
random.seed(9)
Trainer(Network()).step(torch.randn(2, 4))
