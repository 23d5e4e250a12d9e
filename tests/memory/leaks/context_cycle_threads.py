# cause: context-cycle
# name: unnamed (float32 10×83)
# count: 16
# bytes: 16 * (10 * 83 * 4)
# collectable: yes
# mended 1: ctx.mark_non_differentiable()
# Two workers compute; the context keeps its outputs in a tuple, under a name that says nothing.
from concurrent.futures import ThreadPoolExecutor

import torch


class Shift(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, offset):
        shifted = x + offset
        ctx.stash = {"outputs": (shifted,)}  #: 1
        return shifted

    @staticmethod
    def backward(ctx, grad):
        return grad, None


weight = torch.randn(10, 83, requires_grad=True)
workers = ThreadPoolExecutor(max_workers=2)


def score(offset):
    return Shift.apply(weight, offset).sum().item()


def step(i):
    sum(workers.map(score, [i, i + 1]))


def stop():
    workers.shutdown()
