# cause: detached-parameter
# culprits: model.layers[0].weight, model.layers[0].bias, model.layers[1].weight, model.layers[1].bias
# group: model.layers
# kind: check
import torch
from helpers.stages import first_stages
from torch import nn

import byname

FOUND = []


class Staged(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))

    def forward(self, x):
        features = first_stages(self.layers[:2], x)
        return self.layers[2](features)


def train(model, x, y):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = (model(x) - y).square().mean()
        FOUND[:] = byname.check(loss, model=model, optimizer=optimizer)
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
train(Staged(), torch.randn(2, 4), torch.randn(2, 4))
