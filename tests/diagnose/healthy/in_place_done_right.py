"""In-place changes that harm no gradient: into a fresh buffer, before anything is saved, on what nobody saved."""

import torch
from torch import nn

torch.manual_seed(66)


class Decoder(nn.Module):
    def __init__(self, width=4, steps=5):
        super().__init__()
        self.steps = steps
        self.start = nn.Parameter(torch.zeros(width))
        self.cell = nn.GRUCell(width, width)
        self.out = nn.Linear(width, width)

    def forward(self, context):
        outputs = torch.zeros(len(context), self.steps, self.start.numel())
        token = self.start.expand(len(context), -1)
        for t in range(self.steps):
            context = self.cell(token, context)
            token = self.out(context)
            outputs[:, t] = token
        outputs += 0.1
        outputs[:, 0].mul_(2.0)
        return outputs


def augment(x):
    x = x.clone()
    x[:, ::2] *= -1
    x.add_(0.1 * torch.randn_like(x)).clamp_(-2, 2)
    return x


model = Decoder()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
for _ in range(4):
    x = augment(torch.randn(6, 4))
    scores = model(x)
    scores[torch.rand(6) > 0.8] = 0.0
    loss = nn.functional.smooth_l1_loss(scores, x.unsqueeze(1).expand_as(scores))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()

FINAL = list(model.parameters())
