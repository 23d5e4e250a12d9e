# cause: context-cycle
# name: unnamed (float32 21×58)
# count: 16
# bytes: 8 * (21 * 46 * 4 + 21 * 58 * 4)
# collectable: yes
# mended 1: ctx.save_for_backward(y)
# mended 2: y = ctx.saved_tensors[0]
# An activation of the project's own. Losses are only looked at, so the cycle keeps what the layer has saved, too.
import torch
from torch import nn


class Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = torch.sigmoid(x)
        ctx.y = y  #: 1
        return y

    @staticmethod
    def backward(ctx, grad):
        y = ctx.y  #: 2
        return grad * y * (1 - y)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(46, 58)

    def forward(self, x):
        return Gate.apply(self.fc(x))


class Validator:
    def __init__(self, model):
        self.model, self.losses = model, []

    def validate(self, x):
        self.losses.append(self.model(x).mean().item())


validator = Validator(Model())


def step(i):
    validator.validate(torch.randn(21, 46))
