"""A cache of keys grows with the text of one request, and ends with it."""

import torch
from torch import nn


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.cache = []

    @torch.inference_mode()
    def generate(self, token, length):
        for _ in range(length):
            q, k, v = self.qkv(token).chunk(3, -1)
            self.cache.append((k, v))
            keys = torch.stack([past for past, _ in self.cache])
            token = ((q * keys).sum(-1).softmax(0)[..., None] * v).sum(0)
        self.cache.clear()
        return token


decoder = Decoder()


def step(i):
    decoder.generate(torch.randn(3, 32), length=3 + i)
