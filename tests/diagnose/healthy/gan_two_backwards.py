"""The DCGAN tutorial's way: the discriminator's two losses go backward one after the other into the same gradients."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(1)
netG = nn.Sequential(
    nn.ConvTranspose2d(4, 3, 4), nn.BatchNorm2d(3), nn.ReLU(True), nn.ConvTranspose2d(3, 1, 2, 2), nn.Tanh()
)
netD = nn.Sequential(nn.Conv2d(1, 3, 4, 2), nn.LeakyReLU(0.2, inplace=True), nn.Flatten(), nn.Linear(27, 1))
optimizerG = torch.optim.Adam(netG.parameters(), lr=2e-3)
optimizerD = torch.optim.Adam(netD.parameters(), lr=2e-3)
G_losses, D_losses = [], []

for epoch in range(4):
    # (1) maximize log(D(x)) + log(1 - D(G(z)))
    netD.zero_grad()
    real = torch.rand(5, 1, 8, 8)
    label = torch.full((5,), 1.0)
    errD_real = F.binary_cross_entropy_with_logits(netD(real).view(-1), label)
    errD_real.backward()

    noise = torch.randn(5, 4, 1, 1)
    fake = netG(noise)
    label.fill_(0.0)
    errD_fake = F.binary_cross_entropy_with_logits(netD(fake.detach()).view(-1), label)
    errD_fake.backward()
    errD = errD_real + errD_fake
    optimizerD.step()

    # (2) maximize log(D(G(z)))
    netG.zero_grad()
    label.fill_(1.0)
    output = netD(fake).view(-1)
    errG = F.binary_cross_entropy_with_logits(output, label)
    errG.backward()
    optimizerG.step()

    G_losses.append(errG.item())
    D_losses.append(errD.item())

FINAL = [*netG.state_dict().values(), *netD.parameters(), torch.tensor(G_losses), torch.tensor(D_losses)]
