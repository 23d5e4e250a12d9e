# cause: no-grad-path
# culprits: code, self.encoder.weight
# kind: error
# mended 1: with torch.enable_grad(): code = self.encoder(x)
# A decorator of an earlier experiment was left on the method.
import torch
from torch import nn


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 2)

    @torch.no_grad()
    def encode(self, x):
        code = self.encoder(x)  #: 1
        return code

    def forward(self, x):
        return self.encode(x) @ self.encoder.weight.detach()  #: 2


def train(model, batches):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x in batches:
        optimizer.zero_grad()
        loss = (model(x) - x).square().mean()
        loss.backward()  #: 3
        optimizer.step()


torch.manual_seed(0)
train(Autoencoder(), torch.randn(2, 3, 4))
