# cause: non-leaf-grad
# culprits: w
# kind: error
# mended 1: w = (torch.randn(3) * 0.1).requires_grad_()
import torch


def descend(x, y, rate=0.1, steps=3):
    w = torch.randn(3, requires_grad=True) * 0.1  #: 1
    for _ in range(steps):
        loss = (x @ w - y).square().mean()
        loss.backward()
        with torch.no_grad():
            w -= rate * w.grad  #: 2
            w.grad.zero_()
    return w


torch.manual_seed(0)
x = torch.randn(5, 3)
descend(x, x.sum(1))
