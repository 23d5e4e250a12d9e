"""A GAN: the discriminator learns from detached fakes, the generator through the discriminator."""

import torch
from torch import nn

torch.manual_seed(0)


class Generator(nn.Module):
    def __init__(self, noise=3, hidden=8, out=2):
        super().__init__()
        self.noise = noise
        self.net = nn.Sequential(
            nn.Linear(noise, hidden), nn.BatchNorm1d(hidden), nn.ReLU(inplace=True), nn.Linear(hidden, out)
        )

    def forward(self, count):
        return self.net(torch.randn(count, self.noise))


class Discriminator(nn.Module):
    def __init__(self, features=2, hidden=8):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(features, hidden), nn.LeakyReLU(0.2), nn.Dropout(0.1), nn.Linear(hidden, 1))

    def forward(self, x):
        return self.net(x).squeeze(1)


generator, discriminator = Generator(), Discriminator()
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-2, betas=(0.5, 0.999))
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=1e-2, betas=(0.5, 0.999))
criterion = nn.BCEWithLogitsLoss()

for step in range(6):
    real = torch.randn(16, 2) * 0.5 + 2
    fake = generator(16)

    optimizer_d.zero_grad()
    loss_real = criterion(discriminator(real), torch.ones(16))
    loss_fake = criterion(discriminator(fake.detach()), torch.zeros(16))
    loss_d = loss_real + loss_fake
    loss_d.backward()
    optimizer_d.step()

    optimizer_g.zero_grad()
    loss_g = criterion(discriminator(fake), torch.ones(16))
    loss_g.backward()
    optimizer_g.step()

FINAL = [*generator.parameters(), *generator.buffers(), *discriminator.parameters(), loss_d.detach(), loss_g.detach()]
