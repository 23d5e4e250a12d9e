# cause: retained-graph
# name: state
# count: 8
# bytes: 8 * (40 * 60 * 4)
# mended 1: state = torch.tanh(state.detach() * w + torch.randn(40, 60))
# The state is carried from step to step with its graph: each step's tanh is kept by itself and by the next product.
import torch

w = torch.randn(60, requires_grad=True)
state = torch.zeros(40, 60)


def step(i):
    global state
    state = torch.tanh(state * w + torch.randn(40, 60))  #: 1
    state.sum().backward(retain_graph=True)
