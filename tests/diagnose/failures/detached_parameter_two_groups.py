# cause: detached-parameter
# culprits: model.towers["text"].weight, model.towers["text"].bias
# culprits: model.temperature
# group: model.towers["text"]
# kind: check
# Two groups: a tower that is cut off, whose story is marked, and a parameter that is read with .item().
import torch
import torch.nn.functional as F
from torch import nn

import byname

FOUND = []


class TwoTowers(nn.Module):
    def __init__(self):
        super().__init__()
        self.towers = nn.ModuleDict({"image": nn.Linear(4, 3), "text": nn.Linear(5, 3)})
        self.temperature = nn.Parameter(torch.tensor(0.5))

    def forward(self, image, text):
        left = F.normalize(self.towers["image"](image), dim=-1)
        right = F.normalize(self.towers["text"](text), dim=-1)
        with torch.no_grad():
            right = right.clone()  #: 1
        return left @ right.T / self.temperature.item()


def step(model, optimizer, image, text):
    loss = F.cross_entropy(model(image, text), torch.arange(len(image)))
    FOUND.extend(byname.check(loss, model=model, optimizer=optimizer))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


torch.manual_seed(0)
model = TwoTowers()
step(model, torch.optim.SGD(model.parameters(), lr=0.1), torch.randn(3, 4), torch.randn(3, 5))
