# cause: leaf-in-place
# culprits: self.head.weight
# kind: error
# mended 1: self.head.weight.data.normal_(0, 0.02)
import torch
from torch import nn


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 8)
        self.head = nn.Linear(8, 2)
        self.reset()

    def reset(self):
        nn.init.zeros_(self.body.bias)
        self.head.weight.normal_(0, 0.02)  #: 1

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


torch.manual_seed(0)
model = Classifier()
loss = model(torch.randn(3, 4)).sum()
loss.backward()
