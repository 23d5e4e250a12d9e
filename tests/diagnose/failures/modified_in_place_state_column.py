# cause: modified-in-place
# culprits: self.state
# kind: error
# mended 2: pass
import torch
from torch import nn


class Tracker(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(3, 4)
        self.head = nn.Linear(4, 1)
        self.state = None

    def forward(self, x):
        self.state = torch.sigmoid(self.cell(x))  #: 1
        self.state[:, 0] = 1.0  #: 2
        return self.head(self.state)


def train(model, optimizer, steps):
    for _ in range(steps):
        loss = model(torch.randn(5, 3)).square().mean()
        optimizer.zero_grad()
        loss.backward()  #: 3
        optimizer.step()


torch.manual_seed(0)
model = Tracker()
train(model, torch.optim.SGD(model.parameters(), lr=0.1), steps=2)
