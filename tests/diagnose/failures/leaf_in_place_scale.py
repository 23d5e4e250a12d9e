# cause: leaf-in-place
# culprits: self.scale
# kind: error
# mended 1: pass
import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.scale = nn.Parameter(torch.zeros(width))

    def forward(self, x):
        self.scale += 1  #: 1
        return self.linear(x) * self.scale


def train(model, steps):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(2, 3)).mean().backward()
        optimizer.step()


torch.manual_seed(0)
train(Scaled(3), steps=2)
