# cause: no-grad-path
# culprits: logits
# kind: error
# mended 1: torch.set_grad_enabled(True)
import torch
import torch.nn.functional as F
from torch import nn


def evaluate(model, x, y):
    torch.set_grad_enabled(False)  #: 1
    with torch.set_grad_enabled(False):
        return (model(x).argmax(1) == y).sum().item()


def train(model, optimizer, x, y):
    logits = model(x)  #: 2
    loss = F.cross_entropy(logits, y)
    optimizer.zero_grad()
    loss.backward()  #: 3
    optimizer.step()


torch.manual_seed(0)
model = nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
x, y = torch.randn(4, 3), torch.randint(0, 2, (4,))
for _ in range(2):
    train(model, optimizer, x, y)
    evaluate(model, x, y)
