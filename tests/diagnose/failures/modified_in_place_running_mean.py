# cause: modified-in-place
# culprits: self.mean
# kind: error
# mended 2: self.mean = x.mean(0)
# The tensor that is changed needs no gradient itself; the gain needs it for its own.
import torch
from torch import nn


class Centre(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(width))
        self.register_buffer("mean", torch.zeros(width))

    def forward(self, x):
        shift = self.mean * self.gain  #: 1
        self.mean.copy_(x.mean(0))  #: 2
        return x - shift


def train(model, optimizer, data):
    for x in data:
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()  #: 3
        optimizer.step()


torch.manual_seed(0)
model = nn.Sequential(Centre(3), nn.Linear(3, 2))
train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(2, 5, 3))
