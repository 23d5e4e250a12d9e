# cause: empty-optimizer
# culprits: model
# kind: error
# mended 1: params = [*model.requires_grad_(True).parameters()]
import torch
from torch import nn


def build():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1)).requires_grad_(False)
    params = [one for one in model.parameters() if one.requires_grad]  #: 1
    return torch.optim.Adam(params)  #: 2


build()
