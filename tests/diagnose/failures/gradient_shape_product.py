# cause: gradient-shape
# culprits: Product.backward
# kind: error
# mended 1: return gradient @ right.T, left.T @ gradient
import torch
from torch import nn


class Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx, left, right):
        ctx.save_for_backward(left, right)
        return left @ right

    @staticmethod
    def backward(ctx, gradient):
        left, right = ctx.saved_tensors
        return gradient @ right.T, gradient.T @ left  #: 1


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.weight = nn.Linear(2, 3), nn.Parameter(torch.ones(3, 2))

    def forward(self, x):
        return Product.apply(self.layer(x), self.weight)


torch.manual_seed(0)
model = Model()
model(torch.randn(4, 2)).square().mean().backward()  #: 2
