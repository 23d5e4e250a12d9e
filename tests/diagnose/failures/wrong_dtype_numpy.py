# cause: wrong-dtype
# culprits: features
# culprits: model[0].weight
# kind: error
# mended 2: return model(features.to(torch.float32)).mean()
import numpy as np
import torch
from torch import nn


def loss_of(model, features):
    return model(features).mean()  #: 2


model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
loss_of(model, torch.from_numpy(np.zeros((3, 4)))).backward()  #: 1
