# cause: no-grad-path
# culprits: losses
# kind: error
# mended 1: losses = torch.stack([F.mse_loss(head(x), y) for head, y in zip(self.heads, targets, strict=True)])
import torch
import torch.nn.functional as F
from torch import nn


class MultiTask(nn.Module):
    def __init__(self, tasks):
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(3, 1) for _ in range(tasks))
        self.weights = [1.0, 0.5][:tasks]

    def loss(self, x, targets):
        losses = torch.tensor([F.mse_loss(head(x), y) for head, y in zip(self.heads, targets, strict=True)])  #: 1
        return (losses * torch.tensor(self.weights)).sum()


def train(model, optimizer, batches):
    for x, targets in batches:
        loss = model.loss(x, targets)
        optimizer.zero_grad()
        loss.backward()  #: 2
        optimizer.step()


torch.manual_seed(0)
model = MultiTask(2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
train(model, optimizer, [(torch.randn(4, 3), [torch.randn(4, 1), torch.randn(4, 1)])])
