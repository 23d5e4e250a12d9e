"""Projected gradient descent attack: autograd.grad on the perturbation alone, ten times over."""

import torch
import torch.nn.functional as F
from torch import nn

torch.manual_seed(23)


class PGD:
    def __init__(self, model, epsilon=0.2, alpha=0.05, steps=4):
        self.model, self.epsilon, self.alpha, self.steps = model, epsilon, alpha, steps

    def perturb(self, x, y):
        delta = torch.empty_like(x).uniform_(-self.epsilon, self.epsilon)
        for _ in range(self.steps):
            delta.requires_grad_(True)
            loss = F.cross_entropy(self.model(x + delta), y)
            grad = torch.autograd.grad(loss, [delta])[0]
            delta = (delta.detach() + self.alpha * grad.sign()).clamp(-self.epsilon, self.epsilon)
        return (x + delta).detach()


model = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Linear(12, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
attack = PGD(model)
correct = 0
for _ in range(4):
    x, y = torch.randn(8, 6), torch.randint(3, (8,))
    x_adv = attack.perturb(x, y)
    optimizer.zero_grad()
    logits = model(x_adv)
    F.cross_entropy(logits, y).backward()
    optimizer.step()
    correct += (logits.argmax(dim=1) == y).sum().item()

FINAL = [*model.parameters(), x_adv, torch.tensor(correct)]
