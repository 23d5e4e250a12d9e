"""Differentially private training: per-sample gradients by vmap and grad, clipped, noised and put into .grad."""

import torch
from torch import nn
from torch.func import functional_call, grad, vmap

torch.manual_seed(63)
model = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)


def loss_of_one(parameters, x, y):
    logits = functional_call(model, parameters, (x.unsqueeze(0),))
    return nn.functional.cross_entropy(logits, y.unsqueeze(0))


def private_gradients(x, y, clip=1.0, noise=0.1):
    parameters = {name: p.detach() for name, p in model.named_parameters()}
    each = vmap(grad(loss_of_one), in_dims=(None, 0, 0))(parameters, x, y)
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
    factor = (clip / (norms + 1e-6)).clamp(max=1.0)
    for name, g in each.items():
        g = torch.einsum("b,b...->...", factor, g)
        yield name, (g + noise * clip * torch.randn_like(g)) / len(x)


for _ in range(3):
    x, y = torch.randn(8, 3), torch.randint(2, (8,))
    optimizer.zero_grad()
    for name, gradient in private_gradients(x, y):
        model.get_parameter(name).grad = gradient
    optimizer.step()

FINAL = list(model.parameters())
