# cause: unused-input
# culprits: model.auxiliary.weight, model.auxiliary.bias, model.gates[1]
# kind: error
# mended 1: gradients = torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)
import torch
import torch.nn.functional as F
from torch import nn


class Learner(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Linear(3, 4)
        self.auxiliary = nn.Linear(4, 2)
        self.head = nn.Linear(4, 1)
        self.gates = nn.ParameterList([torch.ones(4), torch.ones(4)])

    def forward(self, x):
        hidden = torch.relu(self.trunk(x)) * self.gates[0]
        return self.head(hidden)


def inner_step(model, x, y, rate):
    loss = F.mse_loss(model(x), y)
    gradients = torch.autograd.grad(loss, list(model.parameters()))  #: 1
    pairs = zip(model.named_parameters(), gradients, strict=True)
    return {name: value if grad is None else value - rate * grad for (name, value), grad in pairs}


torch.manual_seed(0)
model = Learner()
adapted = inner_step(model, torch.randn(4, 3), torch.randn(4, 1), rate=0.1)
