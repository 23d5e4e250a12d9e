"""A cache without a limit that is asked for the same two lengths again and again."""

from functools import cache

import torch
from torch import nn


@cache
def causal_mask(length):
    return torch.full((length, length), float("-inf")).triu(1)


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(-1, -2) + causal_mask(x.shape[-2])
        return scores.softmax(-1) @ v


model = Attention(16)


def step(i):
    model(torch.randn(2, 30 + i % 2, 16)).mean().backward()
    model.zero_grad()
