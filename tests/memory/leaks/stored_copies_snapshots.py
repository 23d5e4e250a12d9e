# cause: stored-copies
# name: callback.snapshots[*][0].weight
# count: 8
# bytes: 8 * (31 * 43 * 4)
# cause: stored-copies
# name: callback.snapshots[*][0].bias
# count: 8
# bytes: 8 * (31 * 4)
# mended 1: self.snapshots = [copy.deepcopy(model)]
# Whole models are copied. Their names are written as the program reaches them: the first module of a Sequential.
import copy

from torch import nn


class Snapshots:
    def __init__(self):
        self.snapshots = []

    def on_epoch_end(self, model):
        self.snapshots.append(copy.deepcopy(model))  #: 1


class Loop:
    def __init__(self, model, *callbacks):
        self.model, self.callbacks = model, callbacks

    def epoch(self):
        for callback in self.callbacks:
            callback.on_epoch_end(self.model)


callback = Snapshots()
loop = Loop(nn.Sequential(nn.Linear(43, 31), nn.ReLU()), callback)


def step(i):
    loop.epoch()
