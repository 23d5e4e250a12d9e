# cause: empty-optimizer
# culprits: model.layers
# kind: error
# mended 1: optimizer = torch.optim.SGD(nn.ModuleList(model.layers).parameters(), lr=0.1)
import torch
from torch import nn


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = [nn.Linear(3, 3) for _ in range(2)]


model = Stack()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)  #: 1
