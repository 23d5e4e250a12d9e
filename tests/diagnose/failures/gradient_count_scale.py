# cause: gradient-count
# culprits: Scale.backward
# kind: error
# mended 1: return gradient * ctx.factor, None
import torch
from torch import nn


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.factor  #: 1


def train(model, optimizer, batches):
    for x in batches:
        optimizer.zero_grad()
        loss = Scale.apply(model(x), 0.5).mean()
        loss.backward()  #: 2
        optimizer.step()


torch.manual_seed(0)
model = nn.Linear(3, 1)
train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(2, 4, 3))
