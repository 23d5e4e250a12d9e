# cause: empty-optimizer
# culprits: model
# kind: error
# mended 1: model[2].requires_grad_(True)
import torch
from torch import nn


def build():
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 1)).requires_grad_(False)
    params = [one for one in model.parameters() if one.requires_grad]
    return torch.optim.Adam(params)  #: 1


build()
