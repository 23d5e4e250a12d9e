"""PCGrad: each task's gradient is taken by autograd.grad from the same graph, conflicts are projected away."""

import torch
from torch import nn

torch.manual_seed(57)


class PCGrad:
    def __init__(self, optimizer):
        self.optimizer = optimizer
        self.parameters = [p for group in optimizer.param_groups for p in group["params"]]

    def step(self, losses):
        gradients = [self._gradient(loss, last=i == len(losses) - 1) for i, loss in enumerate(losses)]
        merged = sum(self._project(g, gradients) for g in gradients)
        self.optimizer.zero_grad()
        for p, part in zip(self.parameters, merged.split([p.numel() for p in self.parameters]), strict=True):
            p.grad = part.view_as(p).clone()
        self.optimizer.step()

    def _gradient(self, loss, last):
        parts = torch.autograd.grad(loss, self.parameters, retain_graph=not last, allow_unused=True)
        return torch.cat(
            [(torch.zeros_like(p) if g is None else g).flatten() for p, g in zip(self.parameters, parts, strict=True)]
        )

    def _project(self, gradient, others):
        gradient = gradient.clone()
        for other in others:
            dot = gradient @ other
            if dot < 0:
                gradient -= dot / other.square().sum() * other
        return gradient


trunk, heads = nn.Sequential(nn.Linear(4, 6), nn.Tanh()), nn.ModuleList(nn.Linear(6, 1) for _ in range(3))
surgeon = PCGrad(torch.optim.SGD([*trunk.parameters(), *heads.parameters()], lr=0.1, momentum=0.9))
for _ in range(4):
    x = torch.randn(8, 4)
    features = trunk(x)
    targets = (x.sum(1, True), -x.sum(1, True), x.prod(1, True))
    surgeon.step([(head(features) - y).square().mean() for head, y in zip(heads, targets, strict=True)])

FINAL = [*trunk.parameters(), *heads.parameters()]
