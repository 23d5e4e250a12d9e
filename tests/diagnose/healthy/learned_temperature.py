"""Two encoders and a temperature that is no module's: a free tensor in the optimizer, clamped in place after each step."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(43)


class Tower(nn.Module):
    def __init__(self, features, width=4):
        super().__init__()
        self.project = nn.Sequential(nn.Linear(features, 8), nn.GELU(), nn.Linear(8, width))

    def forward(self, x):
        return F.normalize(self.project(x), dim=-1)


images, texts = Tower(6), Tower(5)
logit_scale = torch.full((), 2.0, requires_grad=True)
optimizer = torch.optim.AdamW(
    [{"params": [*images.parameters(), *texts.parameters()]}, {"params": [logit_scale], "weight_decay": 0.0}], lr=1e-2
)


def clip_loss(image, text):
    logits = logit_scale.exp() * images(image) @ texts(text).t()
    target = torch.arange(len(logits))
    return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2


for step in range(5):
    optimizer.zero_grad()
    loss = clip_loss(torch.randn(6, 6), torch.randn(6, 5))
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        logit_scale.clamp_(0, 2.01)

FINAL = [*images.parameters(), *texts.parameters(), logit_scale]
