# cause: lru-cache
# name: Attention.relative_bias (cached result)
# count: 8
# bytes: 8 * (4 * 70 * 70 * 4)
# mended 1: @lru_cache(maxsize=1)
# A cached method, with the step among its arguments.
from functools import lru_cache

import torch
from torch import nn


class Attention(nn.Module):
    def __init__(self, heads=4):
        super().__init__()
        self.heads = heads
        self.slopes = nn.Parameter(torch.rand(heads, 1, 1))

    @lru_cache(maxsize=128)  #: 1
    def relative_bias(self, length, step):
        distance = torch.arange(length) - torch.arange(length)[:, None] + step
        return (distance * self.slopes).detach()

    def forward(self, scores, step):
        return scores + self.relative_bias(scores.shape[-1], step)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, x, step):
        return self.attention(x, step).softmax(-1)


model = Model()


def step(i):
    with torch.no_grad():
        model(torch.randn(1, 4, 70, 70), i)
