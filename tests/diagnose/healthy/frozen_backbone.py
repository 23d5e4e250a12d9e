"""Transfer learning: the backbone is frozen, the head learns, then the last block is thawed for fine tuning."""

import torch
from torch import nn

torch.manual_seed(6)


class Backbone(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 4, 3, padding=1)
        self.blocks = nn.ModuleList(
            [nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU()) for _ in range(2)]
        )

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return x.mean(dim=(2, 3))


class Classifier(nn.Module):
    def __init__(self, backbone, classes):
        super().__init__()
        self.backbone = backbone
        self.head = nn.Linear(4, classes)

    def forward(self, x):
        return self.head(self.backbone(x))


def fit(model, optimizer, steps):
    for _ in range(steps):
        x, y = torch.randn(4, 3, 6, 6), torch.randint(3, (4,))
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


model = Classifier(Backbone(), classes=3)
for parameter in model.backbone.parameters():
    parameter.requires_grad = False
optimizer = torch.optim.SGD(model.head.parameters(), lr=0.1)
fit(model, optimizer, 3)

for parameter in model.backbone.blocks[-1].parameters():
    parameter.requires_grad = True
optimizer.add_param_group({"params": list(model.backbone.blocks[-1].parameters()), "lr": 0.01})
fit(model, optimizer, 3)

FINAL = [*model.parameters(), *model.buffers()]
