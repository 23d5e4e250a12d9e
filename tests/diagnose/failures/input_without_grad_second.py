# cause: input-without-grad
# culprits: t
# kind: error
# mended 1: t = torch.linspace(0, 1, 5).requires_grad_()
import torch

x = torch.linspace(0, 1, 5, requires_grad=True)
t = torch.linspace(0, 1, 5)  #: 1
u = (x * t).sum()
u_x, u_t = torch.autograd.grad(u, (x, t))  #: 2
