"""No module and no optimizer: a list of free tensors is stepped by hand, and then the parameters of a module too."""

import torch
from torch import nn

torch.manual_seed(42)

w1 = torch.randn(3, 5, requires_grad=True)
b1 = torch.zeros(5, requires_grad=True)
w2 = torch.randn(5, 1, requires_grad=True)
params = [w1, b1, w2]
lr = 0.05


def model(x):
    return torch.relu(x @ w1 + b1) @ w2


x = torch.randn(30, 3)
y = (x[:, :1] * x[:, 1:2]).tanh()
for epoch in range(5):
    for xb, yb in zip(x.split(10), y.split(10), strict=True):
        loss = (model(xb) - yb).pow(2).mean()
        loss.backward()
        with torch.no_grad():
            for p in params:
                p -= lr * p.grad
                p.grad.zero_()

linear = nn.Linear(3, 1)
for epoch in range(5):
    loss = (linear(x) - y).pow(2).mean()
    linear.zero_grad()
    loss.backward()
    with torch.no_grad():
        for p in linear.parameters():
            p.sub_(lr * p.grad)

for epoch in range(3):
    loss = (model(x) - y).pow(2).mean()
    loss.backward()
    for p in params:
        p.data -= lr * p.grad.data
        p.grad = None

FINAL = [*params, *linear.parameters(), loss.detach()]
