# cause: modified-in-place
# culprits: feats[0]
# kind: error
# mended 2: feats[0] = feats[0] * 2
import torch
from torch import nn


class Pyramid(nn.Module):
    def __init__(self):
        super().__init__()
        self.levels = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 4)])

    def forward(self, x):
        feats = []
        for level in self.levels:
            feats.append(torch.exp(level(x)))  #: 1
        feats[0].mul_(2)  #: 2
        return torch.cat(feats, dim=-1)


def train(pyramid, head):
    optimizer = torch.optim.SGD([*pyramid.parameters(), *head.parameters()], lr=0.01)
    for _ in range(2):
        optimizer.zero_grad()
        loss = head(pyramid(torch.randn(2, 4))).mean()
        loss.backward()  #: 3
        optimizer.step()


torch.manual_seed(0)
train(Pyramid(), nn.Linear(12, 1))
