# cause: modified-in-place
# culprits: table
# kind: error
# mended 1: table = torch.cat([table[:, :t], table[:, t - 1 : t] * self.decay, table[:, t + 1 :]], dim=1)
# Each column is computed from the one before, which is saved as a view of the table that the same line changes.
import torch
from torch import nn


class Recurrence(nn.Module):
    def __init__(self, length):
        super().__init__()
        self.length = length
        self.decay = nn.Parameter(torch.tensor(0.9))

    def forward(self, start):
        table = torch.zeros(len(start), self.length)
        table[:, 0] = start
        for t in range(1, self.length):
            table[:, t] = table[:, t - 1] * self.decay  #: 1 2
        return table


def fit(model, start, target):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        loss = (model(start) - target).square().mean()
        loss.backward()  #: 3
        optimizer.step()


torch.manual_seed(0)
fit(Recurrence(4), torch.rand(3), torch.rand(3, 4))
