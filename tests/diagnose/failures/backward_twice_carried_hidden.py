# cause: backward-twice
# culprits: self.hidden
# kind: error
# mended 1: self.hidden = torch.tanh(self.inp(x) + self.rec(self.hidden.detach()))
import torch
from torch import nn


class Cell(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.inp = nn.Linear(3, size)
        self.rec = nn.Linear(size, size)
        self.out = nn.Linear(size, 1)
        self.hidden = torch.zeros(1, size)

    def forward(self, x):
        self.hidden = torch.tanh(self.inp(x) + self.rec(self.hidden))  #: 1
        return self.out(self.hidden)


def train(cell, steps=3):
    optimizer = torch.optim.SGD(cell.parameters(), lr=0.01)
    for _ in range(steps):
        prediction = cell(torch.randn(1, 3))
        loss = (prediction - 1).square().mean()
        optimizer.zero_grad()
        loss.backward()  #: 2 3
        optimizer.step()


torch.manual_seed(0)
train(Cell(6))
