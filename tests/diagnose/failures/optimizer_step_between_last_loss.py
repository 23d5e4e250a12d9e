# cause: optimizer-step-between
# culprits: self.scale
# kind: error
# mended 2: pass
# The loss of the step before is kept and trained on again.
import torch
from torch import nn


class Smoothed(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.full((3,), 0.5))
        self.last = None

    def loss(self, x):
        error = (x * self.scale.square() - 1).abs()  #: 1
        return error.mean()

    def smooth(self, x):
        loss = self.loss(x)
        smoothed = loss if self.last is None else loss + 0.5 * self.last
        self.last = loss
        return smoothed


def train(model, optimizer, steps):
    for _ in range(steps):
        optimizer.zero_grad()
        model.smooth(torch.rand(2, 3)).backward(retain_graph=True)  #: 3
        optimizer.step()  #: 2


torch.manual_seed(0)
model = Smoothed()
train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=2)
