"""How curved is a loss along its gradient?"""

import torch


def curvature(loss, weight):
    loss.backward(create_graph=True)  #: 1 graph_in_grad_helper
    along = torch.autograd.grad(weight.grad.square().sum(), weight)[0]
    return along.norm().item()
