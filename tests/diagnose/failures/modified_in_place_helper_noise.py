# cause: modified-in-place
# culprits: embedding
# also: noisy
# kind: error
# mended 2: return tensor + strength * torch.ones_like(tensor)
import torch
from helpers.noise import perturb
from torch import nn


class Regressor(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(3, 6)
        self.head = nn.Linear(6, 1)

    def forward(self, x):
        embedding = self.body(x).exp()  #: 1
        noisy = perturb(embedding, strength=0.1)
        return self.head(noisy)


def step(model, optimizer, batch):
    optimizer.zero_grad()
    loss = model(batch).square().sum()
    loss.backward()  #: 3
    optimizer.step()


torch.manual_seed(0)
model = Regressor()
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for _ in range(2):
    step(model, optimizer, torch.randn(4, 3))
