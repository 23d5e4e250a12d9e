# cause: stored-graph
# name: Epoch.all[*].loss
# count: 8
# bytes: 8 * (19 * 57 * 4 + 19 * 8 * 4 + 4)
# mended 1: self.loss = loss.item()
# The list belongs to a class, and its entries have slots instead of a dictionary.
import torch
from torch import nn


class Epoch:
    __slots__ = ("number", "loss")
    all = []

    def __init__(self, number, loss):
        self.number = number
        self.loss = loss  #: 1
        Epoch.all.append(self)


class Validation:
    def __init__(self, model):
        self.model = model

    def __call__(self, number, x):
        return Epoch(number, self.model(x).square().sum()).number


validate = Validation(nn.Linear(57, 8))


def step(i):
    validate(i, torch.randn(19, 57))
