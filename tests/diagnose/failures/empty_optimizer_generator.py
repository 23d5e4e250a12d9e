# cause: empty-optimizer
# culprits: params
# kind: error
# mended 1: params = list(nn.Linear(3, 3).parameters())
import torch
from torch import nn


def build():
    params = nn.Linear(3, 3).parameters()  #: 1
    print(sum(one.numel() for one in params))
    return torch.optim.Adam(params)  #: 2


build()
