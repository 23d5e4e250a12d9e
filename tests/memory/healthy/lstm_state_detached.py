"""Truncated backpropagation through time: the state goes on, its graph does not."""

import torch
import torch.nn.functional as F
from torch import nn


class LanguageModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 12)
        self.lstm = nn.LSTM(12, 34, batch_first=True)
        self.head = nn.Linear(34, 30)
        self.state = None

    def forward(self, tokens):
        hidden, state = self.lstm(self.embed(tokens), self.state)
        self.state = tuple(part.detach() for part in state)
        return self.head(hidden)


model = LanguageModel()
optimizer = torch.optim.Adam(model.parameters())


def step(i):
    tokens = torch.randint(30, (4, 9))
    loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
