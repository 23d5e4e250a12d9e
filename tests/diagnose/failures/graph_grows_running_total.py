# cause: graph-grows
# culprits: total
# kind: check
import torch
import torch.nn.functional as F
from torch import nn

import byname

FOUND = []


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    total = 0.0
    for x, y in batches:
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        total += loss  #: 1
        FOUND[:] = byname.check(total)
    return total / len(batches)


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
average = train(model, [(torch.randn(2, 3), torch.randn(2, 1)) for _ in range(5)])
