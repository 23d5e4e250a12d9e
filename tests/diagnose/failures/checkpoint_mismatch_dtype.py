# cause: checkpoint-mismatch
# culprits: wide
# kind: error
# mended 1: wide = x.to(torch.float32) * self.gain
# A precision that is switched between forward and backward.
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


class Precise(nn.Module):
    def __init__(self):
        super().__init__()
        self.gain = nn.Parameter(torch.ones(4))
        self.precision = torch.float64

    def forward(self, x):
        wide = x.to(self.precision) * self.gain  #: 1
        return wide.float()


def train(model, head, x):
    output = checkpoint(model, x, use_reentrant=False)
    loss = head(output).mean()
    model.precision = torch.float32
    loss.backward()  #: 2


torch.manual_seed(0)
train(Precise(), nn.Linear(4, 1), torch.randn(2, 4))
