# cause: retained-graph
# name: state[*]
# count: 40
# bytes: 8 * (6 * 20 * 4 + 7 * (6 * 35 * 4))
# mended 1: state = cell(chunk, (state[0].detach(), state[1].detach()))
# All is local to the function that trains. A step of the cell keeps its input, the hidden state, the four gates, the
# cell state and the tanh of it: one input and seven of the state's size.
import torch
from torch import nn


def train(steps):
    cell = nn.LSTMCell(20, 35)
    state = torch.zeros(6, 35), torch.zeros(6, 35)
    for _ in steps:
        chunk = torch.randn(6, 20)
        state = cell(chunk, state)  #: 1
        cell.zero_grad()
        state[0].square().mean().backward(retain_graph=True)
