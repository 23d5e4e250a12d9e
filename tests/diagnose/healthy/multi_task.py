"""Two heads on one trunk; their losses are weighted by learned uncertainties and summed."""

import torch
from torch import nn

torch.manual_seed(31)


class MultiTask(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(5, 8), nn.ReLU())
        self.heads = nn.ModuleDict({"kind": nn.Linear(8, 3), "size": nn.Linear(8, 1)})
        self.log_vars = nn.ParameterDict({name: nn.Parameter(torch.zeros(())) for name in self.heads})

    def forward(self, x):
        features = self.trunk(x)
        return {name: head(features) for name, head in self.heads.items()}

    def loss(self, outputs, targets):
        losses = {
            "kind": nn.functional.cross_entropy(outputs["kind"], targets["kind"]),
            "size": nn.functional.huber_loss(outputs["size"].squeeze(1), targets["size"]),
        }
        total = sum(torch.exp(-self.log_vars[name]) * loss + self.log_vars[name] for name, loss in losses.items())
        return total, {name: loss.item() for name, loss in losses.items()}


model = MultiTask()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
log = {"kind": 0.0, "size": 0.0}
for step in range(5):
    x = torch.randn(8, 5)
    targets = {"kind": torch.randint(3, (8,)), "size": x.norm(dim=1)}
    total, parts = model.loss(model(x), targets)
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
    for name, value in parts.items():
        log[name] += value

FINAL = [*model.parameters(), torch.tensor(list(log.values()))]
