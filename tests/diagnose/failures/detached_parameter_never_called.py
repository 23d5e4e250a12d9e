# cause: detached-parameter
# culprits: model.skip.weight, model.skip.bias
# group: model.skip
# kind: check
# No line cuts anything: the layer is made and never called.
import torch
from torch import nn

import byname

FOUND = []


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.main = nn.Sequential(nn.Linear(3, 5), nn.ReLU(), nn.Linear(5, 3))
        self.skip = nn.Linear(3, 3)

    def forward(self, x):
        return x + self.main(x)


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters())

    def step(self, x):
        model = self.model
        loss = model(x).abs().mean()
        FOUND.extend(byname.check(loss, model=model, optimizer=self.optimizer))
        loss.backward()
        self.optimizer.step()


torch.manual_seed(0)
Trainer(Residual()).step(torch.randn(2, 3))
