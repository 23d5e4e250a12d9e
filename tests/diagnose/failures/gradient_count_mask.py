# cause: gradient-count
# culprits: Masked.backward
# kind: error
# mended 1: return gradient * mask, None
import torch


class Masked(torch.autograd.Function):
    @staticmethod
    def forward(x, mask):
        return x * mask

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx, gradient):
        (mask,) = ctx.saved_tensors
        return gradient * mask, None, None, gradient  #: 1


weight = torch.ones(3, requires_grad=True)
(gradient,) = torch.autograd.grad(Masked.apply(weight.exp(), torch.eye(3)[0]).sum(), weight)  #: 2
