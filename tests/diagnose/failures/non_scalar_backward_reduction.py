# cause: non-scalar-backward
# culprits: loss
# kind: error
# mended 1: loss = nn.functional.mse_loss(model(x), x, reduction="mean")
import torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(3, 3)
x = torch.randn(4, 3)
loss = nn.functional.mse_loss(model(x), x, reduction="none")  #: 1
loss.backward()  #: 2
