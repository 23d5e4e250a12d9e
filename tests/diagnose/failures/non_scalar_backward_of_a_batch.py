# cause: non-scalar-backward
# culprits: loss
# kind: error
# mended 2: loss.mean().backward()
import torch
import torch.nn.functional as F
from torch import nn


def train(model, optimizer, batches):
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y, reduction="none")  #: 1
        loss.backward()  #: 2
        optimizer.step()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train(model, optimizer, [(torch.randn(2, 3), torch.randn(2, 1))])
