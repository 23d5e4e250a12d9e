# cause: free-leaf
# culprits: model.offset
# kind: check
# `nn.Parameter` was forgotten: the attribute is trained by nobody and never set back to zero gradient.
import torch
from torch import nn

import byname

FOUND = []


class Shifted(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.offset = torch.zeros(width, requires_grad=True)  #: 1

    def forward(self, x):
        return torch.relu(self.linear(x)) + self.offset


def train(model, optimizer, batches):
    for x in batches:
        loss = model(x).square().mean()
        FOUND[:] = byname.check(loss, model=model, optimizer=optimizer)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
model = Shifted(3)
train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(3, 2, 3))
