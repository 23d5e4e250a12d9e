# cause: no-derivative
# culprits:
# kind: error
# mended 1: return torch.igamma(shape.detach(), x)
import torch
from torch import nn


class Gamma(nn.Module):
    def __init__(self):
        super().__init__()
        self.shape, self.rate = nn.Parameter(torch.tensor([2.0])), nn.Parameter(torch.tensor([1.0]))

    def forward(self, x):
        return self.probability(self.shape, x * self.rate)

    @staticmethod
    def probability(shape, x):
        return torch.igamma(shape, x)  #: 1


model = Gamma()
model(torch.tensor([0.5, 1.0, 2.0])).sum().backward()  #: 2
