# cause: wrong-device
# culprits: model[0].weight, model[0].bias
# culprits: x
# kind: error
# mended 1: return model(x.to("meta")).mean()
import torch
from torch import nn


def loss_of(model, x):
    return model(x).mean()  #: 1


def train(model, optimizer, batches):
    for x in batches:
        optimizer.zero_grad()
        loss_of(model, x).backward()
        optimizer.step()


model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1)).to("meta")
train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(3, 2, 4))
