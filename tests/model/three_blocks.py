"""A model of three blocks with attention, for selectors."""

import torch
import torch.nn.functional as F
from torch import nn


class Attention(nn.Module):
    def __init__(self, size=4):
        super().__init__()
        self.qkv = nn.Linear(size, 3 * size)
        self.out = nn.Linear(size, size)
        self.drop = nn.Dropout(0.1)

    def forward(self, x):
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = torch.softmax(q @ k.mT, -1)
        return self.out(self.drop(scores) @ v)


class Block(nn.Module):
    def __init__(self, size=4):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.attn = Attention(size)
        self.fc = nn.Linear(size, size)
        self.act = nn.ReLU()

    def forward(self, x):
        x = x + self.attn(self.norm(x))
        return x + F.relu(self.fc(self.act(x)))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(7, 4)
        self.layers = nn.ModuleList(Block() for _ in range(3))
        self.head = nn.Linear(4, 7)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


MODEL = Model().eval()
TOKENS = torch.tensor([[1, 2, 3]])
