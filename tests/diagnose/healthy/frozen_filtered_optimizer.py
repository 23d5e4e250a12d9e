"""The optimizer gets only what requires a gradient; the whole model is handed around."""

import torch
from torch import nn

torch.manual_seed(7)


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 6)
        self.mix = nn.Linear(6, 6)

    def forward(self, tokens):
        return torch.tanh(self.mix(self.embed(tokens))).mean(dim=1)


class Tagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = Encoder().requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(6))
        self.head = nn.Linear(6, 4)

    def forward(self, tokens):
        return self.head(self.encoder(tokens) * self.scale)


def trainable(model):
    return filter(lambda p: p.requires_grad, model.parameters())


def main():
    model = Tagger()
    optimizer = torch.optim.Adam(trainable(model), lr=0.01)
    criterion = nn.CrossEntropyLoss()
    total, seen = 0.0, 0
    for _ in range(5):
        tokens, tags = torch.randint(20, (8, 5)), torch.randint(4, (8,))
        optimizer.zero_grad()
        loss = criterion(model(tokens), tags)
        loss.backward()
        optimizer.step()
        total += loss.item() * len(tags)
        seen += len(tags)
    return [*model.parameters(), torch.tensor(total / seen)]


FINAL = main()
