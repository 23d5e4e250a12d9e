# cause: no-grad-path
# culprits: curve
# kind: error
# mended 1: curve = model(x).squeeze(-1)
# mended 2: curve.square().mean().backward()
# The helper turns the array back into a tensor: the cut is where the array was made.
import numpy as np
import torch
from torch import nn


def smoothness(curve):
    steps = np.diff(curve)
    return torch.from_numpy(steps).square().mean()


class Curve(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 4), nn.Tanh(), nn.Linear(4, 1))

    def forward(self, t):
        return self.net(t)


def train(model, x, steps=1):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        curve = model(x).squeeze(-1).detach().numpy()  #: 1
        smoothness(curve).backward()  #: 2
        optimizer.step()


torch.manual_seed(0)
train(Curve(), torch.linspace(0, 1, 6).unsqueeze(-1))
