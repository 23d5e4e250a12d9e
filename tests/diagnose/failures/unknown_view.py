# cause: unknown
# culprits:
# kind: error
import torch
from torch import nn


def classify(features, head):
    flat = features.view(5, 4)  #: 1
    return head(flat)


classify(nn.Linear(4, 4)(torch.randn(3, 4)), nn.Linear(4, 2)).sum().backward()
