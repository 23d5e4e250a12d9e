# cause: retained-graph
# name: meter.total
# count: 16
# bytes: 8 * (30 * 66 * 4 + 30 * 8 * 4)
# mended 1: self.total = self.total + loss.item()
# A running total of validation losses: one tensor, and behind it the graphs of all of them. The sums save nothing.
import torch
from torch import nn


class Meter:
    def __init__(self):
        self.total, self.count = 0.0, 0

    def update(self, loss):
        self.total = self.total + loss  #: 1
        self.count += 1


model = nn.Linear(66, 8)
meter = Meter()


def step(i):
    meter.update(model(torch.randn(30, 66)).square().sum())
