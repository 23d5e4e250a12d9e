"""A gradient penalty: a graph of the gradient, but never in `.grad` of a parameter."""

import torch
from torch import nn

critic = nn.Sequential(nn.Linear(22, 41), nn.Tanh(), nn.Linear(41, 1))
optimizer = torch.optim.Adam(critic.parameters())


def penalty(x):
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(critic(x).sum(), x, create_graph=True)
    return (gradient.norm(dim=1) - 1).square().mean()


def step(i):
    optimizer.zero_grad()
    (critic(torch.randn(13, 22)).mean() + penalty(torch.randn(13, 22))).backward()
    optimizer.step()
