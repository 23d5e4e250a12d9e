# cause: view-pins-base
# name: sampler.pool['rows'][*]
# count: 8
# bytes: 8 * (12 * 95 * 4)
# left: 8 * (95 * 4)
# mended 1: self.pool["rows"].append(first.clone())
# One of the parts of an unbound batch is kept, cut from its graph but not from its storage. The loader is PyTorch's own.
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Sampler:
    def __init__(self):
        self.pool = {"rows": []}

    def see(self, outputs):
        first, *others = outputs.detach().unbind()
        self.pool["rows"].append(first)  #: 1


sampler = Sampler()
model = nn.Linear(18, 95)
batches = iter(DataLoader(TensorDataset(torch.randn(240, 18)), batch_size=12))


def step(i):
    (x,) = next(batches)
    outputs = model(x)
    outputs.square().mean().backward()
    sampler.see(outputs)
    model.zero_grad(set_to_none=False)
