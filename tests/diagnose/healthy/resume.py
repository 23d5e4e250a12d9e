"""Training is saved in the middle, a new model and optimizer take it up, and come out where the first would have."""

import io

import torch
from torch import nn

torch.manual_seed(62)


def build():
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    return model, optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)


def train(model, optimizer, scheduler, batches):
    for x in batches:
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), x.amin(1, keepdim=True)).backward()
        optimizer.step()
        scheduler.step()


def save(**parts):
    file = io.BytesIO()
    torch.save({name: part.state_dict() for name, part in parts.items()}, file)
    file.seek(0)
    return file


batches = torch.randn(6, 8, 4)
model, optimizer, scheduler = build()
train(model, optimizer, scheduler, batches[:3])
file = save(model=model, optimizer=optimizer, scheduler=scheduler)
train(model, optimizer, scheduler, batches[3:])

again, optimizer, scheduler = build()
state = torch.load(file)
again.load_state_dict(state["model"])
optimizer.load_state_dict(state["optimizer"])
scheduler.load_state_dict(state["scheduler"])
train(again, optimizer, scheduler, batches[3:])

FINAL = [*model.parameters(), *again.parameters()]
