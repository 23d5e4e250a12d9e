# cause: context-cycle
# name: unnamed (float32 33×61)
# count: 8
# bytes: 8 * (33 * 61 * 4)
# collectable: yes
# mended 1: ctx.save_for_backward(y)
# mended 2: (y,) = ctx.saved_tensors; return grad * y
# The context holds the output, the output its node, the node the context: only the garbage collector frees it.
import torch


class Exp(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x.exp()
        ctx.y = y  #: 1
        return y

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.y  #: 2


w = torch.randn(33, 61, requires_grad=True)


def step(i):
    Exp.apply(w).sum().backward()
