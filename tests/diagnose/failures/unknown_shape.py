# cause: unknown
# culprits:
# kind: error
import torch
from torch import nn


class Mismatched(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 6)
        self.head = nn.Linear(5, 1)

    def forward(self, x):
        hidden = torch.relu(self.body(x))
        return self.head(hidden)  #: 1


def train(model, x):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loss = model(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


torch.manual_seed(0)
train(Mismatched(), torch.randn(2, 4))
