# cause: no-grad-path
# culprits: value
# kind: error
# mended 1: value = F.mse_loss(self.model(x), y)
# mended 2: sum(self.collect(batches)).backward()
import torch
import torch.nn.functional as F
from torch import nn


class Learner:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def collect(self, batches):
        values = []
        for x, y in batches:
            value = F.mse_loss(self.model(x), y).item()  #: 1
            values.append(value)
        return values

    def step(self, batches):
        self.optimizer.zero_grad()
        torch.tensor(self.collect(batches)).mean().backward()  #: 2
        self.optimizer.step()


torch.manual_seed(0)
learner = Learner(nn.Linear(3, 1))
learner.step([(torch.randn(2, 3), torch.randn(2, 1)) for _ in range(2)])
