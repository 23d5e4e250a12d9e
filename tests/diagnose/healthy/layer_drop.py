"""Stochastic depth: in each batch some blocks are skipped, and the optimizer leaves them as they are."""

import torch
from torch import nn

torch.manual_seed(30)


class Stack(nn.Module):
    def __init__(self, depth=5, width=4, drop=0.4):
        super().__init__()
        self.drop = drop
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, width), nn.Tanh()) for _ in range(depth)
        )
        self.head = nn.Linear(width, 2)
        self.auxiliary = nn.Linear(width, 2)

    def forward(self, x):
        self.middle = None
        for index, block in enumerate(self.blocks):
            if self.training and torch.rand(()).item() < self.drop:
                continue
            x = x + block(x)
            if index == 2 and self.training:
                self.middle = self.auxiliary(x)
        return self.head(x)


model = Stack()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(6):
    x, y = torch.randn(6, 4), torch.randint(2, (6,))
    loss = nn.functional.cross_entropy(model(x), y)
    if model.middle is not None:
        loss = loss + 0.3 * nn.functional.cross_entropy(model.middle, y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

model.eval()
with torch.no_grad():
    prediction = model(torch.ones(1, 4))
FINAL = [*model.parameters(), prediction]
