# cause: graph-in-grad
# name: unnamed (float32 95×32)
# count: 24
# bytes: 8 * (95 * 32 * 4 + 95 * 32 * 4 + 4)
# mended 1: torch.autograd.grad((w * w).sum(), w, create_graph=True)
# The gradient's graph leads to the parameter, and the parameter holds the gradient: not even the garbage collector
# frees it. Each step leaves a parameter, its gradient, and the number that the backward began with.
import torch


def step(i):
    w = torch.randn(95, 32, requires_grad=True)
    (w * w).sum().backward(create_graph=True)  #: 1
