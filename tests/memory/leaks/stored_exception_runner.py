# cause: stored-exception
# name: x (local of forward, kept by the traceback of runner.failures[*][*])
# count: 8
# bytes: 8 * (25 * 96 * 4)
# mended 1: self.failures.append((number, repr(error)))
# The module refuses a batch; the frames between hold the batch under several names: it counts once.
import torch
from torch import nn


class Strict(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 2)

    def forward(self, x):
        return self.fc(x)


class Runner:
    def __init__(self, model):
        self.model, self.failures = model, []

    def attempt(self, number, batch):
        try:
            with torch.no_grad():
                return self.model(batch)
        except RuntimeError as error:
            self.failures.append((number, error))  #: 1


runner = Runner(Strict())


def step(i):
    runner.attempt(i, torch.randn(25, 96))
