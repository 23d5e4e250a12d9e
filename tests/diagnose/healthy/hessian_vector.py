"""Newton-like steps: conjugate gradients on Hessian-vector products, two passes through one graph."""

import torch
from torch import nn

torch.manual_seed(14)


def flat(tensors):
    return torch.cat([t.reshape(-1) for t in tensors])


def hessian_vector_product(loss, parameters, vector, damping=0.1):
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    product = (flat(gradients) * vector).sum()
    return flat(torch.autograd.grad(product, parameters, retain_graph=True)).detach() + damping * vector


def conjugate_gradient(apply, b, steps=4):
    x = torch.zeros_like(b)
    r, p = b.clone(), b.clone()
    rr = r @ r
    for _ in range(steps):
        ap = apply(p)
        alpha = rr / (p @ ap)
        x += alpha * p
        r -= alpha * ap
        rr_new = r @ r
        p = r + (rr_new / rr) * p
        rr = rr_new
    return x


model = nn.Sequential(nn.Linear(3, 5), nn.Softplus(), nn.Linear(5, 1))
parameters = list(model.parameters())
x = torch.randn(20, 3)
y = x.prod(1, keepdim=True)
for _ in range(3):
    loss = nn.functional.mse_loss(model(x), y)
    gradient = flat(torch.autograd.grad(loss, parameters, retain_graph=True))
    direction = conjugate_gradient(lambda v: hessian_vector_product(loss, parameters, v), gradient)
    with torch.no_grad():
        nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(parameters) - 0.3 * direction, parameters)

FINAL = [*parameters, loss.detach(), direction]
