# cause: checkpoint-mismatch
# culprits: hidden
# kind: error
# mended 1: hidden = hidden * 1
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        hidden = torch.tanh(self.linear(x))
        if self.calls % 2 == 1:
            hidden = hidden.exp()  #: 1
        return hidden


def train(block, batches):
    optimizer = torch.optim.SGD(block.parameters(), lr=0.1)
    for x in batches:
        optimizer.zero_grad()
        loss = checkpoint(block, x, use_reentrant=False).mean()
        loss.backward()  #: 2
        optimizer.step()


torch.manual_seed(0)
train(Block(), torch.randn(1, 2, 4))
