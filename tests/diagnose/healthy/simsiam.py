"""SimSiam and an online probe: stop-gradients on purpose, and a probe loss that must not reach the encoder."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(60)


class SimSiam(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4))
        self.predictor = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))
        self.probe = nn.Linear(4, 2)

    def forward(self, a, b):
        z1, z2 = self.encoder(a), self.encoder(b)
        return self.predictor(z1), self.predictor(z2), z1.detach(), z2.detach()


model = SimSiam()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for step in range(5):
    x, y = torch.randn(10, 6), torch.randint(2, (10,))
    p1, p2, z1, z2 = model(x + 0.1 * torch.randn_like(x), x + 0.1 * torch.randn_like(x))
    loss = -(F.cosine_similarity(p1, z2).mean() + F.cosine_similarity(p2, z1).mean()) / 2
    probe_loss = F.cross_entropy(model.probe(z1), y)
    optimizer.zero_grad()
    loss.backward()
    probe_loss.backward()
    optimizer.step()

FINAL = [*model.parameters(), *model.buffers()]
