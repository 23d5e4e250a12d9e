"""A RealNVP: affine couplings with alternating masks, trained by exact likelihood."""

import torch
from torch import nn
from torch.distributions import MultivariateNormal

torch.manual_seed(53)


class Coupling(nn.Module):
    def __init__(self, mask, hidden=8):
        super().__init__()
        self.register_buffer("mask", mask)
        self.scale = nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 2), nn.Tanh())
        self.shift = nn.Sequential(nn.Linear(2, hidden), nn.Tanh(), nn.Linear(hidden, 2))

    def forward(self, x):
        kept = x * self.mask
        s, t = self.scale(kept) * (1 - self.mask), self.shift(kept) * (1 - self.mask)
        return kept + (1 - self.mask) * (x * s.exp() + t), s.sum(dim=1)

    def inverse(self, y):
        kept = y * self.mask
        s, t = self.scale(kept) * (1 - self.mask), self.shift(kept) * (1 - self.mask)
        return kept + (1 - self.mask) * ((y - t) * (-s).exp())


class Flow(nn.Module):
    def __init__(self, depth=4):
        super().__init__()
        self.layers = nn.ModuleList(Coupling(torch.tensor([i % 2, 1 - i % 2]).float()) for i in range(depth))
        self.base = MultivariateNormal(torch.zeros(2), torch.eye(2))

    def log_prob(self, x):
        total = torch.zeros(len(x))
        for layer in self.layers:
            x, log_det = layer(x)
            total = total + log_det
        return self.base.log_prob(x) + total

    @torch.no_grad()
    def sample(self, count):
        x = self.base.sample((count,))
        for layer in reversed(self.layers):
            x = layer.inverse(x)
        return x


flow = Flow()
optimizer = torch.optim.Adam(flow.parameters(), lr=1e-2)
for _ in range(4):
    angle = torch.rand(16) * 3.14
    x = torch.stack([angle.cos(), angle.sin()], dim=1) + 0.1 * torch.randn(16, 2)
    loss = -flow.log_prob(x).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

FINAL = [*flow.parameters(), flow.sample(4)]
