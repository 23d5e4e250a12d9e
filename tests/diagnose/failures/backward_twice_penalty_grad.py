# cause: backward-twice
# culprits: penalty
# kind: error
# mended 2: inner = torch.autograd.grad(data_loss + penalty, parameters, retain_graph=True)
# The gradient of the inner loss is taken with torch.autograd.grad; the penalty is used again outside.
import torch
import torch.nn.functional as F
from torch import nn


def inner_and_outer(model, support, query, strength=0.1):
    parameters = list(model.parameters())
    penalty = torch.linalg.vector_norm(model.weight)  #: 1
    data_loss = F.mse_loss(model(support), torch.ones(4, 1))
    inner = torch.autograd.grad(data_loss + penalty, parameters)  #: 2
    adapted = [parameter - 0.1 * gradient for parameter, gradient in zip(parameters, inner, strict=True)]
    outer_loss = F.mse_loss(F.linear(query, *adapted), torch.ones(4, 1))
    total = outer_loss + strength * penalty
    return torch.autograd.grad(total, parameters)  #: 3


torch.manual_seed(0)
inner_and_outer(nn.Linear(3, 1), torch.randn(4, 3), torch.randn(4, 3))
