# cause: backward-twice
# culprits: self.table
# kind: error
# mended 1: self.table = torch.sin(self.positions * self.frequency).detach()
# The first forward fills a cache that the second one uses again.
import torch
from helpers.trainer import Trainer
from torch import nn


class Positions(nn.Module):
    def __init__(self, length, width):
        super().__init__()
        self.frequency = nn.Parameter(torch.rand(width))
        self.register_buffer("positions", torch.arange(length).float().unsqueeze(1))
        self.table = None

    def forward(self, x):
        if self.table is None:
            self.table = torch.sin(self.positions * self.frequency)  #: 1
        return x + self.table


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = Positions(5, 4)
        self.head = nn.Linear(4, 1)

    def forward(self, x):
        return self.head(self.embed(x)).mean()


torch.manual_seed(0)
model = Model()
trainer = Trainer(model, torch.optim.SGD(model.parameters(), lr=0.1))
for _ in range(2):
    trainer.step(torch.randn(2, 5, 4))
