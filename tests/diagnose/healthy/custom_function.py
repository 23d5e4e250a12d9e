"""Functions with a backward of their own: one saves tensors, one reverses the gradient, one marks itself once differentiable."""

import torch
from torch import nn
from torch.autograd.function import once_differentiable

torch.manual_seed(35)


class Swish(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        gate = torch.sigmoid(x)
        ctx.save_for_backward(x, gate)
        return x * gate

    @staticmethod
    def backward(ctx, grad_output):
        x, gate = ctx.saved_tensors
        return grad_output * (gate + x * gate * (1 - gate))


class ReverseGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad_output):
        return -ctx.strength * grad_output, None


class Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, low, high):
        inside = (x >= low) & (x <= high)
        ctx.save_for_backward(inside)
        ctx.mark_non_differentiable(inside)
        return x.clamp(low, high), inside

    @staticmethod
    @once_differentiable
    def backward(ctx, grad_output, _):
        (inside,) = ctx.saved_tensors
        return grad_output * inside, None, None


class DomainAdversarial(nn.Module):
    def __init__(self):
        super().__init__()
        self.features, self.label, self.domain = nn.Linear(4, 6), nn.Linear(6, 2), nn.Linear(6, 2)

    def forward(self, x, strength):
        h, _ = Clip.apply(Swish.apply(self.features(x)), -2.0, 2.0)
        return self.label(h), self.domain(ReverseGradient.apply(h, strength))


model = DomainAdversarial()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(4):
    x, y, d = torch.randn(8, 4), torch.randint(2, (8,)), torch.randint(2, (8,))
    label, domain = model(x, 0.1 * step)
    loss = nn.functional.cross_entropy(label, y) + nn.functional.cross_entropy(domain, d)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

FINAL = list(model.parameters())
