"""Momentum contrast: a queue of detached keys, a key encoder that follows, and in-place writes into a buffer."""

import copy

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(41)


class MoCo(nn.Module):
    def __init__(self, encoder, width=4, queue=16, momentum=0.9, temperature=0.2):
        super().__init__()
        self.encoder_q = encoder
        self.encoder_k = copy.deepcopy(encoder)
        self.momentum, self.temperature = momentum, temperature
        for p in self.encoder_k.parameters():
            p.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(width, queue), dim=0))
        self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _momentum_update(self):
        for q, k in zip(self.encoder_q.parameters(), self.encoder_k.parameters(), strict=True):
            k.data = k.data * self.momentum + q.data * (1.0 - self.momentum)

    @torch.no_grad()
    def _enqueue(self, keys):
        start = int(self.pointer)
        self.queue[:, start : start + len(keys)] = keys.T
        self.pointer[0] = (start + len(keys)) % self.queue.shape[1]

    def forward(self, image_q, image_k):
        q = F.normalize(self.encoder_q(image_q), dim=1)
        with torch.no_grad():
            self._momentum_update()
            k = F.normalize(self.encoder_k(image_k), dim=1)
        positive = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
        negative = torch.einsum("nc,ck->nk", q, self.queue.clone().detach())
        logits = torch.cat([positive, negative], dim=1) / self.temperature
        self._enqueue(k)
        return logits, torch.zeros(len(logits), dtype=torch.long)


model = MoCo(nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 4)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
for _ in range(5):
    x = torch.randn(4, 6)
    logits, target = model(x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x))
    loss = F.cross_entropy(logits, target)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

FINAL = [*model.parameters(), *model.buffers()]
