# cause: modified-in-place
# culprits: mixed
# also: left
# kind: error
# mended 2: mixed = mixed / 2
# Of five changes in place only one is of a tensor that was saved, and after it was saved.
import torch
from torch import nn


class Mixer(nn.Module):
    def __init__(self):
        super().__init__()
        self.left = nn.Linear(3, 3)
        self.right = nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        self.seen += len(x)
        left = self.left(x)
        left += 1
        right = self.right(x)
        right.mul_(2)
        mixed = left.add_(right)
        energy = mixed * mixed  #: 1
        mixed.div_(2)  #: 2
        return energy.sub_(1).sum() + mixed.sum()


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches:
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()  #: 3
        optimizer.step()


torch.manual_seed(0)
train(Mixer(), torch.randn(2, 2, 3))
