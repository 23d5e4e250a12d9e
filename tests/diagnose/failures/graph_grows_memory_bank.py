# cause: graph-grows
# culprits: self.bank
# also: contrast.bank[0]
# kind: check
# The features of all steps before are compared with, and were never detached.
import torch
from torch import nn

import byname

FOUND = []


class Contrast:
    def __init__(self, encoder):
        self.encoder = encoder
        self.bank = []

    def loss(self, x):
        feature = torch.tanh(self.encoder(x)).mean(0)
        self.bank.append(feature)
        bank = torch.stack(self.bank)  #: 1
        return (bank - feature).square().sum() - feature.square().sum()


def train(contrast, optimizer, batches):
    for x in batches:
        loss = contrast.loss(x)
        FOUND[:] = byname.check(loss, model=contrast.encoder, optimizer=optimizer)
        optimizer.zero_grad()
        loss.backward(retain_graph=True)
        optimizer.step()


torch.manual_seed(0)
encoder = nn.Linear(3, 2)
train(Contrast(encoder), torch.optim.SGD(encoder.parameters(), lr=0.01), torch.randn(5, 4, 3))
