# cause: leaf-in-place
# culprits: grid
# also: self.bias
# kind: error
# mended 1: grid = grid * 2
# `grid` is a view of the leaf `self.bias`.
import torch
from torch import nn


class Tile(nn.Module):
    def __init__(self):
        super().__init__()
        self.bias = nn.Parameter(torch.randn(4))

    def forward(self, x):
        grid = self.bias.view(2, 2)
        grid.mul_(2)  #: 1
        return x + grid


def fit(tile, targets):
    optimizer = torch.optim.SGD(tile.parameters(), lr=0.1)
    for target in targets:
        optimizer.zero_grad()
        loss = (tile(torch.zeros(2, 2)) - target).square().mean()
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
fit(Tile(), torch.randn(2, 2, 2))
