# cause: non-finite-gradient
# culprits: root
# kind: non-finite
# first: backward
# masked by: return torch.where(squared > 0, root, torch.zeros_like(root))
# Two equal points: the root of 0 has an infinite slope, and 0 times infinity is not a number.
import torch
from torch import nn


class Metric(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(3, 2)

    def forward(self, left, right):
        squared = (self.embed(left) - self.embed(right)).square().sum(-1)
        root = torch.sqrt(squared)  #: 1
        return torch.where(squared > 0, root, torch.zeros_like(root))  #: masked


def train(model, optimizer, pairs):
    for left, right in pairs:
        loss = model(left, right).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
model = Metric()
points = torch.randn(4, 3)
train(model, torch.optim.SGD(model.parameters(), lr=0.1), [(points, points[[0, 2, 1, 3]])])
