# cause: free-leaf
# culprits: temperatures[0], temperatures[1]
# kind: check
# Made together in one line by a helper in another file, kept in a list.
import torch
import torch.nn.functional as F
from helpers.temperatures import make_temperatures
from torch import nn

import byname

FOUND = []


def step(heads, temperatures, optimizer, x, y):
    losses = [F.cross_entropy(head(x) / scale, y) for head, scale in zip(heads, temperatures, strict=True)]
    loss = sum(losses)
    FOUND.extend(byname.check(loss, model=heads, optimizer=optimizer))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


torch.manual_seed(0)
heads = nn.ModuleList([nn.Linear(3, 2), nn.Linear(3, 2)])
temperatures = make_temperatures(len(heads))
optimizer = torch.optim.SGD(heads.parameters(), lr=0.1)
step(heads, temperatures, optimizer, torch.randn(4, 3), torch.tensor([0, 1, 1, 0]))
