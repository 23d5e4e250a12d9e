"""Sharpness-aware minimization: climb in place, look again, come back, step."""

import torch
from torch import nn

torch.manual_seed(26)


class SAM(torch.optim.Optimizer):
    def __init__(self, params, base_optimizer, rho=0.05, **kwargs):
        super().__init__(params, dict(rho=rho, **kwargs))
        self.base_optimizer = base_optimizer(self.param_groups, **kwargs)
        self.param_groups = self.base_optimizer.param_groups

    @torch.no_grad()
    def first_step(self):
        scale = self.param_groups[0]["rho"] / (self._grad_norm() + 1e-12)
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                self.state[p]["old_p"] = p.data.clone()
                p.add_(p.grad * scale)
        self.zero_grad()

    @torch.no_grad()
    def second_step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.data = self.state[p]["old_p"]
        self.base_optimizer.step()
        self.zero_grad()

    def _grad_norm(self):
        return torch.stack([p.grad.norm() for g in self.param_groups for p in g["params"] if p.grad is not None]).norm()


model = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 2))
optimizer = SAM(model.parameters(), torch.optim.SGD, lr=0.1, momentum=0.9)
for _ in range(4):
    x, y = torch.randn(8, 5), torch.randint(2, (8,))
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.first_step()
    nn.functional.cross_entropy(model(x), y).backward()
    optimizer.second_step()

FINAL = list(model.parameters())
