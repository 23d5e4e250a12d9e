# cause: gradient-shape
# culprits: Pool.backward
# kind: error
# mended 1: return gradient.unsqueeze(1).expand(ctx.shape)
import torch
from torch import nn


class Pool(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.shape = x.shape
        return x.sum(1)

    @staticmethod
    def backward(ctx, gradient):
        return gradient  #: 1


def train(model, optimizer, batches):
    for x in batches:
        optimizer.zero_grad()
        loss = Pool.apply(model(x)).square().mean()
        loss.backward()  #: 2
        optimizer.step()


torch.manual_seed(0)
model = nn.Linear(3, 5)
train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(2, 4, 3))
