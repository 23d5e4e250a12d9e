"""Each token goes to one expert: in a small batch some experts see nothing and get no gradient."""

import torch
from torch import nn

torch.manual_seed(29)


class Experts(nn.Module):
    def __init__(self, width=4, count=6):
        super().__init__()
        self.router = nn.Linear(width, count)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, width)) for _ in range(count)
        )

    def forward(self, x):
        gates = self.router(x).softmax(-1)
        weight, chosen = gates.max(-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            rows = (chosen == number).nonzero(as_tuple=True)[0]
            if len(rows):
                out.index_add_(0, rows, weight[rows, None] * expert(x[rows]))
        share = torch.bincount(chosen, minlength=len(self.experts)) / len(x)
        balance = len(self.experts) * (share * gates.mean(0)).sum()
        return out, balance


model = Experts()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
for step in range(5):
    x = torch.randn(3, 4)
    out, balance = model(x)
    loss = (out - x.roll(1, dims=-1)).square().mean() + 0.01 * balance
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

FINAL = list(model.parameters())
