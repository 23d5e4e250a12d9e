"""A VQ-VAE: the straight-through estimator, a commitment loss and two detached halves of one distance."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(33)


class VectorQuantizer(nn.Module):
    def __init__(self, codes=8, width=3, commitment=0.25):
        super().__init__()
        self.codebook = nn.Embedding(codes, width)
        self.codebook.weight.data.uniform_(-1 / codes, 1 / codes)
        self.commitment = commitment
        self.register_buffer("usage", torch.zeros(codes))

    def forward(self, x):
        indices = torch.cdist(x, self.codebook.weight).argmin(dim=-1)
        quantized = self.codebook(indices)
        loss = F.mse_loss(quantized, x.detach()) + self.commitment * F.mse_loss(quantized.detach(), x)
        quantized = x + (quantized - x).detach()
        self.usage += torch.bincount(indices, minlength=len(self.usage))
        return quantized, loss, indices


class VQVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
        self.quantizer = VectorQuantizer()
        self.decoder = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 6))

    def forward(self, x):
        quantized, loss, indices = self.quantizer(self.encoder(x))
        return self.decoder(quantized), loss, indices


model = VQVAE()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(5):
    x = torch.randn(10, 6)
    reconstruction, vq_loss, indices = model(x)
    loss = F.mse_loss(reconstruction, x) + vq_loss
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

FINAL = [*model.parameters(), *model.buffers(), indices]
