# cause: detached-parameter
# culprits: model.encoder.weight, model.encoder.bias
# group: model.encoder
# kind: check
import torch
from torch import nn

import byname

FOUND = []


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Linear(4, 2)
        self.decoder = nn.Linear(2, 4)

    def forward(self, x):
        code = torch.tanh(self.encoder(x)).detach()  #: 1
        return self.decoder(code)


def train(model, optimizer, batches):
    for x in batches:
        loss = (model(x) - x).square().mean()
        FOUND.extend(byname.check(loss, model=model, optimizer=optimizer))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


torch.manual_seed(0)
model = Autoencoder()
train(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(1, 3, 4))
