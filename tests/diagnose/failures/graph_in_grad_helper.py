# cause: graph-in-grad
# culprits: model.weight
# kind: check
import torch
from helpers.second_order import curvature
from torch import nn

import byname

FOUND = []


class Monitor:
    def __init__(self, model, optimizer):
        self.model = model
        self.optimizer = optimizer
        self.curvatures = []

    def step(self, x):
        model = self.model
        loss = torch.cosh(model(x)).mean()
        FOUND.extend(byname.check(loss, model=model, optimizer=self.optimizer))
        self.optimizer.zero_grad()
        self.curvatures.append(curvature(loss, model.weight))
        self.optimizer.step()


torch.manual_seed(0)
model = nn.Linear(3, 1, bias=False)
monitor = Monitor(model, torch.optim.Adam(model.parameters()))
for _ in range(2):
    monitor.step(torch.randn(4, 3))
