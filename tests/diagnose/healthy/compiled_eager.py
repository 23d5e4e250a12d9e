"""A model compiled with the eager backend, trained as usual."""

import torch
from torch import nn

torch.manual_seed(15)


class Mlp(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(4, 8), nn.Linear(8, 2)

    def forward(self, x):
        return self.down(torch.relu(self.up(x)))


model = Mlp()
compiled = torch.compile(model, backend="eager")
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for _ in range(4):
    x = torch.randn(6, 4)
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(compiled(x), x[:, :2])
    loss.backward()
    optimizer.step()

FINAL = [*model.parameters(), loss.detach()]
