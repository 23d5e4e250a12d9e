"""A graph is kept for a second backward, and both losses go out of scope at the end of the step."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(29, 37), nn.Sigmoid())
        self.first, self.second = nn.Linear(37, 2), nn.Linear(37, 4)

    def forward(self, x):
        features = self.trunk(x)
        return self.first(features), self.second(features)


model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def losses(x):
    first, second = model(x)
    return first.square().mean(), second.abs().mean()


def step(i):
    one, two = losses(torch.randn(11, 29))
    optimizer.zero_grad()
    one.backward(retain_graph=True)
    two.backward()
    optimizer.step()
