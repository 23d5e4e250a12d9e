# cause: no-derivative
# culprits:
# kind: error
# mended 1: weights = torch.special.zeta(exponent.detach(), ranks)
import torch
from torch import nn

exponent = nn.Parameter(torch.tensor(2.0))
ranks = torch.arange(1.0, 9.0)
scale = nn.Parameter(torch.ones(8))
weights = torch.special.zeta(exponent, ranks)  #: 1
loss = (weights * scale).square().mean()
loss.backward()  #: 2
