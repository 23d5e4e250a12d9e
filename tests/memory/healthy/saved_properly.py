"""A function of the project's own that keeps its output the right way, in which there is no cycle."""

import torch
from torch import nn


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.save_for_backward(y)
        ctx.shape = y.shape
        return y

    @staticmethod
    def backward(ctx, grad):
        (y,) = ctx.saved_tensors
        return (grad * y).view(ctx.shape)


model = nn.Linear(39, 23)
losses = []


def step(i):
    losses.append(Exp.apply(model(torch.randn(8, 39))).mean().item())
