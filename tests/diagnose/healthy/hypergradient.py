"""A learning rate that is itself learned: the loss after the step is differentiated with respect to it."""

import torch
import torch.nn.functional as F

torch.manual_seed(40)
log_lr = torch.tensor(-3.0, requires_grad=True)
meta_optimizer = torch.optim.SGD([log_lr], lr=0.1)
w = torch.zeros(3, 1, requires_grad=True)
truth = torch.tensor([[1.0], [2.0], [-1.0]])


def batch(size=16):
    x = torch.randn(size, 3)
    return x, x @ truth


for step in range(6):
    x, y = batch()
    loss = F.mse_loss(x @ w, y)
    (gradient,) = torch.autograd.grad(loss, w)
    stepped = w - log_lr.exp() * gradient
    x, y = batch()
    after = F.mse_loss(x @ stepped, y)
    meta_optimizer.zero_grad()
    after.backward(inputs=[log_lr])
    meta_optimizer.step()
    w = stepped.detach().requires_grad_(True)

FINAL = [w, log_lr, after.detach()]
