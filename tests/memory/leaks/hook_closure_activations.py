# cause: hook-closure
# name: seen[*] (closure of record_activations.<locals>.hook, trainer.model.features[1]._forward_hooks[*])
# steps: 10
# count: 10
# bytes: 10 * (40 * 70 * 4)
# mended 1: seen[:] = [output.detach()]
# One hook, and the list that it fills is only in its closure.
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Linear(30, 70), nn.ReLU())
        self.head = nn.Linear(70, 3)

    def forward(self, x):
        return self.head(self.features(x))


def record_activations(layer):
    seen = []

    def hook(module, args, output):
        seen.append(output.detach())  #: 1

    return layer.register_forward_hook(hook)


class Trainer:
    def __init__(self, model):
        self.model = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
        record_activations(model.features[1])

    def step(self, x):
        self.optimizer.zero_grad()
        self.model(x).square().mean().backward()
        self.optimizer.step()


trainer = Trainer(Net())


def step(i):
    trainer.step(torch.randn(40, 30))
