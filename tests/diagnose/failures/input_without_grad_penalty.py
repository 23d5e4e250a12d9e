# cause: input-without-grad
# culprits: mixed
# kind: error
# mended 1: mixed = torch.lerp(real, fake, torch.rand(5, 1)).requires_grad_()
import torch
from torch import nn

torch.manual_seed(0)
critic = nn.Linear(3, 1)


def penalty(real, fake):
    mixed = torch.lerp(real, fake, torch.rand(5, 1))  #: 1
    score = critic(mixed).sum()
    (slope,) = torch.autograd.grad(score, mixed, create_graph=True)  #: 2
    return (slope.norm(dim=1) - 1).square().mean()


penalty(torch.randn(5, 3), torch.randn(5, 3)).backward()
