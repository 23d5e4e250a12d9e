"""Weight norm, spectral norm and an own parametrization: the weight is computed anew at each use."""

import torch
from torch import nn
from torch.nn.utils import parametrizations, parametrize

torch.manual_seed(28)


class Symmetric(nn.Module):
    def forward(self, x):
        return x.triu() + x.triu(1).transpose(-1, -2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = parametrizations.weight_norm(nn.Conv1d(2, 4, 3))
        self.mix = parametrizations.spectral_norm(nn.Linear(4, 4))
        self.metric = nn.Linear(4, 4, bias=False)
        parametrize.register_parametrization(self.metric, "weight", Symmetric())
        self.rotate = parametrizations.orthogonal(nn.Linear(4, 4, bias=False))

    def forward(self, x):
        x = torch.relu(self.conv(x)).mean(-1)
        x = self.mix(x)
        return (x * self.metric(self.rotate(x))).sum(-1)


net = Net()
optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
for step in range(4):
    x = torch.randn(5, 2, 7)
    if step == 3:
        with parametrize.cached():
            loss = (net(x) + net(x.flip(-1)) - 2 * x.mean(dim=(1, 2))).square().mean()
    else:
        loss = (net(x) - x.mean(dim=(1, 2))).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

parametrize.remove_parametrizations(net.conv, "weight")
FINAL = [*net.parameters(), *net.buffers()]
