# cause: not-in-optimizer
# culprits: model[2].down.weight, model[2].up.weight
# kind: check
# The adapters are put in after the optimizer was built; what they wrap is frozen.
import torch
from helpers.lora import Lora
from torch import nn

import byname

FOUND = []


def adapt(model):
    for parameter in model[2].parameters():
        parameter.requires_grad_(False)
    model[2] = Lora(model[2], rank=2)


def train(model, optimizer, batches):
    for x in batches:
        loss = model(x).square().mean()
        FOUND.extend(byname.check(loss, model=model, optimizer=optimizer))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
adapt(model)
train(model, optimizer, torch.randn(1, 3, 3))
