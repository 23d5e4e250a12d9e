"""A variational autoencoder with the reparameterization trick and an annealed divergence."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(21)


class VAE(nn.Module):
    def __init__(self, features=10, latent=2):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(features, 8), nn.ReLU())
        self.mu, self.logvar = nn.Linear(8, latent), nn.Linear(8, latent)
        self.decode = nn.Sequential(nn.Linear(latent, 8), nn.ReLU(), nn.Linear(8, features))

    def reparameterize(self, mu, logvar):
        if not self.training:
            return mu
        std = torch.exp(0.5 * logvar)
        return mu + torch.randn_like(std) * std

    def forward(self, x):
        hidden = self.encode(x)
        mu, logvar = self.mu(hidden), self.logvar(hidden)
        return self.decode(self.reparameterize(mu, logvar)), mu, logvar


def loss_function(reconstruction, x, mu, logvar, beta):
    bce = F.binary_cross_entropy_with_logits(reconstruction, x, reduction="sum")
    kld = -0.5 * torch.sum(1 + logvar - mu.pow(2) - logvar.exp())
    return bce + beta * kld


model = VAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
data = (torch.rand(32, 10) > 0.5).float()
train_loss = 0
for epoch in range(2):
    for batch in data.split(16):
        optimizer.zero_grad()
        reconstruction, mu, logvar = model(batch)
        loss = loss_function(reconstruction, batch, mu, logvar, beta=0.5 * epoch)
        loss.backward()
        train_loss += loss.item()
        optimizer.step()

model.eval()
with torch.no_grad():
    sample = torch.sigmoid(model.decode(torch.randn(4, 2)))
    means = model(data)[1]
FINAL = [*model.parameters(), sample, means, torch.tensor(train_loss)]
