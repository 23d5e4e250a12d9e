# cause: non-finite-gradient
# culprits: unit
# kind: non-finite
# first: forward
# A projection that starts at zero is divided by its norm: 0/0 already in the forward.
import torch
from helpers.directions import normalized
from torch import nn


class Projection(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 3)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(self, x):
        return normalized(self.linear(x))


torch.manual_seed(0)
model = Projection()
optimizer = torch.optim.Adam(model.parameters())
for x in torch.randn(1, 2, 4):
    similarity = model(x)[:, 0].mean()
    optimizer.zero_grad()
    similarity.backward()
