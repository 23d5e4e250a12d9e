# cause: not-in-optimizer
# culprits: model.encoder.weight, model.encoder.bias
# kind: check
# The optimizer was built from the head alone.
import torch
import torch.nn.functional as F
from torch import nn

import byname

FOUND = []


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 6)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(6, 2))

    def forward(self, x):
        return self.head(self.encoder(x))


def configure(model):
    return torch.optim.Adam(model.head.parameters(), lr=1e-3)


def epoch(model, batches):
    optimizer = configure(model)
    for x, y in batches:
        loss = F.cross_entropy(model(x), y)
        FOUND.extend(byname.check(loss, model=model, optimizer=optimizer))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
epoch(Classifier(), [(torch.randn(3, 4), torch.tensor([0, 1, 1]))])
