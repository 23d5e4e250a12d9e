"""Discriminative learning rates: a group for each depth, no decay for biases and norms, some groups added later."""

import torch
from torch import nn

torch.manual_seed(38)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.low = nn.Linear(4, 6)
        self.norm = nn.LayerNorm(6)
        self.high = nn.Linear(6, 3)

    def forward(self, x):
        return self.high(torch.relu(self.norm(self.low(x))))


def groups(model, base=0.1, decay=0.7):
    for depth, part in enumerate([model.high, model.low]):
        named = list(part.named_parameters())
        yield {"params": [p for n, p in named if n == "weight"], "lr": base * decay**depth, "weight_decay": 0.01}
        yield {"params": [p for n, p in named if n == "bias"], "lr": base * decay**depth, "weight_decay": 0.0}


def main():
    model = Net()
    optimizer = torch.optim.SGD(list(groups(model)), momentum=0.5)
    optimizer.add_param_group({"params": model.norm.parameters(), "lr": 0.01})
    for step in range(5):
        x, y = torch.randn(6, 4), torch.randint(3, (6,))
        for group in optimizer.param_groups:
            group["lr"] *= 0.95
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return [*model.parameters(), *(torch.tensor(group["lr"]) for group in optimizer.param_groups)]


FINAL = main()
