# cause: hook-closure
# name: mask (closure of Pruner.attach.<locals>.<lambda>, model.weight._backward_hooks[*])
# count: 8
# bytes: 8 * (90 * 45 * 4)
# mended 1: mask, handle = random_mask(parameter), parameter.register_hook(lambda grad: grad.clone()); handle.remove()
# Gradients are masked by a hook on the parameter; every step adds another.
import torch
from torch import nn


def random_mask(parameter):
    return (torch.rand_like(parameter) > 0.5).float()


class Pruner:
    def __init__(self, model):
        self.model = model

    def renew(self):
        for parameter in self.model.parameters():
            self.attach(parameter)

    def attach(self, parameter):
        mask = random_mask(parameter)
        parameter.register_hook(lambda grad: grad * mask)  #: 1


model = nn.Linear(90, 45, bias=False)
pruner = Pruner(model)


def step(i):
    pruner.renew()
    model.zero_grad()
    model(torch.randn(4, 90)).sum().backward()
