# cause: orphaned-parameter
# culprits: before.weight
# kind: check
# The old layer lives on as `before`; the new one is a copy in the model (not-in-optimizer: model.layers[1].weight).
import copy

import torch
from torch import nn

import byname

FOUND = []


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3, 3, bias=False) for _ in range(2))

    def forward(self, x):
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return x


def train(model, optimizer, batches):
    for x in batches:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        FOUND[:] = byname.check(loss, model=model, optimizer=optimizer)
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
model = Stack()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
before = model.layers[1]
model.layers[1] = copy.deepcopy(before)
train(model, optimizer, torch.randn(2, 4, 3))
