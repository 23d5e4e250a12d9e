# cause: no-grad-path
# culprits: predicted
# kind: error
# mended 1: predicted = logits.softmax(dim=1)[:, 1]
import torch
from torch import nn


def error_rate(logits, target):
    predicted = logits.argmax(dim=1)  #: 1
    wrong = predicted - target
    return wrong.float().abs().mean()


def train(model, optimizer, batches):
    for x, target in batches:
        optimizer.zero_grad()
        loss = error_rate(model(x), target)
        loss.backward()  #: 2
        optimizer.step()


torch.manual_seed(0)
model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
train(model, torch.optim.SGD(model.parameters(), lr=0.1), [(torch.randn(5, 3), torch.randint(0, 2, (5,)))])
