# cause: numpy-of-graph
# culprits: self.scale
# kind: error
# mended 2: return np.asarray(self.scale.detach()) * 2
import numpy as np
import torch
from torch import nn


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))  #: 1

    def doubled(self):
        return np.asarray(self.scale) * 2  #: 2


Scaled().doubled()
