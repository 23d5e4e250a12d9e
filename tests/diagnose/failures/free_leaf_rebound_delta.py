# cause: free-leaf
# culprits: delta
# kind: check
# The leaf is the first value of `delta`; the name is bound anew by the division, and the graph alone keeps the leaf.
import torch
from torch import nn

import byname

FOUND = []


class SimpleModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.l1 = nn.Linear(4, 1)

    def forward(self, x):
        return self.l1(x)


def train(model, optimizer, x, y):
    delta = torch.tensor([-1.4], requires_grad=True)  #: 1
    y_pred = model(x)
    delta = delta / y_pred  #: 2
    loss = (y_pred + delta - y).square().mean()
    FOUND.extend(byname.check(loss, model=model, optimizer=optimizer))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


torch.manual_seed(0)
model = SimpleModel()
train(model, torch.optim.SGD(model.parameters(), lr=0.01), torch.randn(3, 4), torch.randn(3, 1))
