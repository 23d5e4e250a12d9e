# cause: leaf-in-place
# culprits: model.embedding.weight
# kind: error
# mended 1: model.embedding.weight.data[0] = 0
import torch
from torch import nn


class Bag(nn.Module):
    def __init__(self, words, width):
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.head = nn.Linear(width, 2)

    def forward(self, tokens):
        return self.head(self.embedding(tokens).mean(1))


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for tokens in batches:
        model.embedding.weight[0] = 0  #: 1
        loss = model(tokens).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
train(Bag(10, 4), torch.randint(0, 10, (2, 3, 5)))
