# cause: wrong-device
# culprits: hidden
# culprits: model.positions
# kind: error
# mended 2: return hidden + self.positions.to("meta")
import torch
from torch import nn


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.positions = torch.arange(4.0)

    def forward(self, x):
        hidden = self.layer(x)  #: 1
        return hidden + self.positions  #: 2


model = Encoder().to("meta")
model(torch.randn(2, 4, device="meta")).sum().backward()
