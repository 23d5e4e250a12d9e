"""A Siamese net runs several forward passes before one backward: batch norm and an own buffer change in place between them."""

import torch
from torch import nn

torch.manual_seed(56)


class Branch(nn.Module):
    def __init__(self, length=6):
        super().__init__()
        self.conv = nn.Conv1d(1, 4, 3, padding=1)
        self.norm = nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 3)
        self.register_buffer("mask", torch.arange(length) % 3 != 2)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.register_buffer("center", torch.zeros(3))

    def forward(self, x):
        self.calls += 1
        h = self.norm(self.conv(x)).relu_()
        h = h.masked_fill(~self.mask, 0.0).mean(-1)
        out = self.head(h)
        with torch.no_grad():
            self.center.mul_(0.9).add_(out.mean(0), alpha=0.1)
        return out - self.center.clone()


branch = Branch()
optimizer = torch.optim.Adam(branch.parameters(), lr=1e-2)
for step in range(4):
    anchor = torch.randn(5, 1, 6)
    positive, negative = anchor + 0.1 * torch.randn_like(anchor), torch.randn(5, 1, 6)
    loss = nn.functional.triplet_margin_loss(branch(anchor), branch(positive), branch(negative))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

FINAL = [*branch.parameters(), *branch.buffers()]
