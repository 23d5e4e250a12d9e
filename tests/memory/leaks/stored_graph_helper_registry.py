# cause: stored-graph
# name: METRICS['loss'][*]
# count: 8
# bytes: 8 * (20 * 77 * 4 + 20 * 9 * 4 + 4)
# mended 1: METRICS.setdefault(name, []).append(value.item())
# The list is a global of a helper module, and the function that appends to it is called by a callback.
import torch
from helpers.registry import log_metric
from torch import nn


class Callback:
    def on_step(self, outputs):
        log_metric("loss", outputs["loss"])


class Loop:
    def __init__(self, model, callbacks):
        self.model, self.callbacks = model, callbacks

    def evaluate(self, x):
        outputs = {"loss": self.model(x).square().sum()}
        for callback in self.callbacks:
            callback.on_step(outputs)


loop = Loop(nn.Linear(77, 9), [Callback()])


def step(i):
    loop.evaluate(torch.randn(20, 77))
