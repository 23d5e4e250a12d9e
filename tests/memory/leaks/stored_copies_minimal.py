# cause: stored-copies
# name: best[*]['weight']
# count: 8
# bytes: 8 * (45 * 67 * 4)
# mended 1: best[:] = [copy.deepcopy(model.state_dict())]
# Every improvement is kept.
import copy

import torch

model = torch.nn.Linear(67, 45, bias=False)
best = []


def step(i):
    with torch.no_grad():
        model.weight.mul_(0.9)
    best.append(copy.deepcopy(model.state_dict()))  #: 1
