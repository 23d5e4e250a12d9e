"""The best weights so far: every improvement takes the place of the last one. All is local to the function."""

import copy

import torch
from torch import nn


def train(steps):
    model = nn.Linear(45, 28)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    best = {"loss": float("inf"), "state": None, "optimizer": None}
    target = torch.zeros(20, 28)
    data = torch.randn(20, 45)
    for i in steps:
        loss = (model(data) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if loss.item() < best["loss"]:
            best["loss"] = loss.item()
            best["state"] = copy.deepcopy(model.state_dict())
            best["optimizer"] = copy.deepcopy(optimizer.state_dict())
