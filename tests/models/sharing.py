"""Modules and parameters that serve twice: called again, shared under two names, tied."""

import torch
from torch import nn
from torch.nn import functional as F

from models import Specimen


class Twins(nn.Module):
    """One encoder under two names, called by both; one parameter in two layers."""

    def __init__(self):
        super().__init__()
        self.left = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.right = self.left
        self.up, self.down = nn.Linear(4, 4), nn.Linear(4, 4)
        self.down.weight = self.up.weight
        self.act = nn.ReLU()

    def forward(self, a, b):
        a, b = self.left(a), self.right(b)
        h = self.act(self.up(a - b))
        return self.act(self.down(h)) + F.relu(h - 0.1)


def twins_by_hand(model, note, a, b):
    linear = model.left[0]
    a, b = note(a, "forward.a"), note(b, "forward.b")
    a = note(torch.tanh(note(linear(a), "left.0")), "left.1", "left")
    b = note(torch.tanh(note(linear(b), "left.0")), "left.1", "left")
    a, b = note(a, "forward.a"), note(b, "forward.b")
    h = note(F.relu(note(model.up(note(a - b, "sub")), "up")), "act", "forward.h")
    last = note(F.relu(note(F.linear(h, model.up.weight, model.down.bias), "down")), "act")
    return note(last + note(F.relu(note(h - 0.1, "sub_1")), "relu"), "add", "forward")


class Doubled(nn.Module):
    """Calls a block twice in one forward, then its own inner layer alone."""

    def __init__(self):
        super().__init__()
        self.block = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))

    def forward(self, x):
        x = self.block(self.block(x))
        x = self.block[0](x)
        return x


def doubled_by_hand(model, note, x):
    x = note(x, "forward.x")
    for _ in range(2):
        x = F.dropout(note(model.block[0](x), "block.0"), 0.5, model.training)
        x = note(x, "block.1.dropout", "block.1", "block")
    x = note(x, "forward.x")
    return note(model.block[0](x), "block.0", "forward.x", "forward")


def negated(value):
    return -value


SPECIMENS = [
    Specimen(
        "twins",
        make=Twins,
        example=lambda: (torch.randn(3, 4), torch.randn(3, 4)),
        by_hand=twins_by_hand,
        edits=(
            ("left", lambda value: value * 2),
            ("act", lambda value: value + 1),
            ("relu", torch.zeros_like),
            ("forward.b", negated),
        ),
    ),
    Specimen(
        "doubled",
        make=Doubled,
        example=lambda: (torch.randn(2, 3),),
        by_hand=doubled_by_hand,
        edits=(("block.0", negated), ("block", lambda value: value + 1), ("forward.x", lambda x: x * 2)),
    ),
]
