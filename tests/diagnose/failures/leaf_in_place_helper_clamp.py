# cause: leaf-in-place
# culprits: weight
# also: model.layers[0].weight
# kind: error
# mended 1: F.relu_(weight.data)
import torch
from helpers.constraints import keep_positive
from torch import nn


class Monotone(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(2, 4), nn.Linear(4, 1)])

    def forward(self, x):
        first, second = self.layers
        return second(torch.tanh(first(x)))


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(3, 2)).mean().backward()
        optimizer.step()
        keep_positive(layer.weight for layer in model.layers)


torch.manual_seed(0)
model = Monotone()
train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=1)
