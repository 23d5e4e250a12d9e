# cause: no-grad-path
# culprits: code
# kind: error
# mended 1: code = encoder(x).tanh()
# The variable is the helper's.
import torch
from helpers.features import embed
from torch import nn


class Siamese(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, left, right):
        return (embed(self.encoder, left) - embed(self.encoder, right)).square().sum(-1)


def contrastive(model, pairs):
    optimizer = torch.optim.Adam(model.parameters())
    for left, right in pairs:
        distance = model(left, right)
        loss = torch.relu(1 - distance).mean()
        optimizer.zero_grad()
        loss.backward()  #: 2
        optimizer.step()


torch.manual_seed(0)
contrastive(Siamese(), [(torch.randn(2, 4), torch.randn(2, 4))])
