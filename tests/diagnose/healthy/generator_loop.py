"""Training is a generator: it is suspended between the steps, and two trainings take turns."""

import torch
from torch import nn

torch.manual_seed(46)


def batches(features):
    while True:
        x = torch.randn(6, features)
        yield x, x.sum(dim=1, keepdim=True)


def training(model, data, lr):
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for x, y in data:
        prediction = model(x)
        loss = nn.functional.mse_loss(prediction, y)
        yield "forward", loss.item()
        optimizer.zero_grad()
        loss.backward()
        yield "backward", loss.item()
        optimizer.step()


small, large = nn.Linear(2, 1), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
turns = [training(small, batches(2), 0.1), training(large, batches(4), 0.05)]
seen = []
for _ in range(12):
    for turn in turns:
        stage, value = next(turn)
        seen.append(value)
for turn in turns:
    turn.close()

FINAL = [*small.parameters(), *large.parameters(), torch.tensor(seen)]
