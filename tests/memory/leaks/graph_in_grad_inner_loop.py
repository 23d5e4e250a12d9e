# cause: graph-in-grad
# name: unnamed (float32 36×48)
# count: 40
# bytes: 8 * (36 * 48 * 4 + 36 * 48 * 4 + 5 * 48 * 4 + 5 * 36 * 4 + 4)
# mended 1: gradients = torch.autograd.grad(loss, list(learner.parameters()), create_graph=True)
# An inner loop with a copy of the model for each task. Copies that are dropped stay: weight and gradient, the batch, the
# output (kept by exp), and the number that the backward began with.
import copy

import torch
from torch import nn


class Meta:
    def __init__(self, model):
        self.model = model

    def adapt(self, x):
        learner = copy.deepcopy(self.model)
        loss = learner(x).exp().sum()
        loss.backward(create_graph=True)  #: 1
        return loss.item()


meta = Meta(nn.Linear(48, 36, bias=False))


def step(i):
    meta.adapt(torch.randn(5, 48))
