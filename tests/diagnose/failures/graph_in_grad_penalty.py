# cause: graph-in-grad
# culprits: model[0].weight, model[0].bias, model[2].weight, model[2].bias
# kind: check
# The first check finds nothing; the later ones find what the backward of the step before left.
import torch
from torch import nn

import byname

FOUND = []


def train(model, optimizer, batches):
    for x in batches:
        loss = model(x).square().mean()
        FOUND[:] = byname.check(loss, model=model, optimizer=optimizer)
        optimizer.zero_grad()
        loss.backward(create_graph=True)  #: 1
        flatness = sum(parameter.grad.square().sum() for parameter in model.parameters())
        optimizer.step()
    return flatness.item()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
train(model, torch.optim.SGD(model.parameters(), lr=0.01), torch.randn(3, 2, 3))
