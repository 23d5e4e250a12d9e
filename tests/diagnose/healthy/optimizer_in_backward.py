"""Each parameter is stepped inside the backward pass, as soon as its gradient is there, to save memory."""

import torch
from torch import nn

torch.manual_seed(37)
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
optimizers = {p: torch.optim.Adam([p], lr=1e-2, foreach=False) for p in model.parameters()}


def step_at_once(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(step_at_once)

losses = []
for _ in range(4):
    x = torch.randn(8, 4)
    loss = nn.functional.mse_loss(model(x), x.sum(dim=1, keepdim=True))
    loss.backward()
    losses.append(loss.item())

FINAL = [*model.parameters(), torch.tensor(losses)]
