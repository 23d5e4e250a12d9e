# cause: graph-grows
# culprits: self.hidden
# kind: check
# `retain_graph=True` silenced the error of a second backward; every step now reaches back to the first.
import torch
from torch import nn

import byname

FOUND = []


class Leaky(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inp = nn.Linear(3, width)
        self.out = nn.Linear(width, 1)
        self.hidden = torch.zeros(1, width)

    def forward(self, x):
        self.hidden = 0.9 * self.hidden + torch.tanh(self.inp(x))  #: 1
        return self.out(self.hidden)


def train(model, optimizer, steps):
    for _ in range(steps):
        loss = model(torch.randn(1, 3)).square().mean()
        FOUND[:] = byname.check(loss, model=model, optimizer=optimizer)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()


torch.manual_seed(0)
model = Leaky(4)
train(model, torch.optim.SGD(model.parameters(), lr=0.01), steps=5)
