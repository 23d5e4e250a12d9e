# cause: checkpoint-mismatch
# culprits: self.mask
# kind: error
# mended 1: self.mask = self.raw.detach()
# The mask is made in the first run and found in the cache in the second.
import torch
from helpers.blocks import run_blocks
from torch import nn


class Masked(nn.Module):
    def __init__(self):
        super().__init__()
        self.raw = nn.Parameter(torch.randn(4))
        self.linear = nn.Linear(4, 4)
        self.mask = None

    def forward(self, x):
        if self.mask is None:
            self.mask = torch.sigmoid(self.raw)  #: 1
        return torch.relu(self.linear(x) * self.mask)


def train(blocks, x):
    optimizer = torch.optim.SGD(blocks.parameters(), lr=0.1)
    optimizer.zero_grad()
    loss = run_blocks(blocks, x).mean()
    loss.backward()  #: 2
    optimizer.step()


torch.manual_seed(0)
train(nn.ModuleList([Masked()]), torch.randn(2, 4))
