# cause: stored-copies
# name: kept[*]['weight']
# count: 8
# bytes: 8 * (29 * 51 * 4)
# cause: stored-copies
# name: kept[*]['bias']
# count: 8
# bytes: 8 * (29 * 4)
# mended 1: kept = [snapshot(model)]
# Weights for an average over the run, copied by hand, in a list that is local to the function that trains.
import torch
from torch import nn


def snapshot(model):
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def average(kept):
    return {name: sum(one[name] for one in kept) / len(kept) for name in kept[0]}


def train(steps):
    model = nn.Linear(51, 29)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kept = []
    for _ in steps:
        optimizer.zero_grad()
        model(torch.randn(4, 51)).square().mean().backward()
        optimizer.step()
        kept.append(snapshot(model))  #: 1
    return average(kept)
